"""Tests of signals before the first step, and of the exit code for a job script."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from refusals import SCENES, finish

from segtrain import cli
from segtrain.base import stopping
from segtrain.errors import EXIT_RESUMABLE
from segtrain.observe.profile import sampling
from segtrain.parallel.cluster import Cluster, free_port
from segtrain.parallel.places import answered
from segtrain.training.start.first_signal import ending_at_first_signal
from segtrain.training.state import stop_signals


def codes(folder: Path) -> list[int]:
    return sorted(int(file.name.partition("-")[0]) for file in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_rank_that_waits_for_the_others_in_vain_ends_at_a_signal(zygote, tmp_path, number):
    """It waits in C++, where no handler of Python runs."""
    port = free_port()
    told = tmp_path / "codes"
    told.mkdir()
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank = zygote.start(
        "train", *SCENES, "train.batch_size=4", cwd=tmp_path, **place, SEGTRAIN_EXIT_CODES=str(told)
    )
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.01)
    rank.signal(number)
    assert finish([rank]) == [EXIT_RESUMABLE], rank.output
    assert f"stopped by {signal.Signals(number).name} before the first step" in rank.output
    assert codes(told) == [EXIT_RESUMABLE]


def test_once_the_ranks_have_met_a_signal_is_the_trainers(zygote, tmp_path):
    code = (
        "import os, signal, time\n"
        "from segtrain.training.start.first_signal import ending_at_first_signal\n"
        "with ending_at_first_signal() as met:\n"
        "    {met}\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep({pause})\n"
        "raise SystemExit(7)\n"
    )
    met, early = (
        zygote.start(code=code.format(met=m, pause=p), cwd=tmp_path)
        for m, p in (("met()", 0.2), ("", 600))
    )
    assert finish([met, early]) == [7, EXIT_RESUMABLE]


def test_an_interrupt_ends_the_wait_for_other_ranks_and_later_only_asks_to_stop():
    """In a notebook, where the process must go on."""
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt), stop_signals():
        answered(lambda: threading.Event().wait(60), 60)
    with stop_signals() as received:
        stopping.connected.set()
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "context", [ending_at_first_signal, lambda: sampling(Path(), 0, Cluster(1, 2, 1, 2))]
)
def test_a_handler_of_c_code_becomes_the_default(monkeypatch, context):
    """Python returns None for such a handler, and cannot install it again."""
    installed = dict[int, Any]()

    def install(number: int, handler: Any) -> Any:
        if handler is None:
            raise TypeError
        installed[number] = handler

    monkeypatch.setattr(signal, "signal", install)
    with context():
        assert installed
    assert set(installed.values()) == {signal.SIG_DFL}


def test_a_job_script_learns_the_code_of_each_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEGTRAIN_EXIT_CODES", str(tmp_path))
    assert cli.main(["train", "--print-config"]) == 0
    assert codes(tmp_path) == [0]
    assert cli.main(["train", "optim.lr=-1"]) == 2
    assert codes(tmp_path) == [0, 2]
    (
        tmp_path / next(file.name for file in tmp_path.iterdir() if file.name.startswith("2-"))
    ).unlink()
    with pytest.raises(SystemExit):
        cli.main(["trian"])
    assert codes(tmp_path) == [0, 2]
    monkeypatch.setenv("SEGTRAIN_EXIT_CODES", str(tmp_path / "gone"))
    assert cli.main(["train", "--print-config"]) == 0  # no folder: nothing to tell
