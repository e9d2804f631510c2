"""Python stacks of a run while it trains: a request to all ranks and their workers, and the wait for their files.

RUN/stacks/control.json               ``asked`` (Unix time), ``seconds``, ``hz``
RUN/stacks/rank-00000.txt             collapsed stacks of all threads of a rank, with milliseconds
RUN/stacks/rank-00000-worker-03.txt   the same for one of its worker processes
RUN/stacks/*.json                     for each of them ``asked``, ``seconds``, ``samples``, ``host``
"""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote

from segtrain.errors import SegtrainError
from segtrain.json_text import read_json
from segtrain.observe.trace import pace, request, training_ranks
from segtrain.stacks import FOLDER, MOST_HZ, MOST_S

HZ = 100.0
LATE_S = 20.0  # wait longer than the requested time, because ranks look for a request only after a step


def stacks(run: Path, seconds: float, hz: float = HZ) -> tuple[str, bool]:
    """Ask all ranks for their stacks and wait for them: lines to print, and whether every rank has written them.

    Raises SegtrainError for a run that does not train.
    """
    for key, value, most in (("--seconds", seconds, MOST_S), ("--hz", hz, MOST_HZ)):
        if not 0 < value <= most:
            raise SegtrainError(
                f"{key} {value:g} is not from 1 to {most:g}: the defaults suit most runs",
                code="request-out-of-range", key=key, value=value,
            )  # fmt: skip
    ranks = training_ranks(run)
    world, (step_s, _) = ranks[0].begins[-1]["world_size"], pace(ranks)
    folder, asked = run / FOLDER, time.time()
    # An earlier request may have been answered by more workers.
    request(folder, {"asked": asked, "seconds": seconds, "hz": hz}, stale=list(folder.glob("rank-*.*")))
    until = time.monotonic() + seconds + LATE_S + 5 * step_s
    while True:
        answers = {path: read_json(path) for path in sorted(folder.glob("rank-*.json"))}
        whole = {path: facts for path, facts in answers.items() if facts.get("asked") == asked}
        of_ranks = [facts for facts in whole.values() if "workers" in facts]
        workers = sum(facts["workers"] for facts in of_ranks)
        missing = world - len(of_ranks) + max(0, workers - (len(whole) - len(of_ranks)))
        if not missing or time.monotonic() >= until:
            break
        time.sleep(0.1)
    lines = [
        f"{path.with_suffix('.txt')}  {facts['samples']} samples in {facts['seconds']:g} s"
        for path, facts in whole.items()
    ]
    if missing:
        lines.append(
            f"{missing} processes have not answered: idle workers, a slow step, or ranks that do not see this folder"
        )
    lines.append(f"look: segtrain report {quote(str(run))}; or one file in https://speedscope.app")
    return "\n".join(lines), len(of_ranks) == world
