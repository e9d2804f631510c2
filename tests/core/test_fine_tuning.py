"""Beginning with other weights: whole networks, encoders from files, heads by class name; and
encoders that are kept as they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from refusals import MODEL, SCENES, assert_refused
from safetensors.torch import save_file
from torch import Tensor, nn

from segtrain.config import Model, is_file_name, load_config
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError
from segtrain.models import build_model
from segtrain.models.weights import load_encoder, read_weights
from segtrain.parallel.cluster import Cluster, free_port
from segtrain.runfolder.checkpoint import newest
from segtrain.training.start.initial import _refuse_random, begin_with
from segtrain.training.step import frozen_running_stats

PICO = {"stem": 8, "widths": [8, 8, 16, 16], "decoder": 8, "bins": [1]}


def pico(classes: int, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    network = build_model(Model(options={**PICO, **options}), classes)
    for buffer in network.buffers():  # statistics of a network that has seen something
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return network


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("wrap", ["", "state_dict", "model", "ema"])
def test_a_file_of_another_script_is_read(tmp_path, wrap):
    weights = {"module.a": torch.arange(3.0), "module.b": torch.ones(2, 2)}
    torch.save({wrap: weights, "epoch": 3, "lr": 0.1} if wrap else weights, tmp_path / "a.pth")
    assert equal(read_weights(tmp_path / "a.pth", "model.init")[0], weights)
    save_file(weights, tmp_path / "a.safetensors")
    assert equal(read_weights(tmp_path / "a.safetensors", "model.init")[0], weights)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_files_that_are_none_are_refused_and_code_is_not_run(tmp_path):
    torch.save({"model": Evil(tmp_path / "ran")}, tmp_path / "evil.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    (tmp_path / "torn.pth").write_bytes((tmp_path / "none.pth").read_bytes()[:-100])
    (tmp_path / "torn.safetensors").write_bytes(b"\0" * 40)
    (tmp_path / "empty.pth").touch()
    torch.save({"weight": torch.arange(64.0)}, tmp_path / "flipped.pth")
    content = bytearray((tmp_path / "flipped.pth").read_bytes())
    content[content.index(torch.arange(64.0).numpy().tobytes()) + 100] ^= 1  # one bit of a weight
    (tmp_path / "flipped.pth").write_bytes(content)
    (tmp_path / "page.pth").write_text("<!DOCTYPE html>")
    for name, words in {
        "evil.pth": "Python objects",
        "list.pth": "no tensors with names",
        "none.pth": "no tensors with names",
        "torn.pth": "damaged",
        "torn.safetensors": "damaged",
        "flipped.pth": "another checksum.*damaged",
        "page.pth": "a web page",
        "empty.pth": "empty",
        "gone.pth": "no such file",
    }.items():
        with pytest.raises(ConfigError, match=rf"model.init=.*{name}.*{words}"):
            read_weights(tmp_path / name, "model.init")[0]
    assert not (tmp_path / "ran").exists()


def test_a_file_is_read_by_its_content_not_its_name(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / "a.pth")
    torch.save({"weight": torch.ones(3)}, tmp_path / "b.safetensors")
    for name in ("a.pth", "b.safetensors"):
        assert equal(read_weights(tmp_path / name, "model.init")[0], {"weight": torch.ones(3)})


KINDS = {
    "int8": lambda value: (10 * value).to(torch.int8),
    "complex64": lambda value: value.to(torch.complex64),
    "sparse": lambda value: value.to_sparse(),
    "meta": lambda value: value.to("meta"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_plain_numbers_are_refused(tmp_path, kind):
    network = pico(3)
    for name, begin in (
        (
            next(iter(network.state_dict())),
            lambda: begin_with(network, str(tmp_path / "w.pth"), ["a", "b", "c"]),
        ),
        (
            next(iter(network.encoder_state())),
            lambda: load_encoder(network, str(tmp_path / "w.pth")),
        ),
    ):
        state = network.state_dict()
        torch.save({**state, name: KINDS[kind](state[name])}, tmp_path / "w.pth")
        with pytest.raises(ConfigError, match=rf"{name}.*{kind}"):
            begin()


def test_a_head_that_is_a_number_is_refused(tmp_path):
    network = pico(3)
    torch.save({**network.state_dict(), "head.weight": torch.tensor(1.0)}, tmp_path / "w.pth")
    with refused("weights-do-not-fit", found=str(tmp_path / "w.pth")):
        begin_with(network, str(tmp_path / "w.pth"), ["a", "b", "c"])


ENCODERS = [
    ("pico", ""),
    ("unet", "resnet18"),
    ("fpn", "resnet18"),
    ("torchvision/lraspp_mobilenet_v3_large", ""),
]


@pytest.mark.parametrize(("arch", "encoder"), ENCODERS)
def test_an_encoder_comes_from_a_local_file(tmp_path, arch, encoder):
    settings = Model(arch=arch, **({"encoder": encoder} if encoder else {}))
    torch.manual_seed(1)
    source = build_model(settings, 3)
    state = {name: value.detach().clone() for name, value in source.encoder_state().items()}
    classifier = {"fc.weight": torch.ones(4, 4), "fc.bias": torch.ones(4)}
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in {**state, **classifier}.items()}},
        tmp_path / "e.pth",
    )
    torch.manual_seed(2)
    network = build_model(
        settings.model_copy(update={"encoder_weights": str(tmp_path / "e.pth")}), 5
    )
    assert equal({k: v.detach() for k, v in network.encoder_state().items()}, state)
    own = {id(p) for p in network.encoder_parameters()}
    assert own == {id(v) for v in network.encoder_state().values() if isinstance(v, nn.Parameter)}


def test_an_encoder_file_must_have_every_tensor_in_its_shape(tmp_path):
    network = pico(3)
    state = dict(network.encoder_state())
    name = next(iter(state))
    for change, words in (
        ({name: torch.ones(1, 2)}, rf"{name} is 1x2 instead of 8x3x3x3"),
        ({name: None}, rf"{name} is not in the file"),
    ):
        torch.save(
            {k: v for k, v in {**state, **change}.items() if v is not None}, tmp_path / "e.pth"
        )
        with pytest.raises(ConfigError, match=words):
            load_encoder(network, str(tmp_path / "e.pth"))
    assert is_file_name("weights/a.pth")
    assert not is_file_name("imagenet")
    assert not is_file_name(None)


def a_run(folder: Path, network: Any, names: list[str]) -> Path:
    """A run folder as far as its weights and labels go."""
    (folder / "checkpoints").mkdir(parents=True)
    space = LabelSpace(tuple(names), tuple((k, k, k) for k in range(len(names))))
    (folder / "labels.json").write_text(json.dumps(space.to_dict()))
    (folder / "config.yaml").write_text(load_config(None, [f"out={folder}", MODEL]).to_yaml())
    torch.save(
        {"format": 2, "model": network.state_dict(), "ema": {}},
        folder / "checkpoints/step-00000001.pt",
    )
    return folder


def test_head_rows_go_by_class_name(tmp_path):
    source = pico(3, seed=1)
    run = a_run(tmp_path / "run", source, ["road", "car", "sky"])
    network, fresh = pico(4, seed=2), pico(4, seed=2)
    initial = begin_with(network, str(run), ["sky", "person", "road", "tree"])
    theirs, ours, before = source.state_dict(), network.state_dict(), fresh.state_dict()
    for name in ("head.weight", "head.bias"):
        assert torch.equal(ours[name][0], theirs[name][2])
        assert torch.equal(ours[name][2], theirs[name][0])
        assert torch.equal(ours[name][1], before[name][1])
        assert torch.equal(ours[name][3], before[name][3])
    body = [name for name in ours if not name.startswith("head.")]
    assert all(torch.equal(ours[name], theirs[name]) for name in body)
    assert set(initial.taken) == set(body)
    assert initial.rows == ("sky", "road")
    assert initial.new_rows == ("person", "tree")
    assert initial.new == initial.left == ()
    assert any("taken for sky, road; new for person, tree" in line for line in initial.lines())


def test_a_file_without_class_names(tmp_path):
    source = pico(3, seed=1)
    save_file(
        {f"module.{k}": v for k, v in source.state_dict().items()}, tmp_path / "w.safetensors"
    )
    network, fresh = pico(3, seed=2), pico(5, seed=2)
    initial = begin_with(network, str(tmp_path / "w.safetensors"), ["a", "b", "c"])
    assert equal(network.state_dict(), source.state_dict())
    assert "does not name its classes" in initial.remark
    wider = pico(5, seed=2)
    initial = begin_with(wider, str(tmp_path / "w.safetensors"), list("abcde"))
    assert torch.equal(wider.state_dict()["head.weight"], fresh.state_dict()["head.weight"])
    assert set(initial.new) == {"head.weight", "head.bias"}
    assert "has 3 classes" in initial.remark


def test_what_is_new_and_what_is_left_out_is_listed(tmp_path):
    source = pico(3, seed=1, aux=True)
    run = a_run(tmp_path / "run", source, ["a", "b", "c"])
    initial = begin_with(pico(3, seed=2), str(run), ["a", "b", "c"])
    assert set(initial.left) == {"aux.weight", "aux.bias"}
    other = a_run(tmp_path / "other", pico(3, seed=1), ["a", "b", "c"])
    initial = begin_with(pico(3, seed=2, aux=True), str(other), ["a", "b", "c"])
    assert set(initial.new) == {"aux.weight", "aux.bias"}


def test_weights_of_another_network_are_refused(tmp_path):
    run = a_run(tmp_path / "run", pico(3, decoder=16), ["a", "b", "c"])
    with refused("weights-do-not-fit", found=str(run)):
        begin_with(pico(3), str(run), ["a", "b", "c"])
    torch.save({"x": torch.ones(2, 2)}, tmp_path / "x.pth")
    with refused("weights-do-not-fit", found=str(tmp_path / "x.pth")):
        begin_with(pico(3), str(tmp_path / "x.pth"), ["a", "b", "c"])
    with refused("no-weights", found=str(tmp_path)):
        begin_with(pico(3), str(tmp_path), ["a", "b", "c"])


@pytest.mark.parametrize(("arch", "encoder"), ENCODERS)
def test_a_frozen_encoder_gets_no_gradient_and_keeps_its_statistics(arch, encoder):
    torch.manual_seed(0)
    network = build_model(Model(arch=arch, **({"encoder": encoder} if encoder else {})), 3)
    network.freeze("encoder")
    before = {name: value.clone() for name, value in network.encoder_state().items()}
    network.train()
    images = torch.rand(2, 3, 64, 64)
    with frozen_running_stats(network):
        network(images)
    network(images).sum().backward()
    assert equal(
        {k: v.detach() for k, v in network.encoder_state().items()},
        {k: v.detach() for k, v in before.items()},
    )
    assert all(p.grad is None for p in network.encoder_parameters())
    assert any(p.grad is not None for p in network.parameters())
    assert any(module.training for module in network.modules() if not list(module.children()))
    network.eval()
    assert not any(module.training for module in network.modules())


def started(zygote: Any, folder: Path, ranks: int, *more: str) -> str:
    processes = (
        zygote.start_ranks(ranks, "train", *SCENES, *more, cwd=folder)
        if ranks > 1
        else [zygote.start("train", *SCENES, *more, cwd=folder)]
    )
    assert [process.wait() for process in processes] == [0] * ranks, processes[0].output
    return str(processes[0].output)


def test_a_run_begins_with_another_one_and_keeps_its_encoder(zygote, tmp_path):
    """On one rank and on two, with ddp and fsdp; and it goes on to the bit after a stop."""
    started(zygote, tmp_path, 1)
    first = newest(tmp_path / "run").state
    assert first is not None
    tuned = ["train.batch_size=4", "model.init=run", "model.freeze=encoder", "optim.ema=0.9"]
    cases = [
        (2, "two", []),
        (2, "sharded", ["parallel.strategy=fsdp"]),
        (1, "long", ["train.duration=6st"]),
    ]
    for ranks, out, more in cases:
        said = started(zygote, tmp_path, ranks, *tuned, *more, f"out={out}", "checkpoint.keep=9")
        assert "began with run: " in said
        assert "of them trained (the encoder is frozen)" in said
        saved = newest(tmp_path / out).state
        assert saved is not None
        frozen = [name for name in saved["model"] if name.startswith(("stem.", "stages."))]
        assert frozen
        for name, value in saved["model"].items():
            moved = not torch.equal(value, first["model"][name])
            if name in frozen:
                assert not moved, name
                assert torch.equal(saved["ema"][name], first["model"][name])
        assert not torch.equal(saved["model"]["head.weight"], first["model"]["head.weight"])
        assert not [name for name in saved["optimizer"] if name in frozen]
        events = [
            json.loads(line) for line in (tmp_path / out / "journal.jsonl").read_text().splitlines()
        ]
        event = next(event for event in events if event["event"] == "init")
        assert event["source"] == "run"
        assert len(event["taken"]) == len(first["model"])
    # Stopped after step 2 of 6 by hand: the later checkpoints are taken away, and model.init with
    # them.
    whole = newest(tmp_path / "long").state
    for path in (tmp_path / "long/checkpoints").glob("*.pt"):
        if path.name > "step-00000002.pt":
            path.unlink()
    (tmp_path / "long/best.json").unlink(missing_ok=True)
    (tmp_path / "run").rename(tmp_path / "gone")
    said = started(
        zygote, tmp_path, 1, *tuned, "train.duration=6st", "out=long", "checkpoint.keep=9"
    )
    assert "going on from step 2 of 6" in said
    again = newest(tmp_path / "long").state
    assert whole is not None
    assert again is not None
    assert equal(again["model"], whole["model"])


def test_the_encoder_has_its_own_learning_rate_in_every_strategy(run_ranks, tmp_path):
    """fsdp puts other parameters in the place of those that the network was built with."""
    strategies = ["single", "ddp", "fsdp"]
    code = f"""
