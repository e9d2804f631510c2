"""Is every setting that could never work refused at once, by its name, before torch is imported or anything is made?"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from segtrain.cli import main
from segtrain.config import Config, load_config, load_saved, make_config
from segtrain.data import cache
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.train import early
from segtrain.train.plan import make_plan

GIB = 2**30

# What is given, and what the one line must name.
NUMBERS = {
    "eval.tile=[0,0]": "at least 8",
    "eval.tile=[-4,4]": "at least 8",
    "eval.tile=[8,1000000]": "at most 65,536",
    "eval.size=[0,1]": "at least 8",
    "eval.scales=[0]": "0.01",
    "eval.scales=[-1]": "0.01",
    "eval.scales=[1e4]": "16",
    "eval.scales=[.nan]": "finite",
    "eval.scales=[.inf]": "finite",
    "eval.scales=[]": "at least 1",
    "eval.overlap=0.999": "0.95",
    "eval.every=0st": "'1st'",
    "eval.every=10%": "'20ep'",
    "eval.every=soon": "auto",
    "eval.batch_size=1000000000": "65536",
    "checkpoint.every=0st": "'1st'",
    "checkpoint.every=0.0ep": "'1st'",
    "train.duration=0st": "'1st'",
    "train.duration=99999999999999999999ep": "1,000,000,000",
    "train.duration=50%": "'20ep'",
    "train.seed=18446744073709551616": "18446744073709551616",
    "train.seed=-1": "0",
    "train.seed=1.5": "integer",
    "train.progressive=[[.nan,1]]": "finite",
    "optim.lr=true": "true and false are no numbers",
    "optim.lr=.inf": "finite",
    "optim.lr=.nan": "finite",
    "optim.betas=[1,1]": "less than 1",
    "optim.betas=[2,.9]": "less than 1",
    "optim.betas=[-1,.9]": "0",
    "optim.betas=[.nan,.nan]": "finite",
    "optim.betas=[.9]": "betas",
    "optim.clip=.inf": "finite",
    "optim.warmup=100%": "shorten",
    "parallel.threads=0": "1",
    "parallel.threads=-1": "1",
    "parallel.procs=0": "1",
    "parallel.procs=on": "true and false are no numbers",
    "parallel.timeout_s=.inf": "finite",
    "parallel.timeout_s=1e30": "2592000",
    "parallel.bucket_mb=1e30": "65536",
    "data.crop=[2147483648,8]": "at most 65,536",
    "data.crop=[yes,8]": "true and false are no numbers",
    "data.jitter=[-1,0,0]": "0",
    "data.jitter=[.nan,0,0]": "finite",
    "data.scale=[0,1]": "0.01",
    "data.scale=[1,1e9]": "100",
    "data.scale=[.inf,.inf]": "finite",
    "data.base_scale=1e9": "100",
    "data.scenes=100000000000": "1000000",
    "data.prefetch=1000000000": "1024",
    "data.label_map={yes: 1}": "true and false are no numbers",
    "loss.class_weights=[-1,1]": "at least 0",
    "loss.class_weights=[0,0]": "one above 0",
    "loss.class_weights=[.nan,1]": "finite",
    "loss.terms=[{name: tversky, alpha: 0, beta: 0}]": "alpha=0 and beta=0",
    "loss.terms=[{name: focal, gamma: .inf}]": "finite",
    "loss.terms=[{name: dice, weight: yes}]": "true and false are no numbers",
    "log.hang_s=.inf": "hang_s",
    'out="a\\nb"': "line break",
    'out="a\\eb"': "control character",
    'name="a\\tb"': "control character",
}

# What needs a look beyond the settings themselves: the number of ranks, the memory (here 16 GiB), the libraries.
EARLY = {
    "parallel.procs=1000": "for 1000 ranks",
    "train.batch_size=1000000000": "train.batch_size=1000000000",
    "data.crop=[60000,60000]": "data.crop=[60000, 60000]",
    "data.scene_size=[65000,65000]": "data.scene_size=[65000, 65000]",
    "eval.size=[65000,65000]": "eval.size=[65000, 65000]",
    "model.arch=unett": "did you mean 'unet'?",
    "model.arch=torchvision/nonsense": "torchvision/fcn_resnet50",
}


@pytest.mark.parametrize("given", NUMBERS)
def test_a_value_that_cannot_work_is_refused_by_its_key(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [given])
    text, key = str(caught.value), given.partition("=")[0]
    assert key in text.replace("a tversky term", "loss.terms")
    assert NUMBERS[given] in text
    lines = text.splitlines()
    assert len(lines) == 1 or all(f"{key}." in line for line in lines)  # a line for each wrong member of a list


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
    settings = ["train.batch_size=2", "data.crop=[32,32]", "parallel.procs=2", "train.device=cpu", given]
    assert main(["train", *settings]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert EARLY[given] in told[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["model.encoder=resnet17"], ("'resnet17'", "did you mean 'resnet18'?")),
        (["model.encoder=tu-resnet18x"], ("'tu-resnet18x'", "'tu-resnet18'")),
        (["model.encoder_weights=imagenett"], ("'imagenett'", "did you mean 'imagenet'?")),
    ],
)
def test_an_encoder_that_no_library_knows(given: list[str], words: tuple[str, ...]) -> None:
    pytest.importorskip("segmentation_models_pytorch")
    with pytest.raises(ConfigError) as caught:
        early.refuse(load_config(None, ["model.arch=unet", *given]), 1, 1, alone=False)
    assert all(word in str(caught.value) for word in words)


def test_every_encoder_that_a_library_knows_is_let_through() -> None:
    encoders = pytest.importorskip("segmentation_models_pytorch").encoders
    timm = pytest.importorskip("timm")
    names = [
        (name, weights) for name in encoders.encoders for weights in encoders.encoders[name]["pretrained_settings"]
    ]
    for name, weights in [*names, *((f"tu-{name}", "imagenet") for name in timm.list_models())]:
        model = {"arch": "unet", "encoder": name, "encoder_weights": weights}
        early.refuse_names(load_config().model.model_copy(update=model))


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
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run holds a run with other settings (optim.lr: 0.5 there, 0.001 here)" in done.stderr


def test_ranks_that_others_started_do_not_look_at_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = load_config(None, [f"out={tmp_path}/file"])
    early.refuse(config, 2, 2, alone=False)
    with pytest.raises(ConfigError, match="is a file"):
        early.refuse(config, 2, 2, alone=True)


@pytest.mark.usefixtures("memory")
def test_each_rank_of_a_host_counts_in_what_samples_need() -> None:
    config = load_config(None, ["data.crop=[4096,4096]", "train.batch_size=32", "data.prefetch=4"])
    early.refuse_sizes(config, 8, 4)  # 5 steps of 16 images on this host: 5 GiB
    with pytest.raises(ConfigError, match=r"40\.0 GiB"):
        early.refuse_sizes(load_config(None, ["data.crop=[8192,8192]", "train.batch_size=32"]), 8, 8)


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
        ConfigError, match=r"3\.9 GiB in each of 4 ranks, 15\.6 GiB together; this machine has 16\.0 GiB"
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
    for steps, warmup, expected in ((1, "10%", 0), (2, "50%", 1), (2, "99%", 1), (4, "10%", 1), (100, "10%", 10)):
        config = load_config(None, [f"train.duration={steps}st", f"optim.warmup={warmup}"])
        assert make_plan(config, 100, Cluster(), has_gpu=False).warmup == expected
    with pytest.raises(ConfigError, match=r"optim\.warmup=1ep is 7 steps, but the run has 3"):
        make_plan(load_config(None, ["train.duration=3st", "optim.warmup=1ep"]), 100, Cluster(), has_gpu=False)


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


def test_what_the_shell_has_cut_is_told_to_be_quoted() -> None:
    with pytest.raises(ConfigError, match=r"'data\.classes=\[a, b, c\]'"):
        load_config(None, ["data.classes=[a,", "b,", "c]"])
    with pytest.raises(ConfigError, match=r"""quote it: 'loss\.class_weights="\[1"'"""):
        load_config(None, ["loss.class_weights=[1"])


IN_WORDS = {
    "eval.tile=32": "eval.tile=32: expected [integer, integer] or null, as eval.tile=[32, 32]",
    "eval.tile=[32]": "eval.tile=[32]: expected [integer, integer] or null, as eval.tile=[32, 32]",
    "eval.tile=[a,32]": "eval.tile.0='a': expected an integer",
    "data.scale=2": "data.scale=2: expected [number, number], as data.scale=[0.5, 2.0]",
    "data.jitter=[1]": "data.jitter=[1]: expected [number, number, number], as data.jitter=[0.3, 0.3, 0.3]",
    "train.progressive=[[1]]": "train.progressive.0=[1]: expected [number, number]",
    "train.batch_size=4.5": "train.batch_size=4.5: expected an integer",
    "train.device=gpu": "train.device='gpu': expected 'auto', 'cpu' or 'cuda'",
    "train.compile=maybe": "train.compile='maybe': expected true or false",
    "train=4": "train=4: expected a mapping, as train={duration: 20ep}",
    "data.split_by=[1]": "data.split_by=[1]: expected a mapping",
    "data.workers=many": "data.workers='many': expected an integer or 'auto'",
    "eval.scales=1": "eval.scales=1: expected a list of numbers, as eval.scales=[1.0]",
    "loss.class_weights=[a]": "loss.class_weights.0='a': expected a number",
    "loss.terms=[{name: focal, gamma: x}]": "loss.terms.0.gamma='x': expected a number",
    "log.every=0": "log.every=0: must be greater than or equal to 1",
    "model.options={1: 2}": "model.options.1: the key 1 must be text: quote it, as '1'",
    "data.classes=[no, yes]": "data.classes: YAML reads no and off as false, and yes and on as true: put such names in quotes: "
    "\"data.classes=['no', 'yes']\"",
    "data.classes=[3, road]": "data.classes: 3 is not text: put such names in quotes: \"data.classes=['3', road]\"",
    "data.classes={no: [1, 2, 3]}": "data.classes: YAML reads no and off as false, and yes and on as true: put such names in quotes: "
    "\"data.classes={'no': [1, 2, 3]}\"",
    "data.classes={a, b}": 'data.classes: names without colors are a list: "data.classes=[a, b]"',
    "data.classes.a=[2,0,256]": "data.classes.a=[2, 0, 256]: a color is [red, green, blue], integers from 0 to 255; several are "
    "[[...], [...]], and [] is none",
    "data.classes={a: [yes, 0, 1]}": "data.classes.a=[True, 0, 1]: a color is [red, green, blue], integers from 0 to 255; several are "
    "[[...], [...]], and [] is none",
    "data.label_map={0-2: 0, 3..4: 1}": "data.label_map: '0-2' is not an id, and there are no ranges: write out each id: "
    '"data.label_map={0: 0, 1: 0, 2: 0, 3: 1, 4: 1}"',
    "data.label_map={0-99999999999: 0}": "data.label_map: '0-99999999999' is not an id, and there are no ranges: write out each id: "
    "data.label_map={0: 0, 1: 0, ...}",
    "data.label_map={a: 0}": "data.label_map={a: 0}: expected raw id: train id, both integers, as data.label_map={0: 0, 255: 1}",
    "data.label_map=[0, 1]": "data.label_map=[0, 1]: expected raw id: train id, both integers, as data.label_map={0: 0, 255: 1}",
}  # fmt: skip


@pytest.mark.parametrize("given", IN_WORDS)
def test_a_value_of_another_kind_is_told_what_is_wanted(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [given])
    assert str(caught.value) == f"the command line: {IN_WORDS[given]}"


def test_names_and_maps_that_are_shown_can_be_pasted() -> None:
    for given in ("data.classes=[no, yes]", "data.classes={no: [1, 2, 3]}", "data.label_map={0-2: 0, 3..4: 1}"):
        with pytest.raises(ConfigError) as caught:
            load_config(None, [given])
        (fixed,) = shlex.split(re.search('"data.*"$', str(caught.value))[0])  # type: ignore[index]
        load_config(None, [fixed])


IN_FILES = {
    "optim.lr: 0.5": "unknown key 'optim.lr': dots are for the command line; in a file it is nested: optim: {lr: 0.5}",
    "optim.lrr: 0.5": "unknown key 'optim.lrr': dots are for the command line; in a file it is nested: optim: {lr: 0.5}",
    "data: {split_by.val: 20%}": "unknown key 'data.split_by.val': dots are for the command line; in a file it is nested: "
    "data: {split_by: {val: 20%}}",
    "optim: {1: 2}": "unknown key 'optim.1': 'adamw' has name, lr, encoder_lr, weight_decay, schedule, poly_power, warmup, clip, ema, betas",
    "1: 2": "unknown key '1': the sections are out, name, data, model, loss, optim, train, parallel, eval, checkpoint, log",
    "data: {split_by: {1: 2}}": "unknown key 'data.split_by.1': data.split_by has val, test, seed, group, of",
    "data: {classes: [no, yes]}": "data.classes: YAML reads no and off as false, and yes and on as true: put such names in quotes: "
    "\"data.classes=['no', 'yes']\"",
    "data: {classes: no}": "data.classes=False: expected a list of names, a mapping of names to colors, or a file",
}  # fmt: skip


@pytest.mark.parametrize("text", IN_FILES)
def test_what_only_a_file_can_hold(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mine.yaml")
    assert str(caught.value) == f"{tmp_path}/mine.yaml: {IN_FILES[text]}"


def test_a_section_without_a_line_is_at_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: ''\noptim:\n  # lr: 0.1\ndata:\n  split_by:\ntrain:\n")
    assert load_config(tmp_path / "mine.yaml") == Config()
    assert load_config(tmp_path / "mine.yaml", ["optim.lr=0.5"]).optim.lr == 0.5
    assert load_saved(tmp_path / "mine.yaml") == Config()


HINTS = {
    "train.bach_size=8": "did you mean 'train.batch_size'?",
    "train.lr=1": "did you mean 'optim.lr'?",
    "lr=1": "did you mean 'optim.lr'?",
    "train.epochs=3": "here it is train.duration=20ep",
    "epochs=3": "here it is train.duration=20ep",
    "data.num_workers=3": "here it is data.workers",
    "model.backbone=resnet50": "here it is model.encoder",
    "train.early_stop=3": "there is no early stopping",
    "train.gpus=4": "torchrun --nproc-per-node",
    "optimizer.lr=1": "did you mean 'optim'?",
    "confusion=x": "the sections are out, name, data",
}


@pytest.mark.parametrize("given", HINTS)
def test_a_hint_is_near_or_there_is_none(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [given])
    assert HINTS[given] in str(caught.value)


@pytest.mark.parametrize("given", ["train.zzz=1", "model.horse=1", "log.abcdef=1"])
def test_nothing_near_is_no_hint(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [given])
    assert "did you mean" not in str(caught.value)
    assert f"{given.partition('.')[0]} has " in str(caught.value)


def test_the_known_words_of_other_trainers_lead_to_settings_that_are() -> None:
    from segtrain.config.mistakes import ELSEWHERE, known_keys

    for answer in ELSEWHERE.values():
        for word in answer.replace(",", " ").split():
            if "." in word or "=" in word:
                assert word.partition("=")[0] in known_keys()


def test_a_profile_is_not_switched_on_with_no_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "on", str(tmp_path), "--ms", "0"]) == 2
    assert "segtrain profile off" in capsys.readouterr().err


def test_a_section_within_a_section_is_known_as_well() -> None:
    mine = ["data.layout=folders", "data.root=mine", "data.images=i", "data.masks=m", "data.split_by.val=20%"]
    assert load_config(None, [*mine, "data.split_by.group=[a-z]+_"]).data.split_by.group == "[a-z]+_"
    for given, words in (
        ("data.split_by.vall=3", "did you mean 'data.split_by.val'?"),
        ("data.split_by.horse=3", "data.split_by has val, test"),
        ("data.split_by.seed=yes", "true and false are no numbers"),
    ):
        with pytest.raises(ConfigError, match=r"data\.split_by") as caught:
            load_config(None, [*mine, given])
        assert words in str(caught.value)


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
    "section", ["out", "data", "model", "loss", "optim", "train", "parallel", "eval", "checkpoint", "log"]
)
def test_no_value_of_any_key_ends_in_anything_but_a_config_or_an_error_with_its_key(section: str) -> None:
    from segtrain.config.mistakes import fields

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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["data.jitter_p=0.5"], ["data.color_jitter_prob=0.5"]),
        (["data.scale_law=uniform"], ["data.scale_sampling=uniform"]),
        (["data.balance=0.25"], ["data.class_balanced_crop_prob=0.25"]),
        (["data.colour=cpu"], ["data.color_jitter_on=cpu"]),
        (["data.transforms_at=instead"], ["data.transforms_mode=replace"]),
        (["loss.terms=[ce, {name: ohem, keep: 0.5}]"], ["loss.terms=[ce, {name: ohem, min_kept: 0.5}]"]),
    ],
)
def test_a_renamed_setting_keeps_its_old_name_and_its_hash(old: list[str], new: list[str], tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="is now called") as warned:
        config = load_config(None, old)
    assert len(warned) == 1
    assert config == load_config(None, new)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml").hash == config.hash


@pytest.mark.parametrize(
    ("settings", "known"),
    [  # as the release before the new names computed them
        (
            ["data.color_jitter_prob=0.5", "data.class_balanced_crop_prob=0.25", "data.scale_sampling=uniform"],
            "694c6df1",
        ),
        (["data.transforms_mode=replace", "loss.terms=[ce, {name: ohem, min_kept: 0.5}]"], "a37c79d4"),
    ],
)
def test_a_run_keeps_the_hash_that_it_had_under_the_old_names(settings: list[str], known: str) -> None:
    assert load_config(None, settings).hash == known


def test_the_old_and_the_new_name_of_a_setting_are_not_taken_together() -> None:
    with pytest.raises(ConfigError, match="jitter_p"):
        load_config(None, ["data.jitter_p=0.5", "data.color_jitter_prob=0.5"])
