"""Tests of the package structure: imports, docs/architecture.md, first lines, and file lengths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "segtrain"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")

BASE = {
    "bins", "bucket", "callable_module", "compat", "config", "cores", "errors", "files", "google_api", "json_text", "kernels", "machines", "memory", "precision", "stacks", "stopping", "terminal", "__version__",
}  # fmt: skip
PARTS = {"data", "models", "losses", "metrics", "optim", "parallel", "observe"}
MAY_IMPORT = {
    "google_api": {"errors"},
    "config": {"bucket", "errors", "files"},
    "bucket": {"errors", "stopping"},
    "compat": set(),
    "errors": set[str](),
    "machines": set(),
    "plan": BASE | PARTS | {"bench", "diagnose", "evaluate", "report", "runs"},
    "files": {"errors"},
    **dict.fromkeys(PARTS, BASE),
    "runs": BASE | {"observe"},
    "checkpoint": BASE | {"models", "observe"},
    "evaluate": BASE | PARTS | {"checkpoint"},
    "diagnose": BASE | {"observe", "runs"},
    "train": BASE | PARTS | {"checkpoint", "evaluate", "diagnose"},
    "infer": BASE | PARTS | {"checkpoint", "evaluate"},
    "bench": BASE | {"data", "diagnose", "observe"},
    "report": BASE | {"observe", "runs", "diagnose"},
}
HOME = {  # outside library -> the one room that touches it
    "segmentation_models_pytorch": "models",
    "timm": "models",
    "triton": "kernels",
    "torchvision.models": "models",
    "torchvision.transforms": "data",
    "torchvision.tv_tensors": "data",
    "albumentations": "data",
    "tensorboard": "observe",
    "mlflow": "observe",
    "wandb": "observe",
    "pandas": "runs",
    "obstore": "bucket",
    "ray": "data",
    "google.auth": "google_api",
    "psutil": "observe",
    "pynvml": "observe",
    "onnx": "infer",
    "onnxruntime": "infer",
    "torch.distributed": "parallel",
    "smdistributed": "parallel",
}
# Ray Train starts ranks, whose network interface psutil knows; the loader of data finds helping hosts by Ray.
ALSO = {"ray": ("platforms",), "psutil": ("platforms", "files", "memory")}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """Dotted names that a file imports, members of a module included; ``at_once``: without those inside functions."""
    package = ["segtrain", *path.relative_to(PACKAGE).parts[:-1]]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path: Path) -> None:
    here = room(path)
    allowed = MAY_IMPORT.get(here)
    for name in imports(path):
        for library, home in HOME.items():
            mine = here in (home, "compat", *ALSO.get(library, ()))
            assert not f"{name}.".startswith(f"{library}.") or mine, f"{library} belongs in {home}"
        if allowed is not None and name.startswith("segtrain."):
            inside = name.removeprefix("segtrain.")
            target = inside.split(".")[0]
            assert target == here or target in allowed or ".".join(inside.split(".")[:2]) in allowed, name


LAUNCH = sorted((ROOT / "launch").rglob("*.py"))
STAND_IN = "standin"  # of SMDDP: part of a rehearsed container, not of the launcher


@pytest.mark.parametrize("path", LAUNCH, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_laptop_can_launch(path: Path) -> None:
    """No torch at all; at the top of a file only what every Python has, so that a bare one can look at a job."""
    if STAND_IN in path.parts:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    light = {*sys.stdlib_module_names, "launch", "segtrain"}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] != "torch"
            if node in tree.body:
                assert name.split(".")[0] in light, f"{name}: import it inside the function that needs it"
                assert not name.startswith("segtrain") or name.startswith(("segtrain.errors", "segtrain.machines")), (
                    name
                )


def test_no_file_imports_itself_by_a_detour() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES if path.stem != "__init__"
    }
    graph = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imports(path, at_once=True)}
        graph[module] = (names & set(modules)) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError with the modules of the circle


@pytest.mark.parametrize("path", [*FILES, *LAUNCH], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_begins_with_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text or text.startswith('"""')


# Packages and files whose first lines say what they provide, in plain English. The list only grows.
PLAIN = [
    "segtrain/arguments.py", "segtrain/bench", "segtrain/checkpoint.py", "segtrain/cli.py", "segtrain/commands.py",
    "segtrain/bucket", "segtrain/compat.py", "segtrain/config", "segtrain/cores.py", "segtrain/data", "segtrain/diagnose",
    "segtrain/doctor", "segtrain/errors.py", "segtrain/evaluate", "segtrain/files.py", "segtrain/google_api.py", "segtrain/infer",
    "segtrain/json_text.py", "segtrain/losses", "segtrain/memory.py", "segtrain/models", "segtrain/observe",
    "segtrain/optim", "segtrain/parallel", "segtrain/platforms", "segtrain/prove", "segtrain/report",
    "segtrain/runs", "segtrain/stacks.py", "segtrain/terminal.py", "segtrain/train",
]  # fmt: skip


@pytest.mark.parametrize("part", PLAIN)
def test_the_first_line_of_a_file_is_not_a_question(part: str) -> None:
    files = [path for path in [*FILES, *LAUNCH] if path.is_relative_to(ROOT / part)]
    assert files, f"there is no {part}"
    for path in files:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert "?" not in first, f"{path.relative_to(ROOT)}: {first}"


# Files that may have over 300 lines. The list only shrinks.
LONG: set[str] = set()


def test_files_stay_under_300_lines() -> None:
    long = {
        str(path.relative_to(ROOT))
        for path in [*FILES, *LAUNCH]
        if len(path.read_text(encoding="utf-8").splitlines()) > 300
    }
    assert long <= LONG, f"divide these files: {sorted(long - LONG)}"


def test_files_and_tests_named_on_the_page_exist() -> None:
    named = re.findall(r"`((?:segtrain|tests)/[\w/.]*)(?:::(\w+))?`", PAGE)
    assert len(named) > 30
    for file, test in named:
        assert (ROOT / file).exists(), file
        if test:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_functions_and_classes_named_on_the_page_are_where_it_says() -> None:
    named = re.findall(r"`(?:\w+\.)?(\w+)`[^`\n|]* (?:in|of) `(segtrain/[\w/]+\.py)`", PAGE)
    assert len(named) >= 8
    for name, file in named:
        assert re.search(rf"(?:def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8")), f"{file}: {name}"


def test_the_light_rooms_import_no_torch() -> None:
    code = (
        "import sys\n"
        "import segtrain.cli, segtrain.arguments, segtrain.commands, segtrain.config, segtrain.bench.data, segtrain.doctor, segtrain.data.order, segtrain.data.datasets, segtrain.parallel.cluster, segtrain.report.page, segtrain.report.diff, segtrain.diagnose.words, segtrain.plan.command, segtrain.plan.words, segtrain.plan.terms\n"
        "from segtrain.observe import journal\nfrom segtrain.runs import remote, table\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
