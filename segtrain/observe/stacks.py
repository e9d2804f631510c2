"""The Python stacks of a run while it trains: a request to all ranks and their worker processes, and the wait for their files.

RUN/stacks/control.json               ``asked`` (Unix time), ``seconds``, ``hz``
RUN/stacks/rank-00000.txt             collapsed stacks of all threads of a rank, with milliseconds
RUN/stacks/rank-00000-worker-03.txt   of one of its worker processes; beside each a .json: ``asked``, ``seconds``, ``samples``, ``host``
"""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote

from segtrain.errors import SegtrainError
from segtrain.observe.spans import read_spans
from segtrain.observe.system import read_json, write_json
from segtrain.observe.trace import pace, refuse_ended
from segtrain.stacks import CONTROL, FOLDER, MOST_HZ, MOST_S

HZ = 100.0
LATE_S = 20.0  # after the time that was asked for: a rank looks for a request at the end of a step


def stacks(run: Path, seconds: float, hz: float = HZ) -> tuple[str, bool]:
    """Ask all ranks for their stacks and wait for them: lines for a person, and whether all have written.

    Raises SegtrainError for a run that does not train.
    """
    if not 0 < seconds <= MOST_S:
        raise SegtrainError(f"--seconds {seconds:g}: from 1 to {MOST_S:g}")
    if not 0 < hz <= MOST_HZ:
        raise SegtrainError(f"--hz {hz:g}: from 1 to {MOST_HZ:g} samples a second; 100 see all that matters")
    ranks = read_spans(run)
    refuse_ended(run)
    world, (step_s, _) = ranks[0].begins[-1]["world_size"], pace(ranks)
    folder, asked = run / FOLDER, time.time()
    try:
        folder.mkdir(exist_ok=True)
        for old in (*folder.glob("rank-*.txt"), *folder.glob("rank-*.json")):
            old.unlink()  # of an earlier request, perhaps of more workers
        write_json(folder / CONTROL, {"asked": asked, "seconds": seconds, "hz": hz})
    except OSError as error:
        raise SegtrainError(f"cannot write {folder}: {error.strerror}: use the account that started the run") from None
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
            f"{missing} processes have not answered: idle workers, a step that takes long, or ranks that do not see this folder"
        )
    lines.append(f"look: segtrain report {quote(str(run))}; or one file in https://speedscope.app")
    return "\n".join(lines), len(of_ranks) == world
