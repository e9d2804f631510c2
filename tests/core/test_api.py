"""The Python API: every line of the documented example, parts of one's own on several ranks, and
what is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from own_objects import LOSS, Slow, Stripes, small
from torch import nn

import segtrain
from segtrain.config import Config
from segtrain.data.labels.space import LabelSpace
from segtrain.data.own import own_dataset
from segtrain.errors import ConfigError
from segtrain.observe.journal import read_journal
from segtrain.runfolder import checkpoint

ROOT = Path(__file__).parents[2]
SMALL = [
    "data.scenes=8",
    "data.scene_size=[32,64]",
    "data.crop=[32,64]",
    "data.scale=[1.0,1.0]",
    "data.workers=1",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1], aux: false}",
    "train.batch_size=4",
    "train.duration=3st",
    "eval.every=3st",
    "checkpoint.every=3st",
    "log.every=1",
    "log.tensorboard=false",
    "log.pictures=0",
    "log.profile_ms=0",
    "parallel.threads=1",
]

# Parts that do what the config's own do: 32 * 64 pixels per image, all of them valid, are a power
# of two, so that a mean over them times their number is exact.
PARTS = """
import os, sys
import torch
import torch.nn.functional as F
import segtrain
from segtrain.data.datasets import open_dataset
from segtrain.models import build_model

