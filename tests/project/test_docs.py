"""Tests that the commands on the pages run and that the page of settings is current.

Every ```bash block runs line by line, in a folder that holds what the pages mention: a trained run,
photos, a small data set, a tiny CamVid, and the configs of the repository with settings so small
that a run takes a second. ```python blocks run as well. A ```yaml or ```python block whose first
line is a file name is written to that file. What needs GPUs or several hosts is a ```text block,
and code of another library is a ```py block, which is only parsed.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from annotated_sets import coco
from pages import PAGES, ROOT, blocks

from segtrain.config import Config

TINY = {
    "data": {"scenes": 9, "scene_size": [48, 64], "crop": [32, 48], "workers": 0},
    "train": {"duration": "2st", "batch_size": 4},
    "parallel": {"procs": 1, "threads": 1},
    "eval": {"every": "2st"},
    "checkpoint": {"every": "2st"},
    "log": {"pictures": 2, "tensorboard": False},
}
SLOW = "prove.md"
ONNX = "export.md"  # an ONNX file takes many seconds: once is enough
# Those of ray.md need the extra ray; those of gpu-bench.md take minutes
# (tests/project/test_gpu_bench.py rehearses them).
WITHOUT_COMMANDS = {"architecture.md", "glossary.md", "gpu-bench.md", "ray.md", "sweep.md"}
NEEDS = {"transforms.md": "albumentations"}


def commands(text: str) -> list[list[str]]:
    """Words of each line; a comment and an empty line are none, and a backslash at its end
    continues a line.
    """
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def all_commands(page: Path) -> list[list[str]]:
    return [
        words for language, text in blocks(page) if language == "bash" for words in commands(text)
    ]


def make_tiny(text: str) -> str:
    """A config with TINY's values in the place of its own, for the keys of TINY that it may
    have.
    """
    content = yaml.safe_load(text)
    for section, settings in TINY.items():
        content[section] = {**content.get(section, {}), **settings}
    if content["data"].get("layout", "scenes") != "scenes":
        content["data"] = {k: v for k, v in content["data"].items() if not k.startswith("scene")}
    # a share of the run shrinks with it, steps do not
    if content.get("optim", {}).get("warmup", "").endswith("st"):
        content["optim"]["warmup"] = "1st"
    return yaml.safe_dump(content)


def pair(root: Path, split: str, folders: tuple[str, str], ids: list[int]) -> None:
    draw = np.random.default_rng(len(split))
    for k in range(5):
        image = draw.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        mask = np.kron(draw.choice(ids, (6, 8)), np.ones((8, 8))).astype(np.uint8)
        for folder, picture in zip(folders, (image, mask)):
            place = root / folder.format(split)
            place.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"{k}.png"), picture)


@pytest.fixture(scope="module")
def prepared(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("docs")
    (root / "configs").mkdir()
    for config in (ROOT / "configs").glob("*.yaml"):
        (root / "configs" / config.name).write_text(make_tiny(config.read_text()))
    for split in ("train", "val", "test"):
        pair(root / "CamVid", split, ("{}", "{}annot"), [*range(11), 11])
    for split in ("train", "val"):
        pair(root / "my-data", split, ("images/{}", "masks/{}"), [0, 1, 2, 9])
    coco(
        root / "my-export",
        [[k, "road", [2, 2, 40, 2, 40, 30, 2, 30]] for k in range(6)],
        6,
        (48, 64),
    )
    pair(root, "", ("photos", "unused"), [0])
    (root / "photos/0.png").rename(root / "photos/one.png")
    process = zygote.start("train", "configs/scenes.yaml", "out=runs/street", cwd=root)
    assert process.wait() == 0, process.output
    return root


@pytest.fixture
def workshop(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "here"))


def run(zygote: Any, words: list[str], here: Path) -> None:
    """One command of a page; ranks are forked in the place of what torchrun would start."""
    launchers = [
        ["python", f"launch/{platform}.py"] for platform in ("sagemaker", "vertex", "slurm")
    ]
    if (words[:2] in launchers and words[-1] == "--dry-run") or words[:2] == [
        "python",
        "launch/cluster.py",
    ]:
        done = subprocess.run(
            [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return
    if words[0] == "segtrain":
        processes = [zygote.start(*words[1:], cwd=here)]
    elif words[:2] == ["torchrun", "--nproc-per-node"] and words[3:5] == ["-m", "segtrain"]:
        processes = zygote.start_ranks(int(words[2]), *words[5:], cwd=here)
    elif words[:2] == ["torchrun", "--nproc-per-node"] and words[3].endswith(".py"):
        processes = zygote.start_ranks(int(words[2]), code=(here / words[3]).read_text(), cwd=here)
    else:
        pytest.fail(
            f"a command that no test can run: {shlex.join(words)}; put it into a ```text block"
        )
    codes = [process.wait() for process in processes]
    assert codes == [0] * len(codes), f"{shlex.join(words)}\n{processes[0].output}"


def run_page(zygote: Any, page: Path, here: Path) -> int:
    """How many commands and programs of the page ran."""
    if page.name in NEEDS and importlib.util.find_spec(NEEDS[page.name]) is None:
        pytest.skip(f"the extra {NEEDS[page.name]!r} is not installed")
    count = 0
    for language, text in blocks(page):
        if language == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", text)
            assert name, f"{page.name}: a yaml block begins with its file's name"
            (here / name[1]).write_text(make_tiny(text))
        elif language == "bash":
            for words in commands(text):
                if words[:2] == ["segtrain", "prove"] and page.name != SLOW:
                    # it takes long: once is enough
                    assert words in all_commands(ROOT / "docs" / SLOW)
                    continue
                if words[:2] == ["segtrain", "export"] and "safetensors" not in words:
                    if page.name == ONNX:
                        pytest.importorskip(
                            "onnxruntime", reason="the extra 'export' is not installed"
                        )
                    else:
                        words = [*words, "--formats", "safetensors"]
                run(zygote, words, here)
                count += 1
        elif language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (here / name[1]).write_text(text)
        elif language == "python":
            for library in ("pandas",) if "data_frame" in text else ():
                pytest.importorskip(library)
            process = zygote.start(code=text, cwd=here)
            assert process.wait() == 0, f"{text}\n{process.output}"
            count += 1
        elif language == "py":
            ast.parse(text)
        else:
            assert language == "text", (
                f"{page.name}: ```{language}: use bash, python, py, yaml, or text"
            )
    return count


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name == SLOW)) for p in PAGES]
)
def test_the_commands_of_a_page_run(zygote, workshop, page):
    count = run_page(zygote, page, workshop)
    assert count or page.name in WITHOUT_COMMANDS


@pytest.mark.slow
def test_torchrun_really(workshop):
    """The command of train.md as a user's shell starts it."""
    words = next(words for words in all_commands(ROOT / "docs/train.md") if words[0] == "torchrun")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        torchrun, cwd=workshop, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 2/2") == 1
    assert "2 x cpu" in done.stdout