from segtrain.config import load_config
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import start
from segtrain.runfolder.lock import RunLock
from segtrain.training.session import open_session
for name in {strategies}:
    words = [*{SCENES}, "optim.encoder_lr=0.5", f"parallel.strategy={{name}}", f"out={tmp_path}/{{name}}"]
    config = load_config(None, words)
    with start(config.parallel, discover()) as strategy, RunLock(config.run_dir) as lock:
        session = open_session(config, strategy, lock)
        scales = {{p: group["scale"] for group in session.learner.optimizer.param_groups for p in group["params"]}}
        for parameter, scale in ((n, scales[p]) for n, p in session.learner.plain.named_parameters()):
            assert scale == (0.5 if parameter.startswith(("stem.", "stages.")) else 1.0), (name, parameter, scale)
"""
    run_ranks(code, 1)


def test_a_run_that_goes_on_needs_no_file_of_its_encoder(zygote, tmp_path):
    torch.save(
        build_model(load_config(None, SCENES).model, 3).state_dict(), tmp_path / "encoder.pth"
    )
    tuned = ["model.encoder_weights=encoder.pth", "model.freeze=encoder", "checkpoint.every=1st"]
    started(zygote, tmp_path, 1, *tuned)
    whole, checkpoints = (
        newest(tmp_path / "run").state,
        sorted((tmp_path / "run/checkpoints").iterdir()),
    )
    checkpoints.pop().unlink()
    (tmp_path / "encoder.pth").unlink()
    assert "going on from step" in started(zygote, tmp_path, 1, *tuned)
    again = newest(tmp_path / "run").state
    assert whole is not None
    assert again is not None
    assert equal(again["model"], whole["model"])
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.write_bytes(b"torn")
    process = zygote.start("train", *SCENES, *tuned, cwd=tmp_path)
    assert process.wait() == 2
    assert "to start over from encoder.pth" in process.output


def test_ranks_that_read_other_weights_are_refused(zygote, tmp_path):
    for seed in (0, 1):
        (tmp_path / f"host{seed}").mkdir()
        torch.save(pico(10, seed=seed).state_dict(), tmp_path / f"host{seed}/w.pth")

    def both() -> list[Any]:
        port = free_port()
        places = [Cluster(rank, 2, rank, 2, "127.0.0.1", port) for rank in (0, 1)]
        return [
            zygote.start(
                "train",
                *SCENES,
                "model.init=w.pth",
                cwd=tmp_path / f"host{place.rank}",
                **place.environment(),
            )
            for place in places
        ]

    assert_refused(both(), "model.init=w.pth: rank 1 ", "found other weights there than rank 0")
    (tmp_path / "host1/w.pth").unlink()
    assert_refused(both(), "rank 1 ", "model.init=w.pth: there is no such file")


@pytest.mark.parametrize("prefix", ["_orig_mod.module.", "model.module._orig_mod.", "net.model."])
def test_wrappers_around_wrappers(tmp_path, prefix):
    source, network = pico(3, seed=1), pico(3, seed=2)
    torch.save(
        {prefix + name: value for name, value in source.state_dict().items()}, tmp_path / "w.pth"
    )
    begin_with(network, str(tmp_path / "w.pth"), ["a", "b", "c"])
    assert equal(network.state_dict(), source.state_dict())


def test_numbers_that_are_not_finite_are_named(tmp_path):
    state = pico(3).state_dict()
    name = next(name for name in state if name.endswith("running_var"))
    torch.save({**state, name: state[name] * float("nan")}, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=rf"model.init=.*w.pth: {name} contain NaN or infinity"):
        begin_with(pico(3), str(tmp_path / "w.pth"), ["a", "b", "c"])


def test_an_encoder_that_came_in_part_is_not_frozen(tmp_path):
    network = pico(3)
    state = dict(list(network.state_dict().items())[:3])
    torch.save(state, tmp_path / "part.pth")
    initial = begin_with(network, str(tmp_path / "part.pth"), ["a", "b", "c"])
    _refuse_random(network, initial)
    network.freeze("encoder")
    with refused("encoder-not-loaded", key="model.freeze"):
        _refuse_random(network, initial)


def test_a_dictionary_that_holds_itself_has_no_tensors(tmp_path):
    content: dict[str, Any] = {"note": 1}
    content |= dict.fromkeys(("state_dict", "model", "ema"), content)
    torch.save(content, tmp_path / "cycle.pth")
    with refused("weights-without-tensors"):
        read_weights(tmp_path / "cycle.pth", "model.init")[0]
    content["weights"] = {"w": torch.ones(2)}
    torch.save(content, tmp_path / "cycle.pth")
    assert read_weights(tmp_path / "cycle.pth", "model.init")[0].keys() == {"w"}
