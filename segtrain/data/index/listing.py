"""Cache of the entries of a split, valid until a folder or list that was read for them changes.

A new, deleted, or renamed file changes the time of its folder, so one stat per folder is enough.
The content of files does not matter. ``listing-KEY.json`` under ``$SEGTRAIN_CACHE`` has the stamps
of all folders and lists that were read, and the name of the file of entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Union

from segtrain.base.files import alone, cache_folder, now_ns, read_text
from segtrain.base.json_text import write_json
from segtrain.base.terminal import counted
from segtrain.config import Data, keys_with
from segtrain.data.bucket import store_of
from segtrain.data.index import entries as kept
from segtrain.data.index.entries import Entries
from segtrain.data.index.names import images_in
from segtrain.data.leave_out import note
from segtrain.data.storage import LOCAL, Store
from segtrain.errors import some_of

# Version of the listers. Raise it with every change after which a lister finds different files in
# the same folder, or has other notes.
VERSION = 6
# Prefix of a note that must not be overlooked.
WARNING = "warning: "
# A split with fewer entries is not cached, because it is faster to list it again.
_FEW = 256
# Days without use after which a cached listing is removed.
_DAYS = 30
# If a folder changed less than this many ns before the listing, another change may get the same
# time stamp.
_CLOCK = 2_000_000_000

Stamp = Union[list[int], None]


def _stamp(path: str) -> Stamp:
    """Values that change with the content of a folder or list: times, inode, size. None if it does
    not exist.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size]


@dataclass
class Watch:
    """Records the folders and lists that a lister reads, with their stamps before the reading, and
    notes for the user.

    began: start of the listing in ns, by the clock of the file system. store: where the lister
    reads. folders: those whose images are listed. left_out: folder of a run or of the system ->
    number of images in it, which are not listed. skips: masks without an image are left out
    (``data.faults=skip``). absent: ``data.absent_mask``. arrays: .npy files are images.
    """

    began: int = field(default_factory=time.time_ns)
    store: Store = LOCAL
    stamps: dict[str, Stamp] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    skips: bool = False
    absent: str = "auto"
    arrays: bool = False

    def look(self, path: str) -> str:
        """Record a folder or list whose content or absence decides what is listed. Returns
        ``path``.
        """
        if path not in self.stamps:
            self.stamps[path] = _stamp(path)
        return path

    def settled(self) -> bool:
        """Whether any later change will be visible in a stamp."""
        if not self.store.local:
            return False
        latest = max((stamp[0] for stamp in self.stamps.values() if stamp), default=0)
        return latest < self.began - _CLOCK and all(
            _stamp(path) == stamp for path, stamp in self.stamps.items()
        )


Lister = Callable[[Data, str, Watch], Entries]


def entries_of(data: Data, split: str, lister: Lister, store: Store) -> tuple[Entries, list[str]]:
    """The entries of a split (with data.limit applied) from the cache or the lister, and notes for
    the user.

    A bucket is listed at every start, because it has no folders whose times would tell that nothing
    has changed. Processes that start together wait for the first one, which lists for the whole
    host. Raises what the lister raises.
    """
    folder = cache_folder()
    file = folder / f"listing-{_key(data, split)}.json"
    entries, notes = _known(file) if store.local else (None, list[str]())
    if entries is None and store.local:
        with alone(file) as waited:
            if not waited:
                return _list(data, split, lister, file, notes, store)
        # The first process has listed. If it did not cache the result, all others list at the same
        # time.
        entries, notes = _known(file)
    if entries is None:
        return _list(data, split, lister, file, notes, store)
    return entries, notes


def _list(
    data: Data,
    split: str,
    lister: Lister,
    file: Path,
    notes: list[str],
    store: Store,
) -> tuple[Entries, list[str]]:
    watch = Watch(
        now_ns(file.parent),
        store,
        skips=data.faults == "skip",
        absent=data.absent_mask,
        arrays=data.stored,
    )
    if data.leave_out:
        watch.notes.append(note(data.root, data.leave_out, store_of(data.root, data.outage_s)))
    entries = lister(data, split, watch)
    if 0 < data.limit < len(entries):
        entries = entries.select(part * len(entries) // data.limit for part in range(data.limit))
    if watch.left_out:
        count, folders = (
            counted(watch.left_out.total(), "image file"),
            some_of(sorted(watch.left_out)),
        )
        watch.notes.append(
            f"{count} left out, because folders of runs and of the system hold no data: {folders}"
        )
    beside = _images_above(data.root, watch)
    if beside:
        counts = [f"{beside[folder]:,} in {folder}" for folder in sorted(beside)]
        watch.notes.append(
            f"{WARNING}{counted(beside.total(), 'image file')} left out, because only folders "
            f"below theirs are read: {some_of(counts)}"
        )
    notes = [*notes, *watch.notes]
    if len(entries) < _FEW:
        return entries, notes
    try:
        entries = kept.save(entries, file.parent)
        if watch.settled():
            content = {
                "entries": os.path.basename(entries.file),
                "looked_at": watch.stamps,
                "notes": watch.notes,
            }
            write_json(file, content)
        _tidy(file.parent)
    except OSError as error:
        why = f"the list of files is not cached ({error.strerror}: {file.parent})"
        notes.append(
            f"{why}, so each process lists the files again: set SEGTRAIN_CACHE to a writable folder"
        )
    return entries, notes


def _images_above(root: str, watch: Watch) -> Counter[str]:
    """Folder from the root down to those that are read -> number of images that lie directly in it,
    if that is not 0.
    """
    read = [PurePosixPath(os.path.relpath(folder, root)) for folder in watch.folders]
    counts = Counter[str]()
    for path in {above for folder in read if ".." not in folder.parts for above in folder.parents}:
        if not any(folder in (path, *path.parents) for folder in read):
            place = watch.look(os.path.join(root, path).removesuffix("/."))
            # A folder that can be entered, but not listed, does not hinder the reading.
            if not watch.store.local or os.access(place, os.R_OK):
                counts[place] = len(images_in(place, watch.store))
    return +counts


def _key(data: Data, split: str) -> str:
    settings = data.model_dump(mode="json")
    listed = {key: settings[key.removeprefix("data.")] for key in sorted(keys_with("listing"))}
    text = json.dumps([VERSION, os.path.abspath(data.root), split, listed])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _known(file: Path) -> tuple[Entries | None, list[str]]:
    """A cached listing that is still valid, with its notes; or None and a note if it cannot be
    read.
    """
    try:
        content = json.loads(read_text(file))
        if any(_stamp(path) != stamp for path, stamp in content["looked_at"].items()):
            return None, []
        notes = [str(note) for note in content["notes"]]
        entries = kept.load(str(file.parent / os.path.basename(content["entries"])), whole=True)
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, [
            (
                f"the cached list of files in {file} cannot be used ({type(error).__name__}): "
                "listed again"
            )
        ]
    # Mark it as used, see _tidy.
    with contextlib.suppress(OSError):
        os.utime(file)
        os.utime(entries.file)
    return entries, notes


def _tidy(folder: Path) -> None:
    """Remove cached files that have not been used for 30 days. A process that has mapped one can
    still read it.
    """
    oldest = now_ns(folder) / 1e9 - _DAYS * 86400
    for path in folder.iterdir():
        if path.suffix == kept.ENDING or path.name.startswith("listing-"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