class MyNet(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        torch.manual_seed(config.train.seed)
        self.net = build_model(config.model, 10)
    def forward(self, images):
        return self.net(images, low=True)[0]

def my_loss(logits, target):
    return F.cross_entropy(logits, target, ignore_index=255)

class MyDataset:
    def __init__(self, config, split):
        self.drawn = open_dataset(config.data, split)
        self.classes = list(self.drawn.labels.names)
    def __len__(self):
        return len(self.drawn)
    def __getitem__(self, index):
        return *self.drawn.read(index), self.drawn.entries[index].image

class MyTracker:
    name = "mine"
    def __init__(self):
        self.seen, self.status = [], ""
    def scalars(self, values, step):
        self.seen.append((step, sorted(values)))
    def image(self, tag, image, step): ...
    def text(self, tag, text): ...
    def close(self, status):
        self.status = status
"""


def weights(out: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.newest(out).state
    assert state is not None
    assert state["state"]["step"] == 3
    return dict(state["model"])


def test_own_parts_train_the_same_weights_as_the_config_on_two_ranks(run_ranks, tmp_path):
    own = f"""
config = segtrain.Config.load(None, *{SMALL!r}, "out={tmp_path}/own")
tracker = MyTracker()
run = segtrain.train(
    config, model=MyNet(config), criterion=my_loss, train_data=MyDataset(config, "train"),
    val_data=MyDataset(config, "val"), trackers=[tracker],
)
assert run.done
rank = int(os.environ["RANK"])
assert tracker.status == ("" if rank else "done"), tracker.status
assert [step for step, tags in tracker.seen if "train/loss" in tags] == ([] if rank else [1, 2, 3])
"""
    run_ranks(PARTS + own, 2)
    # An own loss gets the logits of a whole batch. Some CPUs' kernels round differently for one
    # image than for two.
    described = f"""
import segtrain
segtrain.train(segtrain.Config.load(None, *{SMALL!r}, "loss.full_logits=true", "out={tmp_path}/config"))
"""
    run_ranks(described, 2)
    mine, theirs = weights(tmp_path / "own"), weights(tmp_path / "config")
    assert {name.removeprefix("module.net.") for name in mine} == set(theirs)
    for name, value in theirs.items():
        assert torch.equal(mine[f"module.net.{name}"], value), name
    scores = [dict(segtrain.Run(tmp_path / name).scores.values) for name in ("own", "config")]
    # An own loss is a mean in float32, which is multiplied by the number of pixels again.
    own_loss, loss = (values.pop("loss") for values in scores)
    assert own_loss == pytest.approx(loss, rel=1e-6)
    assert scores[0] == scores[1]


def test_each_split_of_one_dataset_has_its_own_labels():
    items, palette = Stripes(2), ((0, 0, 0), (1, 1, 1))
    plain = LabelSpace(Stripes.classes, palette, 255, {0: 0, 1: 1, 255: 255})
    swapped = LabelSpace(Stripes.classes, palette, 255, {0: 1, 1: 0, 255: 255})
    masks = []
    for space in (plain, swapped):
        split = own_dataset(items, space, "train")
        masks.append(split.read(1)[1])
        assert split.entries[1].image == "train/1"
    assert (masks[0][1:] == 1 - masks[1][1:]).all()
    assert masks[0][0, 0] == masks[1][0, 0] == 255


def test_a_dataset_of_images_of_several_sizes_and_a_model_of_any_stride(tmp_path, capsys):
    config = small(tmp_path / "run")
    run = segtrain.train(
        config, model=Slow(), criterion=LOSS, train_data=Stripes(), val_data=Stripes(4)
    )
    assert run.done
    assert list(run.scores.per_class) == ["dark", "bright"]
    assert run.scores.values["pixels"][1] == 4 * 20 * 32 - 1  # one bright pixel is void
    assert f"segtrain.export('{run.path}', 'exported', model=Slow(...))" in capsys.readouterr().out
    scores = segtrain.evaluate(run.path, data=Stripes(4), model=Slow(), quiet=False)
    assert "loss unknown" in capsys.readouterr().out
    assert "loss" not in scores.values
    # The same call again finds a finished run; other parts are refused.
    assert segtrain.train(
        config, model=Slow(), criterion=LOSS, train_data=Stripes(), val_data=Stripes(4)
    ).done
    assert (
        f"segtrain.evaluate('{run.path}', data=Stripes(...), model=Slow(...))"
        in capsys.readouterr().out
    )
    with refused(
        "parts-changed", part="criterion", expected="torch.nn.modules.loss.CrossEntropyLoss"
    ):
        segtrain.train(config, model=Slow(), train_data=Stripes(), val_data=Stripes(4))


def test_a_batch_without_a_valid_pixel_changes_nothing(tmp_path):
    """A mean over no pixel is 0 / 0."""
    from segtrain.losses.criterion import as_criterion

    criterion = as_criterion(LOSS, 2, 255)
    logits = torch.randn(2, 2, 4, 4, requires_grad=True)
    target = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    value = criterion(logits, target)
    value.backward()
    assert value == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_parts_of_a_batch_add_up_to_the_mean_over_all_of_it():
    from segtrain.losses.criterion import as_criterion

    criterion = as_criterion(LOSS, 3, 255)
    logits = torch.randn(4, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 3, (4, 8, 8))
    target[0, :7] = 255
    whole = torch.autograd.grad(LOSS(logits, target), logits)[0]
    totals = criterion.totals(None, target)
    shares = sum(
        criterion.loss(logits[part], target[part], totals) for part in (slice(0, 1), slice(1, 4))
    )
    torch.testing.assert_close(torch.autograd.grad(shares, logits)[0], whole)


class Renamed(Stripes):
    classes = ("bright", "dark")


class Cut(Stripes):
    def __getitem__(self, index: int) -> Any:
        image, mask, name = super().__getitem__(index)
        return image[:8], mask, name


class Nameless(Stripes):
    classes = ()


class Repeated(Stripes):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index)[:2], index % 4


class Counts:
    """A tracker that lacks three methods."""

    def scalars(self, values: Any, step: int) -> None: ...


class Renumbered(Stripes):
    """Its attribute names other ids than its items."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = [f"other {index}" for index in range(len(self))]


@pytest.mark.parametrize(
    ("code", "parts", "settings"),
    [
        ("part-and-setting", {"model": Slow()}, ["model.init=runs/other"]),
        ("part-and-setting", {"criterion": LOSS}, ["loss.class_weights=auto"]),
        (
            "part-and-setting",
            {},
            ["data.split_by={of: train, val: 20%}", "data.layout=folders", "data.root=nowhere"],
        ),
        ("splits-classes-differ", {"val_data": Renamed()}, []),
        ("classes-missing", {"train_data": Nameless(), "val_data": Nameless()}, []),
        ("item-shape", {"train_data": Cut()}, []),
        ("model-not-trainable", {"model": Slow().requires_grad_(False)}, []),
        ("model-on-meta", {"model": Slow().to("meta")}, []),
        ("dataset-empty", {"train_data": Stripes(0)}, []),
        ("dataset-form", {"train_data": Stripes}, []),
        ("ids-repeated", {"train_data": Repeated()}, []),
        ("val-data-missing", {"val_data": None}, []),
        ("criterion-not-callable", {"criterion": nn.CrossEntropyLoss}, []),
        ("criterion-counts-void", {"criterion": nn.CrossEntropyLoss()}, ["data.crop=[64,64]"]),
        ("trackers-not-a-list", {"trackers": Counts()}, []),
        ("tracker-incomplete", {"trackers": [Counts()]}, []),
        (
            "criterion-classes-differ",
            {"criterion": segtrain.losses.CrossEntropy(num_classes=7)},
            [],
        ),
        ("procs-with-parts", {}, ["parallel.procs=2"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_mistakes_with_own_parts_are_refused(code, parts, settings, tmp_path):
    given = {
        "model": Slow(),
        "criterion": LOSS,
        "train_data": Stripes(),
        "val_data": Stripes(4),
        **parts,
    }
    with refused(code):
        segtrain.train(small(tmp_path / "run", *settings), **given)


def test_an_item_has_the_id_that_its_dataset_lists(tmp_path):
    with refused("samples-faulty") as info:
        segtrain.train(
            small(tmp_path / "run"), model=Slow(), train_data=Renumbered(), val_data=Stripes(4)
        )
    assert "Renumbered[0] has the id 'train/0', but had 'other 0'" in str(info.value)


def test_one_dataset_in_both_places_is_refused(tmp_path):
    data = Stripes()
    with refused("same-train-and-val"):
        segtrain.train(small(tmp_path / "run"), train_data=data, val_data=data)


def test_batches_for_another_loop(tmp_path):
    # memory is soon reused, if it is free
    config = small(tmp_path / "run", "data.workers=1", "data.prefetch=1")
    batches = segtrain.data.loader(config, data=Stripes())
    assert len(batches) == 3
    passes = [list(batches), list(batches)]
    images, masks = passes[0][0]
    assert (images.dtype, tuple(images.shape)) == (torch.float32, (2, 3, 24, 24))
    assert (masks.dtype, tuple(masks.shape)) == (torch.int64, (2, 24, 24))
    assert not torch.equal(passes[0][0][0], passes[1][0][0])
    batches.set_epoch(1)
    for again, before in zip(batches, passes[1]):
        assert torch.equal(again[0], before[0])
        assert torch.equal(again[1], before[1])
    raw = [
        next(
            iter(
                segtrain.data.loader(config, data=Stripes(), dtype="uint8", rank=rank, world_size=2)
            )
        )[0]
        for rank in (0, 1)
    ]
    assert (raw[0].dtype, tuple(raw[0].shape)) == (torch.uint8, (1, 24, 24, 3))
    from segtrain.data.train_loader import normalize

    assert torch.equal(normalize(torch.cat(raw)), images)
    whole = list(segtrain.data.loader(config, data=Stripes(5), train=False))
    assert (
        sorted(tuple(mask.shape) for _, masks in whole for mask in masks)
        == [(32, 48)] * 3 + [(32, 56)] * 2
    )


def test_importing_segtrain_imports_no_torch_and_each_name_is_there():
    code = (
        "import sys, segtrain\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(segtrain.__all__) <= set(dir(segtrain))\n"
        "for name in segtrain.__all__: getattr(segtrain, name)\n"
        "import segtrain.training.loop, segtrain.evaluation.load, segtrain.data.order\n"
        "assert callable(segtrain.train) and callable(segtrain.evaluate) and callable(segtrain.data.loader)\n"
        "try: segtrain.nothing\n"
        "except AttributeError: pass\n"
        "else: raise SystemExit('found')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_notebook_shows_the_run_while_it_trains(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    drawn = list[bytes]()

    def display(figure: Any, display_id: bool = False) -> SimpleNamespace:
        drawn.append(figure._repr_png_())
        return SimpleNamespace(update=display)

    shell = SimpleNamespace(kernel=object())
    version = (9, 0)  # which matplotlib reads
    notebook: Any = {
        "IPython": {"get_ipython": lambda: shell, "version_info": version},
        "IPython.display": {"display": display},
    }
    for name, content in notebook.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    run = segtrain.train(
        small(tmp_path / "<b>", "eval.every=1st"),
        model=Slow(),
        criterion=LOSS,
        train_data=Stripes(),
        val_data=Stripes(4),
    )
    assert len(set(drawn)) == 2  # after each evaluation, in one place
    assert "\repoch " in capsys.readouterr().out
    shown = run._repr_html_()
    assert "&lt;b&gt;" in shown
    assert all(word in shown for word in ("dark", "bright", f"{100 * run.scores.miou:.1f}%"))


# The example of docs/python.md and README.md for people who know the names; ``images`` are arrays.
def test_a_run_with_an_own_model_and_data_says_what_to_pass(tmp_path):
    pytest.importorskip("onnx", reason="the extra 'export' is not installed")

    class Wide(Slow):
        def __init__(self, classes: int) -> None:
            super().__init__(classes)

    run = segtrain.train(
        small(tmp_path / "run", "loss.class_weights=auto"),
        model=Wide(2),
        train_data=Stripes(),
        val_data=Stripes(4),
    )
    with refused("own-model-missing"):
        segtrain.load(run.path)
    with refused("weights-unfit"):
        segtrain.load(run.path, model=nn.Conv2d(3, 2, 1))
    with pytest.raises(ConfigError, match=r"segtrain\.export\(folder, out, model=") as caught:
        segtrain.export(run.path, tmp_path / "export")
    assert caught.value.code == "own-model-missing"
    done = segtrain.export(run.path, tmp_path / "export", model=Wide(2))
    assert done.onnx is not None
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    masks = [
        segtrain.load(folder, model=Wide(2)).predict(pixels)[0]
        for folder in (run.path, tmp_path / "export")
    ]
    assert np.array_equal(*masks)
    with refused("own-model-missing"):
        segtrain.load(tmp_path / "export")
    with refused("own-data-missing", data="own_objects.Stripes"):
        segtrain.evaluate(run.path, model=Wide(2))
    scores = segtrain.evaluate(run.path, data=Stripes(4), model=Wide(2))
    assert scores.miou == run.scores.miou
    assert scores.values["loss"] == run.scores.values["loss"]  # its class weights are those of then


class Single:
    """A dataset of one item; an exception is raised."""

    classes = ("dark", "bright")

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.item, Exception):
            raise self.item
        return self.item


MASK = np.zeros((32, 48), np.uint8)


@pytest.mark.parametrize(
    ("item", "code", "advice"),
    [
        (ValueError("boom"), "item-raised", "Single[0] raised ValueError: boom"),
        ({"image": 1, "mask": 2, "id": 3}, "item-form", "a dict"),
        ((MASK, MASK), "item-form", "2 values"),
        ((torch.zeros(3, 32, 48, requires_grad=True), MASK, 0), "item-form", "not an array"),
        ((np.zeros((32, 48, 3), np.float32), MASK, 0), "item-image", "uint8 (H, W, 3)"),
        ((np.zeros((3, 32, 48), np.uint8), MASK, 0), "item-image", "uint8 (H, W, 3)"),
        ((np.zeros((32, 48, 3), np.uint8), MASK[:8], 0), "item-shape", "(8, 48)"),
    ],
)
def test_a_wrong_item_says_how_to_make_it_right(item, code, advice, tmp_path):
    with refused(code, index=0) as info:
        segtrain.data.loader(small(tmp_path / "run"), data=Single(item))
    assert advice in str(info.value)


def test_wrong_calls_are_told_in_a_sentence(tmp_path):
    with refused("not-a-config", found="str"):
        segtrain.train("mine.yaml")  # type: ignore[arg-type]
    with refused("config-not-a-file", found="dict"):
        Config.load({"out": "x"})  # type: ignore[arg-type]
    config = small(tmp_path / "run")
    with refused("config-is-frozen", key="seed"):
        config.train.seed = 3
    with torch.no_grad(), refused("gradients-off"):
        segtrain.train(config)
    with refused("rank-outside-world", rank=3, world_size=2):
        segtrain.data.loader(config, data=Stripes(), rank=3, world_size=2)
    for folder in (tmp_path / "nothing", tmp_path):
        with refused("not-a-run-folder", folder=str(folder)):
            segtrain.Run(folder)


def test_a_run_leaves_the_process_as_it_was_and_its_folder_tells_whether_it_is_done(tmp_path):
    import cv2

    cv2.setNumThreads(2)
    model, before, environment, used = (
        Slow(),
        torch.get_rng_state(),
        dict(os.environ),
        time.process_time(),
    )
    run = segtrain.train(
        small(tmp_path / "run", "parallel.strategy=ddp"),
        model=model,
        criterion=LOSS,
        train_data=Stripes(),
        val_data=Stripes(4),
        trackers=[],
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert cv2.getNumThreads() == 2
    assert dict(os.environ) == environment  # a rank's variables would make the next training a rank
    assert run.done
    # The CPU time of this process before the call does not count.
    assert read_journal(run.path)[-1]["cpu_s"] < time.process_time() - used
    assert f"{run.scores.miou:.4f}" in repr(run)
    if find_spec("matplotlib"):
        assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert segtrain.Run(str(run.path)).done  # type: ignore[arg-type]
    assert segtrain.Run(str(run.path)).scores == run.scores  # type: ignore[arg-type]
    with refused("dataset-empty"):
        segtrain.evaluate(run.path, data=Stripes(0))
    with refused("model-not-a-module"):
        segtrain.load(run.path, model=Slow)  # type: ignore[arg-type]
    journal = run.path / "journal.jsonl"
    journal.write_text(
        journal.read_text()
        + '{"event": "run_start", "ts": 1}\n{"event": "run_end", "ts": 2, "status": "stopped"}\n'
    )
    assert not segtrain.Run(run.path).done


class Broken(Slow):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) / torch.zeros(())


def test_a_loss_that_is_not_finite_before_any_update_does_not_blame_the_learning_rate(tmp_path):
    with refused("not-finite", step=1, updated=False) as info:
        segtrain.train(
            small(tmp_path / "run"),
            model=Broken(),
            criterion=LOSS,
            train_data=Stripes(),
            val_data=Stripes(4),
        )
    assert "optim.lr" not in str(info.value)


def epochs(loader: Any) -> list[list[torch.Tensor]]:
    return [[images for images, _ in loader] for _ in range(3)]


def test_set_epoch_continues_after_a_resume_and_holds_if_it_comes_after_iter(tmp_path):
    """Lightning calls ``iter`` before the hook in which the example of the page calls
    ``set_epoch``.
    """
    config = small(tmp_path / "run")
    whole = epochs(segtrain.data.loader(config, data=Stripes()))
    resumed = segtrain.data.loader(config, data=Stripes())
    for epoch in (1, 2):
        started = iter(resumed)
        resumed.set_epoch(epoch)
        assert all(map(torch.equal, (images for images, _ in started), whole[epoch]))
    assert not torch.equal(whole[0][0], whole[1][0])
