"""Tests that a fault ends in one line with its fix, not in a traceback or in pages of C++
frames.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from refusals import FOLDERS, SCENES, assert_refused, make_set

from segtrain import cli, commands
from segtrain.base.terminal import printable
from segtrain.data import convert
from segtrain.errors import EXIT_RANK_LOST
from segtrain.insight.report import html
from segtrain.observe.journal import LAST_TS, is_time, parse_lines
from segtrain.parallel import failure
from segtrain.parallel.cluster import Cluster, free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_never_come(zygote, tmp_path, rank):
    place = Cluster(rank, 2, rank, 2, "127.0.0.1", free_port())
    process = zygote.start(
        "train", *SCENES, "parallel.timeout_s=2", cwd=tmp_path, **place.environment()
    )
    address = f"127.0.0.1:{place.master_port}"
    refusal = (
        f"rank {rank} of 2 did not meet the other ranks at {address}",
        "parallel.timeout_s=2",
        "WORLD_SIZE",
    )
    assert_refused([process], *refusal, code=EXIT_RANK_LOST)


def test_a_server_that_accepts_and_never_answers(zygote, tmp_path):
    """As another program at rank 0's port does, or a rank 0 that is suspended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Cluster(1, 2, 1, 2, "127.0.0.1", server.getsockname()[1])
        process = zygote.start(
            "train", *SCENES, "parallel.timeout_s=1", cwd=tmp_path, **place.environment()
        )
        assert_refused(
            [process], "rank 1 of 2 did not meet", "parallel.timeout_s=1", code=EXIT_RANK_LOST
        )


def test_a_gloo_that_cannot_connect_hosts_names_the_variable(monkeypatch):
    lost, two = RuntimeError("Gloo connectFullMesh failed"), Cluster(0, 2, 0, 1, "a", 1, hosts=2)
    assert "GLOO_SOCKET_IFNAME" in str(failure.rendezvous_error(two, 9.0, lost))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert "GLOO_SOCKET_IFNAME" not in str(failure.rendezvous_error(two, 9.0, lost))


