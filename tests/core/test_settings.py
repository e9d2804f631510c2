"""Tests of invalid settings: each is refused by its key before torch is imported and before any
file is written.
"""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import refused

from segtrain.cli import main
from segtrain.config import Config, load_config, load_saved, make_config
from segtrain.config.mistakes import OTHER_TRAINERS, fields
from segtrain.config.section import sections_of
from segtrain.data import cache
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder.rundir import make_run_dir
from segtrain.training.start import early_checks as early
from segtrain.training.start.derived import make_plan

GIB = 2**30

# Values that can never work.
NUMBERS = [
    "eval.tile=[0,0]",
    "eval.tile=[8,1000000]",
    "eval.size=[0,1]",
    "eval.scales=[0]",
    "eval.scales=[.nan]",
    "eval.scales=[]",
    "eval.overlap=0.999",
    "eval.every=0st",
    "eval.every=10%",
    "eval.every=soon",
    "eval.batch_size=1000000000",
    "checkpoint.every=0st",
    "train.duration=0st",
    "train.duration=99999999999999999999ep",
    "train.duration=50%",
    "train.seed=18446744073709551616",
    "train.seed=-1",
    "train.progressive=[[.nan,1]]",
    "optim.lr=.inf",
    "optim.lr=.nan",
    "optim.betas=[1,1]",
    "optim.betas=[.nan,.nan]",
    "optim.clip=.inf",
    "parallel.threads=0",
    "parallel.procs=0",
    "parallel.timeout_s=.inf",
    "parallel.bucket_mb=1e30",
    "data.crop=[2147483648,8]",
    "data.jitter=[.nan,0,0]",
    "data.scale=[0,1]",
    "data.base_scale=1e9",
    "data.scenes=100000000000",
    "data.prefetch=1000000000",
    "loss.class_weights=[-1,1]",
    "loss.class_weights=[0,0]",
    "out=https://bkt/run",
    "out=gs://",
    "out=s3:///run",
    "loss.terms=[{name: focal, gamma: .inf}]",
    "log.hang_s=.inf",
    'out="a\\nb"',
    'name="a\\tb"',
]
OTHER_CODES = {
    "train.seed=1.5": "wrong-type",
    "optim.betas=[.9]": "wrong-type",
    "optim.warmup=100%": "conflicting-settings",
    "loss.terms=[{name: tversky, alpha: 0, beta: 0}]": "conflicting-settings",
    "optim.lr=true": "boolean-for-number",
    "parallel.procs=on": "boolean-for-number",
    "data.crop=[yes,8]": "boolean-for-number",
    "data.label_map={yes: 1}": "boolean-for-number",
    "loss.terms=[{name: dice, weight: yes}]": "boolean-for-number",
}

# Values that can be refused only with the number of ranks, the memory (here 16 GiB), or the
# installed libraries.
EARLY = {
    "parallel.procs=1000": "for 1000 ranks",
    "train.batch_size=1000000000": "train.batch_size=1000000000",
    "data.crop=[60000,60000]": "data.crop=[60000, 60000]",
    "data.scene_size=[65000,65000]": "data.scene_size=[65000, 65000]",
    "eval.size=[65000,65000]": "eval.size=[65000, 65000]",
    "model.arch=unett": "did you mean 'unet'?",
    "model.arch=torchvision/nonsense": "torchvision/fcn_resnet50",
}


@pytest.mark.parametrize("given", [*NUMBERS, *OTHER_CODES])
def test_a_value_that_cannot_work_is_refused_by_its_key(given: str) -> None:
    with refused(OTHER_CODES.get(given, "invalid-value")) as caught:
        load_config(None, [given])
    key = given.partition("=")[0]
    for found in caught.value.values["keys"]:  # one per wrong member of a list
        assert found == key or found.startswith(f"{key}.")


