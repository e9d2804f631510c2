"""Tests of archive, restore, and release against a stand-in for ``lfs`` (lfs_standin.py says what that does not show)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import refused

from launch import lustre
from launch.hpc import hsm, moving
from launch.hpc.hsm import Lfs, State
from launch.hpc.moving import Pace, files, move, prove
from segtrain import cli
from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE

STAND_IN = [sys.executable, "-IS", str(Path(__file__).parent / "lfs_standin.py")]


class FileSystem:
    """A folder that the stand-in takes for Lustre, and one that it takes for S3."""

    def __init__(self, root: Path) -> None:
        self.root, self.lustre, self.s3 = root, root / "lustre", root / "s3"
        for folder in (self.lustre, self.s3):
            folder.mkdir()
        (root / "known.json").write_text("{}")
        (root / "plan.json").write_text("{}")

    def write(self, *names: str) -> list[str]:
        for name in names:
            path = self.lustre / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"content of {name}")
        return [str(self.lustre / name) for name in names]

    def plan(self, **what: Any) -> None:
        (self.root / "plan.json").write_text(json.dumps({**self.planned, **what}))

    @property
    def planned(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "plan.json").read_text()))

    def mark(self, name: str, flags: int) -> None:
        known = json.loads((self.root / "known.json").read_text())
        known[name] = {**known.get(name, {"open": None, "left": 0, "stamp": None}), "flags": flags}
        (self.root / "known.json").write_text(json.dumps(known))

    def run(self, verb: str, *words: str) -> int:
        return lustre.main([verb, str(self.lustre), *words])


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    monkeypatch.setenv("LFS_STANDIN", str(tmp_path))
    monkeypatch.setenv(hsm.VARIABLE, " ".join(STAND_IN))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return FileSystem(tmp_path)


def test_a_folder_goes_to_s3_and_comes_back(system: FileSystem, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"run/{k}.pt" for k in range(7)] + ["run/with space: (0x00000009) é\nline"]
    system.write(*names)
    system.plan(looks=3)
    assert system.run("archive", "--proof", str(system.root / "proof.jsonl")) == 0
    assert "archive: all 8 files done, 8 of them now" in capsys.readouterr().out
    for name in names:
        assert (system.s3 / name).read_text() == f"content of {name}"
    proof = [json.loads(line) for line in (system.root / "proof.jsonl").read_text().splitlines()]
    assert {line["path"] for line in proof} == {str(system.lustre / name) for name in names}
    assert {line["state"] for line in proof} == {"exists archived"}
    assert system.run("release") == 0
    assert all((system.lustre / name).read_bytes().strip(b"\0") == b"" for name in names)  # a hole, as on Lustre
    assert system.run("state") == 0
    assert "8  exists released archived" in capsys.readouterr().out
    assert system.run("restore") == 0
    assert all((system.lustre / name).read_text() == f"content of {name}" for name in names)


def test_only_what_s3_lacks_is_asked_for(system: FileSystem) -> None:
    system.write("a", "b", "c")
    assert system.run("archive") == 0
    assert system.planned["requests"] == 3
    assert system.run("archive") == 0
    assert system.planned["requests"] == 3
    (path,) = system.write("b")
    os.utime(path, ns=(1, 1))
    system.write("d")
    assert system.run("archive") == 0
    assert system.planned["requests"] == 5
    assert (system.s3 / "d").exists()


def test_no_more_requests_are_open_than_allowed(system: FileSystem) -> None:
    system.write(*(f"{k:03}" for k in range(40)))
    system.plan(looks=2)
    assert system.run("archive", "--pending", "6") == 0
    assert 1 < system.planned["most"] <= 6


def test_a_forgotten_request_is_made_again_and_not_for_ever(
    system: FileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    system.write("once", "always", "fine")
    system.plan(forget={"once": 1, "always": 9})
    assert system.run("archive", "--look", "60s") == EXIT_ERROR
    said = capsys.readouterr().err
    assert f"{system.lustre / 'always'}: asked for 3 times, and Lustre does nothing with it (NOOP)" in said
    assert "once" not in said
    assert (system.s3 / "once").exists()
    assert system.planned["forget"]["always"] == 6


def test_a_refused_file_does_not_stop_the_others(system: FileSystem, capsys: pytest.CaptureFixture[str]) -> None:
    system.write("a", "bad", "c")
    system.plan(refuse={"bad": "Device or resource busy"})
    assert system.run("archive") == EXIT_ERROR
    assert "bad: Cannot send HSM request" in capsys.readouterr().err
    assert (system.s3 / "a").exists()
    assert (system.s3 / "c").exists()
    system.plan(refuse={})
    assert system.run("archive") == 0


def test_a_busy_lustre_is_awaited_and_then_left_to_a_later_run(
    system: FileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that Lustre works on count as progress; one that sees nothing at all ends after its patience."""
    (path,) = system.write("large")
    system.plan(busy=True)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 500:
            system.plan(busy=False)

    outcome = move(Lfs(), "archive", [path], Pace(look_s=50, forgotten_s=100, patience_s=150), lambda text: None, sleep)
    assert (outcome.moved, outcome.failed, outcome.waiting) == (1, {}, [])
    assert sum(slept) > 500
    (other,) = system.write("other")
    system.plan(busy=True)
    outcome = move(Lfs(), "archive", [other], Pace(look_s=50, forgotten_s=1e9, patience_s=150), lambda text: None)
    assert outcome.waiting == [other]
    assert system.run("archive", "--patience", "1s") == EXIT_RESUMABLE
    assert "run the same command again" in capsys.readouterr().err


