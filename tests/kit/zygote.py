"""A process that has imported torch and segtrain and forks at request: a rank starts in
milliseconds, and can be killed.

Requests are JSON lines on stdin: ``{"args": [...]}`` runs segtrain's command line, ``{"code":
"..."}`` runs Python; both with
``env``, ``cwd`` and ``out`` (a file for stdout and stderr). The answer is the child's pid;
``{"wait": pid}`` answers its exit code. A rank with HOLD="RANK:STEP" in ``env`` waits behind that
step for a signal, so that a test can stop or kill it there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

import torch._dynamo  # optimizers and DDP import it at their first use, which would be in each child anew (2 CPU-s)  # noqa: F401

import segtrain.cli
import segtrain.infer.export
import segtrain.models.smp
import segtrain.training.evaluate_run
import segtrain.training.rank
from segtrain.base import stopping
from segtrain.parallel import strategy
from segtrain.training import loop
from segtrain.training.start import oversubscription as crowd

strategy.cores = lambda: 1  # so many compute threads, unless a test asks for more: see conftest.py
crowd.SECONDS = 0.0  # with more ranks than cores, each one would measure for seconds


def hold(rank: str, step: int) -> None:
    """Wait behind ``step`` until a signal comes."""
    if os.environ.get("RANK", "0") != rank:
        return
    save = loop._score_and_save

    def held(session: Any, *more: Any) -> None:
        save(session, *more)
        while session.state.step == step and not stopping.requested.is_set():
            time.sleep(0.01)

    loop._score_and_save = held


def child(request: dict[str, Any]) -> int:
    descriptor = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdin = open(os.devnull)  # noqa: SIM115 (it stays open as long as the child lives)
    os.environ.update(request.get("env", {}))
    os.chdir(request.get("cwd", "."))
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if "HOLD" in os.environ:
        rank, step = os.environ["HOLD"].split(":")
        hold(rank, int(step))
    try:
        if "args" in request:
            return segtrain.cli.main(request["args"])
        exec(compile(request["code"], "<rank>", "exec"), {"__name__": "__main__"})
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = child(request)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