def test_the_page_of_settings_is_current():
    spec = importlib.util.spec_from_file_location(
        "make_config_page", ROOT / "docs/make_config_page.py"
    )
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), (
        "run python docs/make_config_page.py"
    )


def test_every_setting_is_described():
    schema = Config.model_json_schema()
    for section in schema["$defs"].values():
        for key, field in section["properties"].items():
            assert field.get("description"), key


def test_the_picture_of_the_architecture_names_the_packages():
    picture = (ROOT / "docs/images/architecture.svg").read_text(encoding="utf-8")
    packages = picture.partition(">The packages")[2].partition(">Beside the package")[0]
    named = {
        name
        for title in re.findall(r'class="t"[^>]*>([^<]*)<', packages)
        for name in title.split(", ")
    } - {"..."}
    there = {path.stem for path in (ROOT / "segtrain").glob("*.py")}
    folders = {path.parent.name for path in (ROOT / "segtrain").glob("*/__init__.py")}
    assert folders - {"runs"} <= named <= there | folders, named ^ folders


def test_configs_that_are_named_are_there():
    """Also in the docstrings of commands, which are their help texts."""
    files = [
        *PAGES,
        *(path for folder in ("launch", "segtrain") for path in (ROOT / folder).rglob("*.py")),
    ]
    named = {
        (name, file)
        for file in files
        for name in re.findall(r"configs/[\w./-]+\.yaml", file.read_text("utf-8"))
    }
    assert named
    assert not sorted(str(file) for name, file in named if not (ROOT / name).is_file())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "verb",
    [
        "train",
        "eval",
        "predict",
        "export",
        "data check",
        "data pack",
        "bench data",
        "doctor",
        "profile",
        "runs",
        "diagnose",
        "report",
        "diff",
        "sweep",
        "prove",
    ],
)
def test_each_verb_has_a_page_which_the_readme_links(verb):
    name = f"docs/{verb.replace(' ', '-')}.md"
    assert (ROOT / name).read_text(encoding="utf-8").startswith(f"# segtrain {verb}\n")
    assert f"]({name})" in (ROOT / "README.md").read_text(encoding="utf-8")
