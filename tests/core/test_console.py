"""Tests of console output: aligned, live on a terminal, and plain in a log."""

from __future__ import annotations

import io
import shlex

import pytest

from segtrain.cli import main
from segtrain.observe.console import Console
from segtrain.training.output import further


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hands:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def drive(stream: io.StringIO) -> Console:
    hands = Hands()
    console = Console(100, 10, stream=stream, now=hands)
    for step in (10, 20):
        hands.time += 20
        console.step(step, step / 10, 1.0, 1e-3, 8.0, 0.25)
    return console


def test_a_log_gets_one_whole_line_a_step_without_control_characters():
    log = io.StringIO()
    console = drive(log)
    console.say("mIoU 50.0 %")
    console.close()
    lines = log.getvalue().split("\n")
    assert len(lines) == 4
    assert lines[2:] == ["mIoU 50.0 %", ""]
    assert "\r" not in log.getvalue()
    assert "\x1b" not in log.getvalue()
    # 20 steps took 40 s: 80 more take 160 s.
    assert lines[1].endswith("ETA  2m 40s")


def test_a_terminal_shows_one_live_line_that_other_text_wipes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    screen = Screen()
    console = drive(screen)
    console.say("saved")
    text = screen.getvalue()
    assert text.count("\n") == 1
    assert text.count("\repoch") == 2
    wiped = text.split("\r")[-2]
    assert set(wiped) == {" "}
    assert len(wiped) == len(text.split("\r")[2])
    assert text.endswith("\rsaved\n")
    console.close()
    assert screen.getvalue() == text  # nothing is drawn: nothing to end
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")  # a terminal that is a log
    drive(screen := Screen())
    assert "\r" not in screen.getvalue()


def test_the_remaining_time_follows_the_recent_pace():
    log, hands = io.StringIO(), Hands()
    console = Console(1000, 1, stream=log, now=hands)
    hands.time += 1000  # a slow first step: a compiler at work, say
    for step in range(101, 1001):  # of a run that was resumed
        console.step(step, 0.1, 1.0, 1e-3, 1.0, 0.0)
        hands.time += 1 if step < 500 else 2
    lines = log.getvalue().split("\n")
    assert lines[0].endswith("ETA       ?")
    assert lines[1].endswith("ETA 14m 58s")
    assert lines[500].endswith("ETA 13m 18s")
    assert lines[899].endswith("ETA      0s")
    alone = io.StringIO()
    Console(1, 1, stream=alone).step(1, 0.1, 1.0, 1e-3, 1.0, 0.0)
    assert alone.getvalue().endswith("ETA      0s\n")


def test_other_ranks_and_closed_pipes_are_quiet():
    log = io.StringIO()
    console = Console(10, 1, rank=1, stream=log)
    console.step(1, 0.1, 1.0, 1.0, 1.0, 0.0)
    console.say("hello")
    assert log.getvalue() == ""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console(10, 1, stream=Gone())
    console.say("hello")
    console.step(1, 0.1, 1.0, 1.0, 1.0, 0.0)


def test_what_a_stream_cannot_encode_is_replaced():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(10, 1, stream=stream)
    console.say("│ █")
    stream.seek(0)
    assert stream.read() == "? ?\n"


def test_commands_that_are_proposed_can_be_pasted_whatever_the_folder_is_called():
    lines = further("my runs/it's (1)", True, {}).splitlines()
    words = [shlex.split(line)[1:] for line in lines]
    assert words[0] == ["tensorboard", "--logdir", "my runs/it's (1)/tensorboard"]
    assert words[1] == ["segtrain", "report", "my runs/it's (1)"]
    assert words[2].count("my runs/it's (1)") == 3
    assert "tensorboard" not in further("runs/a", False, {})
    # The commands cannot construct a module of the user.
    calls = further("runs/a", False, {"model": "mine.Net", "val_data": "mine.Data"})
    assert calls.splitlines()[-1].split("   ")[-3:] == [
        "segtrain.evaluate('runs/a', data=Data(...), model=Net(...))",
        "segtrain.load('runs/a', model=Net(...)).predict(images)",
        "segtrain.export('runs/a', 'exported', model=Net(...))",
    ]
    assert further("runs/a", False, {"val_data": "Data"}).endswith(
        "segtrain predict runs/a IMAGES   segtrain export runs/a"
    )


@pytest.mark.parametrize(
    "words",
    [["eval", "RUN", "--wich", "last"], ["train", "--prnt-config"], ["data", "check", "x", "-j"]],
)
def test_a_flag_with_a_slip_is_no_setting(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert f"unrecognized arguments: {words[-1] if words[-1][0] == '-' else words[-2]}" in told
    assert "section.key=value" in told  # the usage
    assert main(["train", "--print-config", "--out", "there", "--data={limit: 3}"]) == 0
    assert main(["train", "optim.lr", "--print-config"]) == 2
    assert "optim.lr is a setting: write optim.lr=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "near"),
    [("data chek x", "check"), ("trian", "train"), ("eval r --which bets", "best")],
)
def test_a_misspelled_command_is_told_the_closest(words, near, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert f"did you mean '{near}'?" in capsys.readouterr().err
