"""Tests that the Dockerfiles are sound by the usual rules, and that those of their steps that need
no Docker work.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import need_setuptools

ROOT = Path(__file__).parents[2]
FILES = {path.parent.name: path for path in sorted((ROOT / "docker").glob("*/Dockerfile"))}
BUILD_COPIES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "segtrain")
Step = tuple[str, str]  # instruction, arguments


def steps(text: str) -> list[Step]:
    """The instructions, continued lines joined, without comments."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (words[0].upper(), words[1])
        for words in (line.split(maxsplit=1) for line in joined.splitlines())
    ]


@pytest.mark.parametrize("name", FILES)
def test_the_build_sees_what_is_copied_and_nothing_else(name):
    lines = Path(f"{FILES[name]}.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"  # all is left out, then some named
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((ROOT / path).exists() for path in let_in)
    copied = {
        source
        for kind, value in steps(FILES[name].read_text(encoding="utf-8"))
        if kind == "COPY" and not value.startswith("--from=")
        for source in value.split()[:-1]
    }
    assert copied <= let_in
    # a library of this machine is no library of the image
    assert {"**/*.so", "**/__pycache__"} <= set(rules[1:])


def test_the_sagemaker_image_starts_with_the_script_that_hands_on_signals():
    found = dict(steps(FILES["sagemaker"].read_text(encoding="utf-8")))
    script = json.loads(found["ENTRYPOINT"])[-1]
    assert found["COPY"].split() == ["docker/sagemaker/entrypoint.sh", script]  # the last one
    subprocess.run(["bash", "-n", ROOT / "docker/sagemaker/entrypoint.sh"], check=True)
    assert "SMDDP" in FILES["sagemaker"].read_text(encoding="utf-8")


def test_the_torch_of_the_sagemaker_image_stays(tmp_path):
    """The step's own words, up to the installation: the constraints name what is installed."""
    step = next(
        v
        for k, v in steps(FILES["sagemaker"].read_text(encoding="utf-8"))
        if k == "RUN" and "constraints" in v
    )
    first = step.partition("&&")[0].replace("python -c", f"{shlex.quote(sys.executable)} -c", 1)
    subprocess.run(["bash", "-c", first], cwd=tmp_path, check=True)
    lines = (tmp_path / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{name}=={version(name)}" for name in ("torch", "torchvision")]


def test_the_sagemaker_image_keeps_its_decoder_where_the_bundle_looks(tmp_path):
    """Runs the step itself: it copies the library to the path that SEGTRAIN_NATIVE_LIBRARY
    names.
    """
    found = steps(FILES["sagemaker"].read_text(encoding="utf-8"))
    library = next(
        v.partition("=")[2]
        for k, v in found
        if k == "ENV" and v.startswith("SEGTRAIN_NATIVE_LIBRARY=")
    )
    step = next(v for k, v in found if k == "RUN" and v.endswith(f" {library}"))
    built, kept = tmp_path / "built.so", tmp_path / "kept.so"
    built.write_bytes(b"library")
    command = step.replace("python -c", f"{shlex.quote(sys.executable)} -c", 1).replace(
        library, shlex.quote(str(kept))
    )
    environment = {**os.environ, "SEGTRAIN_NATIVE_LIBRARY": str(built)}
    subprocess.run(["bash", "-c", command], env=environment, check=True)
    assert kept.read_bytes() == b"library"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_wheel_of_the_images_holds_the_native_decoder(tmp_path):
    """The build step's own words, in a folder with just what is copied; then its library is
    loaded.
    """
    need_setuptools()
    found = steps(FILES["cpu"].read_text(encoding="utf-8"))
    build = next(value for kind, value in found if kind == "RUN" and "pip wheel" in value)
    assert (
        next(
            v
            for k, v in steps(FILES["gpu"].read_text(encoding="utf-8"))
            if k == "RUN" and "pip wheel" in v
        )
        == build
    )
    copied = [source for kind, value in found if kind == "COPY" for source in value.split()[:-1]]
    source = tmp_path / "src"
    source.mkdir()
    for name in copied[: len(BUILD_COPIES)]:
        assert name in BUILD_COPIES
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    wheels = tmp_path / "wheels"
    command = build.replace(
        "pip wheel", f"{shlex.quote(sys.executable)} -m pip wheel --no-index --no-build-isolation"
    )
    command = command.replace("/wheels", shlex.quote(str(wheels)))
    done = subprocess.run(["bash", "-c", command], cwd=source, capture_output=True, text=True)
    if "apt-get install" in done.stderr + done.stdout and done.returncode:
        pytest.skip("the native decoder's libraries are not installed here")
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("segtrain/data/pixels/native/libsegtrain_data.so", tmp_path)
    ctypes.CDLL(library)