def test_a_file_that_changes_or_goes_meanwhile_is_said(system: FileSystem, capsys: pytest.CaptureFixture[str]) -> None:
    changing, going = system.write("changing", "going")
    paths = files(str(system.lustre))
    os.unlink(going)
    outcome = move(Lfs(), "archive", paths, Pace(), lambda text: None)
    assert outcome.gone == [going]
    assert outcome.failed == {}
    os.utime(changing, ns=(5, 5))
    tally = prove(Lfs(), "archive", [changing, going], None)
    assert tally.unproved == [changing]
    assert tally.words == {"exists dirty archived": 1}


@pytest.mark.parametrize(
    ("verb", "flags", "words"),
    [
        ("archive", 0x20, "never_archive"),
        ("restore", 0x4D, "S3 has lost it"),
        ("release", 0x0B, "archive it first"),
        ("release", 0x00, "archive it first"),
        ("release", 0x19, "never_release"),
    ],
)
def test_what_cannot_be_is_not_asked_for(
    verb: str, flags: int, words: str, system: FileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = system.write("file")
    system.mark("file", flags)
    known = json.loads((system.root / "known.json").read_text())
    known["file"]["stamp"] = os.stat(path).st_mtime_ns
    (system.root / "known.json").write_text(json.dumps(known))
    assert system.run(verb) == EXIT_ERROR
    assert words in capsys.readouterr().err
    assert system.planned.get("requests", 0) == 0


def test_many_files_take_few_calls(system: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = system.write(*(f"{k:04}" for k in range(250)))
    calls: list[tuple[str, int]] = []
    real = Lfs._call

    def counted(self: Lfs, verb: str, part: Any) -> Any:
        calls.append((verb, len(part)))
        return real(self, verb, part)

    monkeypatch.setattr(Lfs, "_call", counted)
    outcome = move(Lfs(), "archive", paths, Pace(), lambda text: None)
    assert outcome.moved == 250
    assert calls == [
        *[("hsm_state", 100), ("hsm_state", 100), ("hsm_state", 50)],
        *[("hsm_archive", 100), ("hsm_archive", 100), ("hsm_archive", 50)],
        *[("hsm_state", 100), ("hsm_state", 100), ("hsm_state", 50)],
    ]


def test_one_unreadable_file_does_not_hide_the_states_of_others(system: FileSystem) -> None:
    a, b, c = system.write("a", "b", "c")
    os.unlink(b)
    states = Lfs().states([a, b, c])
    assert states[a] == State(0) == states[c]
    assert "No such file" in str(states[b])


def test_links_and_folders_are_not_files(system: FileSystem) -> None:
    (path,) = system.write("sub/file")
    (system.lustre / "link").symlink_to(path)
    (system.lustre / "away").symlink_to("/etc")
    os.mkfifo(system.lustre / "pipe")
    assert files(str(system.lustre)) == [path]


def test_a_half_written_proof_is_not_left(system: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = system.write("a", "b")
    proof = system.root / "proof.jsonl"
    proof.write_text("yesterday's\n")
    monkeypatch.setattr(moving, "_look", lambda path, state: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prove(Lfs(), "archive", paths, proof)
    assert proof.read_text() == "yesterday's\n"
    assert [path.name for path in system.root.glob("proof*")] == ["proof.jsonl"]


def test_a_disk_that_is_full_is_said(
    system: FileSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.write("a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for verb in ("archive", "state"):
        assert system.run(verb, "--proof", str(system.root / "proof.jsonl")) == EXIT_ERROR
        assert "No space left on device" in capsys.readouterr().err


def test_a_file_whose_kind_cannot_be_seen_is_an_error(system: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    system.write("a")

    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "lstat", denied)
    with refused("lustre-unreadable"):
        files(str(system.lustre))


def test_wrong_places_and_programs_are_said(
    system: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("lustre-no-folder"):
        files(str(tmp_path / "nothing"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    with refused("lfs-not-lustre"):
        Lfs().states([str(elsewhere / "file")])
    for words, code in (("--pending 0", "pending-small"), ("--look 0", "look-short")):
        with refused(code):
            lustre._pace(lustre.build_parser("lustre").parse_args(["state", "x", *words.split()]))
    monkeypatch.setenv(hsm.VARIABLE, str(tmp_path / "nothing"))
    with refused("lfs-missing"):
        Lfs().states(["/file"])
    for command in (str(elsewhere / "file"), "lfs '"):
        monkeypatch.setenv(hsm.VARIABLE, command)
        with refused("lfs-command"):
            Lfs().states(["/file"])
    monkeypatch.delenv(hsm.VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["launch", "lustre", "state", str(tmp_path)]) == EXIT_ERROR
    with refused("lfs-missing"):
        hsm.words()
    (tmp_path / "lfs").write_text("")
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert hsm.words() == ["lfs"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hsm.words() == ["sudo", "-n", "lfs"]


def test_nothing_is_moved_for_an_empty_folder_or_without_a_place_for_the_proof(
    system: FileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert system.run("archive") == EXIT_ERROR
    assert "has no files" in capsys.readouterr().err
    assert lustre.main(["state", ""]) == EXIT_ERROR
    system.write("a")
    for place in (tmp_path, tmp_path / "none/proof.jsonl"):
        assert system.run("archive", "--proof", str(place)) == EXIT_ERROR
        assert "cannot be written" in capsys.readouterr().err
    assert not list(system.s3.iterdir())
