"""Tests of `segtrain doctor`: packages, GPU, machine, and decoders, present and missing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from segtrain.cli import main
from segtrain.errors import SegtrainError
from segtrain.insight.doctor import machine, packages
from segtrain.insight.doctor.line import NOTE, OK, PROBLEM, CheckLine

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SECONDS", 0.01)


def test_the_page(capsys, monkeypatch):
    monkeypatch.delenv("SEGTRAIN_NATIVE", raising=False)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("python", "packages", "gpu", "opencv", "cores", "memory", "cache", "decoder"):
        assert re.search(rf"^(ok|note|problem) +{name} ", text, re.MULTILINE), name
    assert re.search(r"decoder +native|decoder +packages: .*not built", text)
    assert re.search(r"\d\.\d ms of CPU per sample", text)
    assert text.rstrip().endswith(("note", "notes"))


def test_without_torch_training_is_impossible(capsys, monkeypatch):
    real = packages.version
    monkeypatch.setattr(packages, "version", lambda name: None if name == "torch" else real(name))
    monkeypatch.setattr(machine, "decoders", lambda: iter([]))
    assert main(["doctor"]) == 2
    text = capsys.readouterr().out
    assert re.search(r"^problem +torch +missing.*\n +pip install 'torch>=2.4'$", text, re.MULTILINE)
    assert "training is impossible" in text


def test_on_windows_training_is_impossible(monkeypatch):
    monkeypatch.setattr(
        packages, "sys", SimpleNamespace(platform="win32", version_info=sys.version_info)
    )
    assert [line.name for line in packages.checks() if line.fatal] == ["system"]


def test_a_missing_opencv_is_a_line_and_no_traceback():
    code = (
        "import sys\nsys.modules['cv2'] = None\nfrom segtrain.insight.doctor import doctor, packages\nreal = packages.version\n"
        "packages.version = lambda name: None if 'opencv' in name else real(name)\nsys.exit(doctor())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert re.search(r"^problem +opencv +missing", done.stdout, re.MULTILINE), done.stdout


def test_what_is_needed_and_optional_is_what_pyproject_says():
    wanted = re.search(r"^dependencies = \[\n(.*?)^\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert wanted is not None
    listed = dict(re.findall(r'"([\w-]+)>=([\d.]+)', wanted[1]))
    assert packages.OPENCV[0] in listed
    # nvidia-ml-py comes with an install on Linux, but nothing but the profile of GPUs needs it.
    elsewhere = (packages.OPENCV[0], "simplejpeg", "nvidia-ml-py")
    looked_at = {name: least for name, least in listed.items() if name not in elsewhere}
    assert looked_at == packages.NEEDED
    for package, (extra, _) in packages.OPTIONAL.items():
        line = re.search(rf"^{extra} = \[(.*)\]", PYPROJECT, re.MULTILINE)
        assert line is not None, f"pyproject.toml has no extra {extra!r}"
        assert f'"{package}' in line[1]


def test_the_conda_environment_is_what_pyproject_says():
    *named, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    least = re.search(r'^requires-python = "(.*)"', PYPROJECT, re.MULTILINE)
    assert least is not None
    assert named[:2] == [f"python{least[1]}", "pip"]
    extras = pip["pip"][0].removeprefix("-e ")
    assert f"pip install '{extras}'" in (ROOT / "README.md").read_text()
    for extra in extras[2:-1].split(","):
        assert f"\n{extra} = [" in PYPROJECT


def states(lines: Any) -> list[str]:
    return [line.state for line in lines]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n", "13.2"),
        ("__version__ = '2.0.1+cpu'\ncuda = None\n", ""),
        ("__version__ = '2.0.1'\n", None),
    ],
)
def test_the_build_is_read_from_the_files(tmp_path, monkeypatch, text, expected):
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: spec)
    assert packages.built_for_cuda() == expected


def test_two_opencvs(monkeypatch):
    monkeypatch.setattr(
        packages, "version", {"opencv-python": "4.9", "opencv-python-headless": "4.9"}.get
    )
    assert states(packages.opencv()) == [NOTE, OK]
    monkeypatch.setattr(packages, "version", {}.get)
    assert [line.fatal for line in packages.opencv()] == [True]


def test_shared_memory_and_cache(tmp_path, monkeypatch):
    assert states(machine.shared_memory(str(tmp_path / "none"))) == [NOTE]
    usage = namedtuple("usage", "total used free")(64 << 20, 0, 60 << 20)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    assert states(machine.shared_memory(str(tmp_path))) == [PROBLEM]
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "a/b"))
    assert machine.cache().state == NOTE
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert (machine.cache().state, machine.cache().name) == (PROBLEM, "cache")


def test_a_decoder_that_fails_is_a_problem(monkeypatch):
    well = {"path": "packages", "path_says": "packages: it was not built: build it", "cpu_ms": 8.0}

    def tried(native_fails: bool, packages_fail: bool) -> list[CheckLine]:
        def child(module: str, request: dict[str, Any], **environment: str) -> dict[str, Any]:
            if packages_fail if environment["SEGTRAIN_NATIVE"] == "0" else native_fails:
                raise SegtrainError("ended with code -4")
            return well

        monkeypatch.setattr("segtrain.insight.bench.child.child", child)
        return list(machine.decoders())

    assert [(line.state, line.fatal) for line in tried(True, False)] == [(PROBLEM, False)]
    assert [(line.state, line.fatal) for line in tried(True, True)] == [(PROBLEM, True)]
    monkeypatch.delenv("SEGTRAIN_NATIVE", raising=False)
    (line,) = tried(False, False)
    assert (line.state, line.cure) == (NOTE, "build it")
    assert line.found.endswith("it was not built")
