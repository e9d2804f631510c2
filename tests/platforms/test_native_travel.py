"""Tests of the native decoder on its way into a container: carried by the bundle, loaded there, or
compiled where it runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from checkouts import use_checkout

from launch.core import native as travel
from launch.platforms.sagemaker import bundle
from launch.platforms.sagemaker.images import choose, find
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.bundle_checks import decoder_checks, glibc_of

ROOT = Path(__file__).parents[2]
BUILT = travel.carried()[0]
IMAGE = choose("ml.g5.xlarge", "ddp", "us-east-1")


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process whose library is not there, with room for another; what is changed is put back."""
    pytest.importorskip("numpy")
    from segtrain.data.pixels import native

    monkeypatch.delenv("SEGTRAIN_NATIVE", raising=False)
    monkeypatch.setenv("SEGTRAIN_NATIVE_LIBRARY", str(tmp_path / "gone.so"))
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "gone.so")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "code/__init__.py"))
    return tmp_path


def test_the_bundle_brings_the_library_and_what_it_needs(tmp_path):
    if not BUILT:
        pytest.skip(travel.carried()[1])
    bundle.build(SageMakerJob(), tmp_path / "sourcedir.tar.gz")
    with tarfile.open(tmp_path / "sourcedir.tar.gz") as tar:
        tar.extractall(tmp_path / "code", filter="data")
    needed = {path.name.partition(".so")[0] for path in map(Path, BUILT)}
    assert needed >= {"libsegtrain_data", "libjpeg"}
    pytest.importorskip("numpy")
    code = "from segtrain.data.pixels import native; print(native.available(), native.LIBRARY); print(open('/proc/self/maps').read())"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("SEGTRAIN_")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "code",
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": ""},
    )
    folder = tmp_path / "code" / travel.FOLDER
    assert done.stdout.startswith(f"True {folder / travel.NAME}\n")
    # the very one that came along
    assert str(next(folder.glob("carried/libjpeg.so*"))) in done.stdout


def test_the_check_of_a_wheel_runs():
    """Runs the command by which cibuildwheel tests each wheel."""
    if not BUILT:
        pytest.skip(travel.carried()[1])
    pytest.importorskip("numpy")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    command = next(line for line in text.splitlines() if line.startswith("test-command"))
    program, *arguments = shlex.split(command.partition('"')[2].rstrip('"'))
    assert program == "python"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("SEGTRAIN_")
    }
    subprocess.run([sys.executable, *arguments], env=environment, check=True)


def test_what_is_no_library_for_the_machines_stays_here(tmp_path, monkeypatch):
    monkeypatch.delenv("SEGTRAIN_NATIVE_LIBRARY", raising=False)
    use_checkout(monkeypatch, tmp_path)
    library = tmp_path / travel.FOLDER / travel.NAME
    library.parent.mkdir(parents=True)
    assert travel.carried() == ({}, "libsegtrain_data.so was not built on this machine")
    library.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(60))  # as macOS begins its libraries
    assert travel.carried() == (
        {},
        "libsegtrain_data.so is not a library for Linux on x86-64",
    )
    arm = bytearray(b"\x7fELF\x02\x01\x01" + bytes(60))
    arm[18:20] = (183).to_bytes(2, "little")
    library.write_bytes(arm)
    assert "not a library for Linux on x86-64" in travel.carried()[1]
    arm[18:20] = (62).to_bytes(2, "little")
    library.write_bytes(arm)
    assert "cannot be loaded on this machine" in travel.carried()[1]


def test_a_library_that_the_image_cannot_load_is_said_before(tmp_path, monkeypatch):
    (tmp_path / "new.so").write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.38\0GLIBC_2.14\0")
    assert travel.glibc({"x": tmp_path / "new.so"}) == 38
    assert IMAGE.image is not None
    assert glibc_of(IMAGE.image) == 34
    ubuntu = find("x/pytorch-training:2.8.0-gpu-py312")
    assert ubuntu is not None
    assert glibc_of(ubuntu) == 35
    monkeypatch.setattr(travel, "carried", lambda: ({"x": tmp_path / "new.so"}, ""))
    [note] = decoder_checks(IMAGE)
    assert (note.level, note.code) == ("note", "native-decoder")
    assert "needs glibc 2.38, the image has 2.34" in note.message
    monkeypatch.setattr(travel, "carried", lambda: ({}, "it was not built"))
    assert "it was not built" in next(decoder_checks(IMAGE)).message
    (tmp_path / "new.so").write_bytes(b"GLIBC_2.34\0")
    monkeypatch.setattr(travel, "carried", lambda: ({"x": tmp_path / "new.so"}, ""))
    assert not list(decoder_checks(IMAGE))