def test_the_largest_seed_is_taken() -> None:
    assert load_config(None, ["train.seed=18446744073709551615"]).train.seed == 2**64 - 1


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "memory_limit", lambda: (16 * GIB, "host"))
    monkeypatch.setattr(cache, "memory_limit", lambda: (16 * GIB, "host"))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("given", EARLY)
def test_the_command_refuses_before_anything_is_made(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # no rank is started
    settings = [
        "train.batch_size=2",
        "data.crop=[32,32]",
        "parallel.procs=2",
        "train.device=cpu",
        given,
    ]
    assert main(["train", *settings]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert EARLY[given] in told[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "code", "found", "suggestion"),
    [
        ("model.encoder=resnet17", "unknown-encoder", "resnet17", "resnet18"),
        ("model.encoder=tu-resnet18x", "unknown-encoder", "tu-resnet18x", "tu-resnet18"),
        ("model.encoder_weights=imagenett", "unknown-encoder-weights", "imagenett", "imagenet"),
    ],
)
def test_an_encoder_that_no_library_knows(
    given: str, code: str, found: str, suggestion: str
) -> None:
    pytest.importorskip("segmentation_models_pytorch")
    with refused(code, found=found, suggestion=suggestion):
        early.refuse(load_config(None, ["model.arch=unet", given]), Cluster(source="torchrun"), 1)


def test_every_encoder_that_a_library_knows_is_let_through() -> None:
    encoders = pytest.importorskip("segmentation_models_pytorch").encoders
    timm = pytest.importorskip("timm")
    names = [
        (name, weights)
        for name in encoders.encoders
        for weights in encoders.encoders[name]["pretrained_settings"]
    ]
    unet = load_config().model.model_copy(update={"arch": "unet"})
    for name, weights in [*names, *((f"tu-{name}", "imagenet") for name in timm.list_models())]:
        early.refuse_names(unet.model_copy(update={"encoder": name, "encoder_weights": weights}))


def test_no_torch_is_imported_for_it(tmp_path: Path) -> None:
    """Also for a folder that holds another run."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step-00000001.pt").touch()
    (tmp_path / "run/config.yaml").write_text(load_config(None, ["optim.lr=0.5"]).to_yaml())
    code = (
        "import sys; from segtrain.cli import main\n"
        "for given in (['out=run'], ['parallel.procs=1000'], ['model.arch=unett'], ['model.arch=unet', 'model.encoder=resnet17']):\n"
        "    assert main(['train', 'train.device=cpu', *given]) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "run holds a run with other settings (optim.lr: 0.5 there, 0.001 here)" in done.stderr


def test_ranks_that_others_started_do_not_look_at_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = load_config(None, [f"out={tmp_path}/file"])
    early.refuse(config, Cluster(0, 2, 0, 2, source="torchrun"), 2)
    with refused("run-folder-not-writable", run=f"{tmp_path}/file"):
        early.refuse(config, Cluster(), 2)
    with refused(
        "run-folder-not-writable", run=f"{tmp_path}/file", reason=os.strerror(errno.ENOTDIR)
    ):
        make_run_dir(config)


@pytest.mark.usefixtures("memory")
def test_each_rank_of_a_host_counts_in_what_samples_need() -> None:
    config = load_config(None, ["data.crop=[4096,4096]", "train.batch_size=32", "data.prefetch=4"])
    early.refuse_sizes(config, 8, 4)  # 5 steps of 16 images on this host: 5 GiB
    with refused("samples-exceed-memory", found=40 * 2**30):
        early.refuse_sizes(
            load_config(None, ["data.crop=[8192,8192]", "train.batch_size=32"]), 8, 8
        )


@pytest.mark.usefixtures("memory")
def test_each_rank_of_a_host_keeps_a_cache_of_its_own() -> None:
    class Pictures:
        entries = ()

        def __len__(self) -> int:
            return 1000

        def size(self, index: int) -> tuple[int, int]:
            return 1024, 1024

    cache.refuse_cache(Pictures(), ranks=3)  # type: ignore[arg-type]  # 3 x 3.9 of 12.8 GiB
    with pytest.raises(
        ConfigError,
        match=r"3\.9 GiB in each of 4 ranks, 15\.6 GiB together; this machine has 16\.0 GiB",
    ):
        cache.refuse_cache(Pictures(), ranks=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("duration", "samples", "batch", "expected"),
    [
        ("20ep", 367, 8, 46),  # CamVid: each epoch
        ("20ep", 10_000, 16, 625),
        ("30ep", 30, 8, 27),  # 3.75 steps an epoch: 7 epochs are 26.25 steps
        ("40st", 30, 8, 8),  # at least 4 times: 2 epochs are 7.5 steps
        ("4st", 4, 2, 2),
        ("1st", 30, 8, 4),  # at the end alone
    ],
)
def test_evaluations_and_checkpoints_of_small_sets_are_rare(
    duration: str, samples: int, batch: int, expected: int
) -> None:
    config = load_config(None, [f"train.duration={duration}", f"train.batch_size={batch}"])
    plan = make_plan(config, samples, Cluster(), has_gpu=False)
    assert (plan.eval_every, plan.save_every) == (expected, expected)


def test_a_warm_up_in_percent_fits_into_any_run() -> None:
    for steps, warmup, expected in (
        (1, "10%", 0),
        (2, "50%", 1),
        (2, "99%", 1),
        (4, "10%", 1),
        (100, "10%", 10),
    ):
        config = load_config(None, [f"train.duration={steps}st", f"optim.warmup={warmup}"])
        assert make_plan(config, 100, Cluster(), has_gpu=False).warmup == expected
    with refused("warmup-too-long", found=7, expected=3):
        make_plan(
            load_config(None, ["train.duration=3st", "optim.warmup=1ep"]),
            100,
            Cluster(),
            has_gpu=False,
        )


TEXTS = {
    "data.images={split}/images": ("data", "images", "{split}/images"),
    "data.images={split}": ("data", "images", "{split}"),
    "data.index={split}.csv": ("data", "index", "{split}.csv"),
    "data.masks=*/masks": ("data", "masks", "*/masks"),
    "data.split=2024": ("data", "split", "2024"),
    "data.train_split=1e3": ("data", "train_split", "1e3"),
    "data.split=on": ("data", "split", "on"),
    "data.classes=[a, b]": ("data", "classes", ("a", "b")),
    "data.classes=names.txt": ("data", "classes", "names.txt"),
    "model.encoder_weights=null": ("model", "encoder_weights", None),
    "eval.tile=null": ("eval", "tile", None),
    "data.cache=off": ("data", "cache", "off"),
    "optim.lr=1e-4": ("optim", "lr", 1e-4),
    'data.images="{split}/x"': ("data", "images", "{split}/x"),
}


@pytest.mark.parametrize("given", TEXTS)
def test_text_is_taken_as_it_stands(given: str) -> None:
    section, key, expected = TEXTS[given]
    assert getattr(getattr(load_config(None, [given]), section), key) == expected


def test_an_argument_that_the_shell_has_split_is_refused() -> None:
    with refused("invalid-yaml", key="loss.class_weights"):
        load_config(None, ["loss.class_weights=[1", "2]"])


WRONG_TYPES = {
    "eval.tile=32": ("eval.tile", "[integer, integer] or null"),
    "eval.tile=[32]": ("eval.tile", "[integer, integer] or null"),
    "eval.tile=[a,32]": ("eval.tile.0", None),
    "data.scale=2": ("data.scale", "[number, number]"),
    "data.jitter=[1]": ("data.jitter", "[number, number, number]"),
    "train.progressive=[[1]]": ("train.progressive.0", None),
    "train.batch_size=4.5": ("train.batch_size", "integer"),
    "train.device=gpu": ("train.device", "'auto', 'cpu', 'cuda'"),
    "train.compile=maybe": ("train.compile", "true, false, 'regions' or 'reduce-overhead'"),
    "train=4": ("train", "mapping"),
    "data.split_by=[1]": ("data.split_by", "mapping"),
    "data.workers=many": ("data.workers", "integer or 'auto'"),
    "eval.scales=1": ("eval.scales", "list of numbers"),
    "loss.class_weights=[a]": ("loss.class_weights.0", None),
    "loss.terms=[{name: focal, gamma: x}]": ("loss.terms.0.gamma", "number"),
}


@pytest.mark.parametrize("given", WRONG_TYPES)
def test_the_error_about_a_wrong_type_says_what_is_expected(given: str) -> None:
    key, expected = WRONG_TYPES[given]
    with refused("wrong-type", key=key) as caught:
        load_config(None, [given])
    # pydantic's own words for an item of a list
    assert caught.value.values.get("expected") == expected


CLASSES = [
    ("data.classes=[no, yes]", "class-name-not-text", "\"data.classes=['no', 'yes']\""),
    ("data.classes=[3, road]", "class-name-not-text", "\"data.classes=['3', road]\""),
    ("data.classes={no: [1, 2, 3]}", "class-name-not-text", "\"data.classes={'no': [1, 2, 3]}\""),
    ("data.classes={a, b}", "colors-missing", '"data.classes=[a, b]"'),
]


@pytest.mark.parametrize(("given", "code", "fix"), CLASSES)
def test_the_fix_of_names_and_ids_can_be_pasted(given: str, code: str, fix: str) -> None:
    with refused(code, fix=fix) as caught:
        load_config(None, [given])
    assert str(caught.value).endswith(f": {fix}")
    load_config(None, shlex.split(fix))


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ("model.options={1: 2}", "key-not-text", "model.options.1"),
        ("data.classes.a=[2,0,256]", "invalid-color", "data.classes.a"),
        ("data.classes={a: [yes, 0, 1]}", "invalid-color", "data.classes.a"),
        ("data.label_map={0: 0, 3..99999999999: 1}", "label-range", "data.label_map"),
        ("data.label_map={a: 0}", "wrong-type", "data.label_map"),
        ("data.label_map=[0, 1]", "wrong-type", "data.label_map"),
    ],
)
def test_what_classes_and_ids_cannot_be(given: str, code: str, key: str) -> None:
    with refused(code, key=key) as caught:
        load_config(None, [given])
    assert len(str(caught.value)) < 300


IN_FILES = [
    ("optim.lr: 0.5", "dotted-key", {"key": "optim.lr", "fix": "optim: {lr: 0.5}"}),
    ("optim.lrr: 0.5", "dotted-key", {"key": "optim.lrr", "fix": "optim: {lr: 0.5}"}),
    ("data: {split_by.val: 20%}", "dotted-key", {"fix": "data: {split_by: {val: 20%}}"}),
    ("optim: {1: 2}", "unknown-key", {"key": "optim.1"}),
    ("1: 2", "unknown-key", {"key": "1"}),
    ("data: {split_by: {1: 2}}", "unknown-key", {"key": "data.split_by.1"}),
    ("data: {classes: [no, yes]}", "class-name-not-text", {"key": "data.classes"}),
    ("data: {classes: no}", "wrong-type", {"key": "data.classes"}),
]


@pytest.mark.parametrize(("text", "code", "values"), IN_FILES)
def test_mistakes_that_only_a_file_can_contain(
    text: str, code: str, values: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with refused(code, source=f"{tmp_path}/mine.yaml", **values):
        load_config(tmp_path / "mine.yaml")


def test_a_section_without_a_line_is_at_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: ''\noptim:\n  # lr: 0.1\ndata:\n  split_by:\ntrain:\n"
    )
    assert load_config(tmp_path / "mine.yaml") == Config()
    assert load_config(tmp_path / "mine.yaml", ["optim.lr=0.5"]).optim.lr == 0.5
    assert load_saved(tmp_path / "mine.yaml") == Config()


SUGGESTIONS = {
    "train.bach_size=8": "train.batch_size",
    "train.lr=1": "optim.lr",
    "lr=1": "optim.lr",
    "train.epochs=3": "train.duration=20ep",
    "epochs=3": "train.duration=20ep",
    "data.num_workers=3": "data.workers",
    "model.backbone=resnet50": "model.encoder",
    "optimizer.lr=1": "optim",
    "model.name=unet": None,
    "loss.name=dice": None,
    "train.early_stop=3": None,
    "train.gpus=4": None,
    "train.zzz=1": None,
    "model.horse=1": None,
    "log.abcdef=1": None,
    "confusion=x": None,
}


@pytest.mark.parametrize("given", SUGGESTIONS)
def test_an_unknown_key_gets_a_close_suggestion_or_none(given: str) -> None:
    with refused("unknown-key", suggestion=SUGGESTIONS[given]) as caught:
        load_config(None, [given])
    assert SUGGESTIONS[given] is not None or "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("train.early_stop=3", "there is no early stopping"),
        ("train.gpus=4", "torchrun --nproc-per-node"),
        ("confusion=x", "has the keys out, name, data"),
    ],
)
def test_an_unknown_key_without_a_suggestion_gets_an_answer(given: str, words: str) -> None:
    with refused("unknown-key") as caught:
        load_config(None, [given])
    assert words in str(caught.value)


def test_the_known_words_of_other_trainers_lead_to_settings_that_are() -> None:
    known = [key for key, field in fields().items() if not sections_of(field.annotation)]
    for answer in OTHER_TRAINERS.values():
        for word in answer.replace(",", " ").split():
            if "." in word or "=" in word:
                assert word.partition("=")[0] in known


def test_a_profile_is_not_switched_on_with_no_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "on", str(tmp_path), "--ms", "0"]) == 2
    assert "segtrain profile off" in capsys.readouterr().err


def test_a_section_within_a_section_is_known_as_well() -> None:
    mine = [
        "data.layout=folders",
        "data.root=mine",
        "data.images=i",
        "data.masks=m",
        "data.split_by.val=20%",
    ]
    assert (
        load_config(None, [*mine, "data.split_by.group=[a-z]+_"]).data.split_by.group == "[a-z]+_"
    )
    for given, code, suggestion in (
        ("data.split_by.vall=3", "unknown-key", "data.split_by.val"),
        ("data.split_by.horse=3", "unknown-key", None),
        ("data.split_by.seed=yes", "boolean-for-number", None),
    ):
        with refused(code, key=given.partition("=")[0], suggestion=suggestion):
            load_config(None, [*mine, given])


ODD = (
    "",
    "[]",
    "{}",
    "true",
    "-1",
    "1e400",
    "9" * 40,
    ".nan",
    "[[1, 1]]",
    "{1: 2}",
    "2001-99-99",
    "a: b",
    "[{name: [1]}]",
    "*a",
    "\udc80",
)


@pytest.mark.parametrize(
    "section",
    ["out", "data", "model", "loss", "optim", "train", "parallel", "eval", "checkpoint", "log"],
)
def test_no_value_of_any_key_ends_in_anything_but_a_config_or_an_error_with_its_key(
    section: str,
) -> None:
    keys = [key for key in fields() if key.partition(".")[0] == section]
    assert keys
    for key in keys:
        for value in ODD:
            found = outcome(f"{key}={value}")
            if isinstance(found, str):
                assert section in found, (key, value)
            else:
                assert make_config(yaml.safe_load(found.to_yaml())) == found, (key, value)


def outcome(given: str) -> Config | str:
    try:
        return load_config(None, [given])
    except ConfigError as error:
        return str(error)