def test_an_address_that_does_not_resolve(zygote, tmp_path):
    place = Cluster(1, 2, 0, 1, "no-such-host.invalid", free_port())
    process = zygote.start(
        "train", *SCENES, "parallel.timeout_s=1", cwd=tmp_path, **place.environment()
    )
    assert_refused([process], "rank 1 cannot resolve MASTER_ADDR=no-such-host.invalid")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_standard_output_on_a_full_disk(tmp_path):
    for more in ({}, {"PYTHONUNBUFFERED": "1"}):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "segtrain", "runs", str(tmp_path)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **more},
            )
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: cannot write to standard output: No space left on device")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_log_or_a_closed_output_costs_no_training(tmp_path):
    """Both in one process each: what cannot be printed is not worth a run."""
    words = [
        sys.executable,
        "-m",
        "segtrain",
        "train",
        *SCENES,
        "train.duration=2st",
        "eval.every=2st",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for out, line in (("full", '"$@" > /dev/full'), ("closed", '"$@" >&-')):
        command = ["bash", "-c", line, "bash", *words, f"out={out}"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert ("nothing more can be printed (No space left on device)" in done.stderr) == (
            out == "full"
        )
        assert (tmp_path / out / "checkpoints/step-00000002.pt").is_file()


def test_the_error_of_another_file_is_not_called_one_of_standard_output(monkeypatch):
    def fails(*given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "elsewhere")

    monkeypatch.setattr(commands, "doctor", fails)
    with pytest.raises(OSError, match="elsewhere"):
        cli.main(["doctor"])


def test_sigterm_leaves_no_partial_files(tmp_path, monkeypatch):
    make_set(tmp_path / "set")

    def stopped(*given: object, **more: object) -> None:
        assert [path.name[:6] for path in tmp_path.iterdir() if path.name[0] == "."] == [".part-"]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(convert, "_convert", stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", "convert", str(tmp_path / "set"), str(tmp_path / "out")])
    assert stop.value.code == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_process_that_may_have_no_more(error, monkeypatch, capsys):
    def fails(*given: object) -> int:
        raise error

    monkeypatch.setattr(commands, "doctor", fails)
    assert cli.main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: this process has reached its limit of memory or threads")
    assert said.count("\n") == 1


def test_characters_that_steer_a_terminal_are_escaped():
    assert printable("a\x1b[2Jb\x9bc\rd\x7f\u202e") == "a\\x1b[2Jb\\x9bc\\rd\\x7f\\u202e"
    assert printable("Straße\tk\n日本 é ✓") == "Straße\tk\n日本 é ✓"


def test_a_warning_of_a_library_is_one_line_without_a_place_in_its_code(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["runs", str(tmp_path)]) == 0  # every command
        capsys.readouterr()
        for text, place in (
            ("two\n lines\x1b[2J", "/lib/site-packages/PIL/TiffImagePlugin.py"),
            ("and of its own", str(ROOT / "segtrain/infer/predict.py")),
            (
                "Image size (95000000 pixels) exceeds limit of 89478485 pixels, could be ...",
                "/lib/PIL/Image.py",
            ),
        ):
            warnings.warn_explicit(text, UserWarning, place, 7)
    assert capsys.readouterr().err.splitlines() == [
        "warning: PIL: two lines\\x1b[2J",
        "warning: and of its own",
    ]


def test_names_of_classes_and_files_do_not_steer_the_terminal(zygote, tmp_path):
    make_set(tmp_path / "set", ("ro\x1b[31mad", "car", "sky"))
    odd = "a\x1b]0;title\x07"
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (tmp_path / f"set/{kind}/{split}/a0.png").rename(
                tmp_path / f"set/{kind}/{split}/{odd}.png"
            )
    settings = [*FOLDERS, "data.classes=set/classes.txt"]
    commands: list[list[object]] = [
        ["train", *settings],
        ["eval", "run"],
        ["data", "check", "set", "data.layout=folders", "data.classes=set/classes.txt"],
    ]
    for words in commands:
        process = zygote.start(*words, cwd=tmp_path)
        assert process.wait() == 0, process.output
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", process.output), words
        if words[0] in ("train", "eval", "data"):
            assert "ro\\x1b[31mad" in process.output
    (tmp_path / f"set/masks/train/{odd}.png").write_bytes(b"")
    process = zygote.start(*commands[0], "out=other", cwd=tmp_path)
    message = assert_refused([process], "a\\x1b]0;title\\x07.png")
    assert "\x1b" not in message


EVENT = {
    "event": "run_start",
    "name": "x",
    "hash": "00000000",
    "world_size": 1,
    "total_steps": 2,
    "derived": {},
}


def journal(run: Path, times: list[Any]) -> Path:
    run.mkdir()
    events = [{**EVENT, "ts": times[0]}]
    for step, ts in enumerate(times[1:], 1):
        events.append(
            {
                "event": "step",
                "ts": ts,
                "step": step,
                "loss": 1.0,
                "lr": 0.1,
                "epoch": 1.0,
                "images_per_s": 9.0,
            }
        )
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    return run


@pytest.mark.parametrize("ts", [-1e18, float("nan"), 10**400, "noon"])
def test_a_time_that_no_calendar_shows(tmp_path, capsys, ts):
    odd, sound = (
        journal(tmp_path / "odd", [ts, 1.7e9, ts]),
        journal(tmp_path / "sound", [1.7e9, 1.7e9 + 1]),
    )
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert len(max(capsys.readouterr().out.splitlines(), key=len)) < 300
    assert cli.main(["report", str(odd)]) == 0
    assert cli.main(["diff", str(odd), str(sound), "--out", str(tmp_path / "diff.html")]) == 0
    assert cli.main(["diagnose", str(odd)]) in (0, 2)


def test_a_journal_line_with_such_a_time_is_skipped_and_said():
    said: list[str] = []
    lines = [json.dumps({"event": "step", "ts": ts}).encode() for ts in (5.0, 1e18, LAST_TS)] + [
        b"[" * 100_000
    ]
    assert [event["ts"] for event in parse_lines(lines, "there", said.append)] == [5.0, LAST_TS]
    assert said == ["warning: there: skipped 2 torn lines (line 2, 4)"]
    assert not is_time(-1)


def test_no_text_of_a_run_ends_or_opens_anything_in_the_script_of_a_page():
    charts = {"x": {"title": "</script><!--<script>", "name": "a<b"}}
    page = html.page("t", [("a", "A", "text")], charts, "")
    block = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert block, "the page has no block of data"
    assert "<" not in block[1]
    assert json.loads(block[1]) == charts
