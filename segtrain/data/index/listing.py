"""When need a split not be listed again? As long as no folder and no list has changed that its listing looked at.

A new, deleted or renamed file changes the time of its folder, so that one look at each folder is enough; what is in a file does not
matter to a listing. Kept under ``$SEGTRAIN_CACHE``: ``listing-KEY.json`` (what was looked at) names a file of entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from segtrain import config
from segtrain.data.index import entries as kept
from segtrain.data.index.entries import Entries
from segtrain.files import cache_folder, writing
from segtrain.filetime import now_ns

VERSION = 3  # of what a lister finds in a folder: raise it with every change of segtrain/data/index/layouts.py that finds other files
WARNING = "warning: "  # how a note begins that must not be overlooked
_FEW = 256  # entries: listing fewer costs less than a look into the cache
_DAYS = 30  # without use until a kept listing is removed
_CLOCK = 2_000_000_000  # ns: a change so shortly before the listing may hide another one with the same time

Stamp = Union[list[int], None]


def _stamp(path: str) -> Stamp:
    """What changes with a folder's or list's content: times, number on the disk, size. None: it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size]


@dataclass
class Watch:
    """What a lister has looked at, stamped before it looked, and what it says to the user."""

    began: int = field(default_factory=time.time_ns)  # by the clock that stamps files
    stamps: dict[str, Stamp] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def look(self, path: str) -> str:
        """Name a folder or list whose content, presence or absence decides what is listed."""
        if path not in self.stamps:
            self.stamps[path] = _stamp(path)
        return path

    def settled(self) -> bool:
        """Whether a later change of any of them will show."""
        latest = max((stamp[0] for stamp in self.stamps.values() if stamp), default=0)
        return latest < self.began - _CLOCK and all(_stamp(path) == stamp for path, stamp in self.stamps.items())


Lister = Callable[[config.Data, str, Watch], Entries]


def entries_of(data: config.Data, split: str, lister: Lister) -> tuple[Entries, list[str]]:
    """The entries of a split (data.limit applied) from the cache, or listed and kept; and notes for the user.

    Processes that start together wait for the first, so that one lists for all of a host. Raises what the lister raises.
    """
    folder = cache_folder()
    place = folder / f"listing-{_key(data, split)}.json"
    found, notes = _known(place)
    if found is not None:
        return found, notes
    with _alone(place) as waited:
        if waited:
            found, known = _known(place)
            if found is not None:
                return found, known
        else:
            return _list(data, split, lister, place, notes)
    return _list(data, split, lister, place, notes)  # the first did not keep it, so nobody waits again


def _list(data: config.Data, split: str, lister: Lister, place: Path, notes: list[str]) -> tuple[Entries, list[str]]:
    watch = Watch(now_ns(place.parent))
    entries = lister(data, split, watch)
    if 0 < data.limit < len(entries):
        entries = entries.select(part * len(entries) // data.limit for part in range(data.limit))
    notes = [*notes, *watch.notes]
    if len(entries) < _FEW:
        return entries, notes
    try:
        entries = kept.save(entries, place.parent)
        if watch.settled():
            content = {"entries": os.path.basename(entries.file), "looked_at": watch.stamps, "notes": watch.notes}
            with writing(place) as stream:
                stream.write(json.dumps(content).encode())
        _tidy(place.parent)
    except OSError as error:
        notes.append(
            f"the list of files is not kept ({error.strerror}: {place.parent}), so each start and each process makes its own: "
            "set SEGTRAIN_CACHE to a folder to write to"
        )
    return entries, notes


def _key(data: config.Data, split: str) -> str:
    settings = [VERSION, os.path.abspath(data.root), data.root, data.layout, split]
    settings += [data.images, data.masks, data.index, data.limit, data.pair]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]


def _known(place: Path) -> tuple[Entries | None, list[str]]:
    """A kept listing that still holds, with its notes; or a note that says why it is of no use (none for an old one)."""
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        if any(_stamp(path) != stamp for path, stamp in content["looked_at"].items()):
            return None, []
        notes = [str(note) for note in content["notes"]]
        entries = kept.load(str(place.parent / os.path.basename(content["entries"])), whole=True)
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, [f"the kept list of files in {place} is of no use ({type(error).__name__}): listed again"]
    with contextlib.suppress(OSError):  # still in use: see _tidy
        os.utime(place)
        os.utime(entries.file)
    return entries, notes


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Holds the lock of a listing; tells whether another process had it before. Without a lock where there can be none."""
    try:
        import fcntl

        place.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except (ImportError, OSError):
        yield False
        return
    waited = False
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield waited
    finally:
        if not waited:  # who waits keeps the file that it has open; who comes later finds the listing
            with contextlib.suppress(OSError):
                place.with_suffix(".lock").unlink()
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Remove what nobody has used for long; whoever has it mapped keeps it."""
    oldest = now_ns(folder) / 1e9 - _DAYS * 86400
    for path in folder.iterdir():
        if path.suffix == kept.ENDING or path.name.startswith("listing-"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
