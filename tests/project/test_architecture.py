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

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "segtrain"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
GUIDES = {
    "docs/architecture.md": PAGE,
    "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
}


def allowed_imports() -> dict[str, set[str] | None]:
    """What each package may import, from the table of the page; None: everything."""
    allowed: dict[str, set[str] | None] = {}
    for names, rule in re.findall(
        r"^\| (`segtrain/[^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE
    ):
        above, named = list(allowed), set(re.findall(r"`(\w+)`", rule))
        if rule.startswith("the rows above"):
            packages = set(above) - named
        elif rule.endswith("the rows above it"):
            packages = set(above[: 1 + max(above.index(name) for name in named)])
        else:
            packages = named
        for name in re.findall(r"`segtrain/(\w+)(?:/|\.py)`", names):
            allowed[name] = None if rule.startswith("everything") else packages
    return allowed


MAY_IMPORT = allowed_imports()
HOME = {  # outside library -> the one package that touches it
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
    "pandas": "insight",
    "optuna": "runs",
    "obstore": "bucket",
    "ray": "platforms",
    "google.auth": "platforms",
    "psutil": "observe",
    "pynvml": "observe",
    "onnx": "infer",
    "onnxruntime": "infer",
    "torch.distributed": "parallel",
    "smdistributed": "parallel",
}
ALSO = {"psutil": ("platforms", "base"), "pandas": ("runs",)}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """Dotted names that a file imports, members of a module included; ``at_once``: without those
    inside functions.
    """
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
def test_arrows_point_one_way(path):
    here = package_of(path)
    allowed = MAY_IMPORT.get(here) if here == "__main__" else MAY_IMPORT[here]
    for name in imports(path):
        for library, home in HOME.items():
            mine = here in (home, *ALSO.get(library, ())) or path.name == "compat.py"
            assert not f"{name}.".startswith(f"{library}.") or mine, f"{library} belongs in {home}"
        if allowed is not None and name.startswith("segtrain."):
            target = name.removeprefix("segtrain.").partition(".")[0]
            assert target in (here, "__version__", *allowed), name


LAUNCH = sorted((ROOT / "launch").rglob("*.py"))
STAND_IN = "standin"  # of SMDDP: part of a rehearsed container, not of the launcher


@pytest.mark.parametrize("path", LAUNCH, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_laptop_can_launch(path):
    """No torch at all; at the top of a file only what every Python has, so that a bare one can look
    at a job.
    """
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
                assert name.split(".")[0] in light, (
                    f"{name}: import it inside the function that needs it"
                )
                assert not name.startswith("segtrain") or name.startswith(
                    ("segtrain.errors", "segtrain.machines")
                ), name


def test_no_file_imports_itself_by_a_detour():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in FILES
        if path.stem != "__init__"
    }
    graph = {}
    for module, path in modules.items():
        names = {
            name if name in modules else name.rpartition(".")[0]
            for name in imports(path, at_once=True)
        }
        graph[module] = (names & set(modules)) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError with the modules of the circle


@pytest.mark.parametrize("path", [*FILES, *LAUNCH], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_begins_with_a_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert not text or text.startswith('"""')


def test_a_class_name_has_one_meaning():
    places: dict[str, list[str]] = {}
    for path in [*FILES, *LAUNCH]:
        if STAND_IN in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_the_first_line_of_a_file_is_not_a_question():
    for path in [*FILES, *LAUNCH]:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert "?" not in first, f"{path.relative_to(ROOT)}: {first}"


# Files that may have over 400 lines: a table of flags, and kernels. The list only shrinks.
LONG = {"segtrain/arguments.py", "segtrain/kernels/loss.py"}


def test_files_stay_under_400_lines():
    long = {
        str(path.relative_to(ROOT))
        for path in [*FILES, *LAUNCH]
        if len(path.read_text(encoding="utf-8").splitlines()) > 400
    }
    assert long <= LONG, f"divide these files: {sorted(long - LONG)}"


@pytest.mark.parametrize("guide", GUIDES)
def test_files_and_tests_that_a_guide_names_exist(guide):
    named = re.findall(r"`((?:segtrain|launch|tests)/[\w/.]*)(?:::(\w+))?`", GUIDES[guide])
    assert len(named) > 20
    for file, test in named:
        assert (ROOT / file).exists() or "NAME" in file, file
        if test:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_the_page_lists_every_file():
    listed, folder = set[str](), ""
    for line in PAGE.split("```text\n")[1].split("```")[0].splitlines():
        if line.startswith(" "):
            listed |= {folder + name for name in line.split()}
        else:
            folder = line.split()[0]
    there = {
        str(path.relative_to(ROOT)).removesuffix(".py")
        for name in ("segtrain", "launch")
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".cpp", ".csv") and not path.stem.startswith("__")
    }
    assert listed == {name for name in there if "/planted/" not in name and "/standin/" not in name}


@pytest.mark.parametrize("guide", GUIDES)
def test_functions_classes_and_tables_are_where_a_guide_says(guide):
    text = re.sub(r"\n +", " ", GUIDES[guide])  # each item of a list in one line
    named = re.findall(r"`(?:\w+\.)?(\w+)`[^`\n|]* (?:in|of) `(segtrain/[\w/]+\.py)`", text)
    assert len(named) >= 6
    for name, file in named:
        code = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"(?:def|class) {name}\b|^ *{name}\b(?:.* =|:)", code, re.MULTILINE), (
            f"{file}: {name}"
        )


def test_the_light_packages_import_no_torch():
    code = (
        "import sys\n"
        "import segtrain.cli, segtrain.arguments, segtrain.commands, segtrain.config, segtrain.insight.bench.data, segtrain.insight.doctor, segtrain.data.order, segtrain.data.datasets, segtrain.parallel.cluster, segtrain.insight.report.page, segtrain.insight.report.diff, segtrain.insight.diagnose.words, segtrain.insight.plan.command, segtrain.insight.plan.words, segtrain.insight.plan.terms\n"
        "from segtrain.observe import journal\nfrom segtrain.insight.runs import remote, table\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_test_file_imports_no_other():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        names = re.findall(r"^(?:from|import) (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        assert not names, f"{path.relative_to(ROOT)}: what {names} share goes to tests/kit/"
