"""Moving the files of a folder between Lustre and S3: asked for in a bounded number, awaited, and proved at the end.

What is done already is known to Lustre, so an interrupted move goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.hpc.hsm import Lfs, State, Verb, parts
from segtrain.errors import ConfigError

TRIES = 3  # requests for one file that Lustre has forgotten
_GONE = "No such file or directory"


@dataclass(frozen=True)
class Pace:
    """``pending``: most open requests; ``look_s``: seconds between two looks at them; ``forgotten_s``: after which a
    file that did not move is looked for in Lustre's queue; ``patience_s``: how long no progress at all is endured.
    """

    pending: int = 512
    look_s: float = 5.0
    forgotten_s: float = 120.0
    patience_s: float = 3600.0


@dataclass
class Outcome:
    """``moved``: by this call; ``failed``: what speaks against a file; ``gone``: deleted meanwhile; ``waiting``: given
    up on, although Lustre may still do it.
    """

    moved: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def files(folder: str) -> list[str]:
    """Absolute names of all regular files below a folder, sorted; links are not followed. Raises ConfigError."""
    root = os.path.abspath(folder)
    if not folder or not os.path.isdir(root):
        raise ConfigError(f"there is no folder {folder!r}: name one on the Lustre file system", code="lustre-no-folder")
    found: list[str] = []

    def unreadable(error: OSError) -> None:
        raise ConfigError(
            f"cannot list {error.filename}: {error.strerror}: run this as root", code="lustre-unreadable"
        ) from None

    for place, folders, names in os.walk(root, onerror=unreadable):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    found.append(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                unreadable(error)
    return found


def is_done(verb: Verb, state: State) -> bool:
    if verb == "archive":
        return state.safe
    return not state.released if verb == "restore" else bool(state.released)


def hopeless(verb: Verb, state: State) -> str:
    """Why asking for the file would not help; "" where it may."""
    if state.lost_from_hsm and verb != "archive":
        return "S3 has lost it (lost_from_hsm)"
    if verb == "archive" and state.never_archive:
        return "it is marked never_archive: lfs hsm_clear --noarchive"
    if verb == "release" and state.never_release:
        return "it is marked never_release: lfs hsm_clear --norelease"
    if verb == "release" and not state.safe:
        return "S3 does not have its present content: archive it first"
    return ""


def move(
    lfs: Lfs,
    verb: Verb,
    paths: Sequence[str],
    pace: Pace,
    say: Callable[[str], None],
    sleep: Callable[[float], None] | None = None,
) -> Outcome:
    """Ask for all files that need it, and wait until Lustre has moved them."""
    outcome, sleep = Outcome(), sleep or time.sleep
    queue = deque(_needed(lfs, verb, paths, outcome))
    total, flying, said = len(queue), dict[str, "_Flight"](), 0
    say(f"{verb}: {total} of {len(paths)} files need it")
    now = quiet_since = 0.0  # seconds slept: a clock that no other program can set
    while queue or flying:
        batch = [queue.popleft() for _ in range(min(len(queue), pace.pending - len(flying)))]
        refused = lfs.ask(verb, batch)
        flying |= {path: _Flight(now) for path in batch if path not in refused}
        for path, why in refused.items():
            _put_away(outcome, path, why)
        if flying:
            sleep(pace.look_s)
            now += pace.look_s
        landed = _land(lfs, verb, flying, outcome)
        if landed or refused:
            quiet_since, ready = now, total - len(queue) - len(flying)
            if 100 * ready // total > said:  # at most one line for each percent
                said = 100 * ready // total
                say(f"{verb}: {ready} of {total}")
        if _ask_again(lfs, verb, flying, outcome, now, pace):
            quiet_since = now
        if now - quiet_since >= pace.patience_s:
            outcome.waiting = [*flying, *queue]
            break
    return outcome


@dataclass
class _Flight:
    """A request: when it was last known to be in Lustre's hands, and how often it was made."""

    seen: float
    tries: int = 1


def _needed(lfs: Lfs, verb: Verb, paths: Sequence[str], outcome: Outcome) -> Iterator[str]:
    for path, state in lfs.states(paths).items():
        if isinstance(state, str):
            _put_away(outcome, path, state)
        elif not is_done(verb, state):
            why = hopeless(verb, state)
            if why:
                outcome.failed[path] = why
            else:
                yield path


def _land(lfs: Lfs, verb: Verb, flying: dict[str, _Flight], outcome: Outcome) -> int:
    """Take what has arrived out of the flights, and say how many that were."""
    before = len(flying)
    for path, state in lfs.states(list(flying)).items():
        if isinstance(state, str):
            _put_away(outcome, path, state)
        elif is_done(verb, state):
            outcome.moved += 1
        elif why := hopeless(verb, state):
            outcome.failed[path] = why
        else:
            continue
        del flying[path]
    return before - len(flying)


def _ask_again(lfs: Lfs, verb: Verb, flying: dict[str, _Flight], outcome: Outcome, now: float, pace: Pace) -> bool:
    """Look for old requests in Lustre's queue, and repeat those that it has forgotten. True where it works on some."""
    old = [path for path, flight in flying.items() if now - flight.seen >= pace.forgotten_s]
    again, busy = [], False
    for path, action in lfs.actions(old).items():
        flight = flying[path]
        flight.seen = now
        if action == verb.upper():
            busy = True
        elif flight.tries >= TRIES:
            outcome.failed[path] = f"asked for {TRIES} times, and Lustre does nothing with it ({action})"
            del flying[path]
        else:
            flight.tries += 1
            again.append(path)
    for path, why in lfs.ask(verb, again).items():
        _put_away(outcome, path, why)
        flying.pop(path, None)
    return busy


def _put_away(outcome: Outcome, path: str, why: str) -> None:
    if _GONE in why and not os.path.lexists(path):
        outcome.gone.append(path)
    else:
        outcome.failed[path] = why


@dataclass
class Tally:
    """Files and bytes of a folder, by what Lustre says of them."""

    files: int = 0
    bytes: int = 0
    unproved: list[str] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)


def prove(lfs: Lfs, verb: Verb | None, paths: Iterable[str], proof: Path | None) -> Tally:
    """Ask for the state of every file once more. ``proof``: a file of JSON lines, one for each, complete or absent.

    ``unproved``: those whose state is not what ``verb`` makes of it.
    """
    from segtrain.files import writing

    tally = Tally()
    with writing(proof, sync=True) if proof is not None else contextlib.nullcontext() as out:
        for part in parts(list(paths)):
            for path, state in lfs.states(part).items():
                line = _look(path, state)
                if line is None:
                    continue
                tally.files += 1
                tally.bytes += line["bytes"]
                tally.words[line["state"]] = tally.words.get(line["state"], 0) + 1
                if verb is not None and not (isinstance(state, State) and is_done(verb, state)):
                    tally.unproved.append(path)
                if out is not None:
                    out.write(json.dumps(line).encode() + b"\n")
    return tally


def _look(path: str, state: State | str) -> dict[str, Any] | None:
    try:
        known = os.lstat(path)
    except FileNotFoundError:
        return None
    return {"path": path, "bytes": known.st_size, "mtime": known.st_mtime, "state": str(state)}