def test_a_library_finds_what_came_with_it(away):
    """The system has no libcompanion.so.7: the one in the library's own folder is taken."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    from segtrain.data.pixels import native

    (away / "part.c").write_text("int companion(void) { return 7; }")
    (away / "whole.c").write_text(
        "int companion(void); int st_layout(void) { return companion(); }"
    )
    build = [compiler, "-shared", "-fPIC"]
    (away / "carried").mkdir()
    part, whole = away / "carried/libcompanion.so.7.1", away / "libwhole.so"
    subprocess.run(
        [*build, away / "part.c", "-o", part, "-Wl,-soname,libcompanion.so.7"], check=True
    )
    subprocess.run([*build, away / "whole.c", "-o", whole, part], check=True)
    # it was loaded, and asked
    assert "of another version of segtrain" in native._load(str(whole))[1]
    (away / "second").mkdir()
    shutil.copy(whole, away / "second/libwhole.so")
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from segtrain.data.pixels import native; print(native._load(sys.argv[1])[1])",
            away / "second/libwhole.so",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    ).stdout
    assert "cannot be loaded" in told
    assert "libcompanion.so.7" in told


FAKE = """#!/bin/sh
for word in "$@"; do case "$word" in */try.cpp) read_from="$word";; esac; done
if [ -n "$read_from" ]; then
  [ -z "$MISSING" ] || ! grep -q "$MISSING" "$read_from"
  exit
fi
echo compiled >> "$COUNT"
while [ $# -gt 1 ]; do [ "$1" = -o ] && cp "$BUILT" "$2"; shift; done
exit 0
"""


@pytest.fixture
def compiler(away: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that hands out the library of this machine (or an empty file), and counts;
    MISSING: a header it does not have.
    """
    (away / "bin").mkdir()
    (away / "bin/c++").write_text(FAKE)
    (away / "bin/c++").chmod(0o755)
    (away / "empty.so").touch()
    monkeypatch.setenv("PATH", f"{away / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("BUILT", str(BUILT.get(f"{travel.FOLDER}/{travel.NAME}", away / "empty.so")))
    monkeypatch.setenv("COUNT", str(away / "count"))
    return away


def test_where_headers_are_it_is_compiled_once_a_host(compiler):
    if not BUILT:
        pytest.skip(travel.carried()[1])
    from segtrain.data.pixels import native
    from segtrain.platforms.decoder import prepare

    assert not native.available()
    text = prepare(compiler / "made")
    assert "compiled here, because no library came with the code" in text
    assert native.available()
    # for the helper processes
    assert os.environ["SEGTRAIN_NATIVE_LIBRARY"] == str(compiler / "made" / travel.NAME)
    assert prepare(compiler / "made").startswith("decoder: native")
    native.LIBRARY = compiler / "gone.so"
    assert "compiled here" in prepare(compiler / "made")  # the second rank of the host
    assert (compiler / "count").read_text() == "compiled\n"


@pytest.mark.parametrize(
    ("missing", "words"), [("jpeglib", "no headers of libjpeg-turbo"), ("lib", "no headers")]
)
def test_what_cannot_be_compiled_is_said_with_effect_and_cure(
    compiler, monkeypatch, missing, words
):
    from segtrain.platforms.decoder import prepare

    monkeypatch.setenv("MISSING", missing)
    text = prepare(compiler / "made")
    for word in (
        words,
        "no library came with the code",
        "several times the CPU",
        "docker/sagemaker/Dockerfile",
    ):
        assert word in text
    assert "apt-get" not in text  # nobody can type anything there
    assert not (compiler / "count").exists()
    monkeypatch.delenv("MISSING")
    assert words in prepare(compiler / "made")  # the next rank does not try again


def test_without_a_compiler_it_is_said(away, monkeypatch):
    from segtrain.platforms.decoder import prepare

    monkeypatch.setenv("PATH", str(away))
    assert "there is no C++ compiler" in prepare(away / "made")
    monkeypatch.setenv("SEGTRAIN_NATIVE", "0")
    assert prepare(away / "made") == "decoder: packages (SEGTRAIN_NATIVE=0)"


def test_the_bundles_library_is_taken_where_the_images_is_of_another_version(away):
    if not BUILT:
        pytest.skip(travel.carried()[1])
    from segtrain.data.pixels import native
    from segtrain.platforms.decoder import prepare

    # some library that is not segtrain's
    native.LIBRARY = BUILT[next(name for name in BUILT if "libjpeg" in name)]
    (away / "code").mkdir()
    shutil.copy(BUILT[f"{travel.FOLDER}/{travel.NAME}"], away / "code" / travel.NAME)
    text = prepare(away / "made")
    assert "brought by the bundle, because" in text
    assert "of another version of segtrain" in text
    assert away / "code" / travel.NAME == native.LIBRARY
