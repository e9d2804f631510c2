"""Copy of a run folder in a bucket: what is fetched from it at the start, and the order in which
files are written.

The run folder stays on the host's disk. Each object appears whole or not at all, and a run can
resume at any moment: the best checkpoint is uploaded first, then the newest, whose state names the
best, then best.json. Only then are older checkpoints removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from segtrain.base.json_text import read_json, write_json
from segtrain.bucket.client import Client, Stopped
from segtrain.bucket.download import download
from segtrain.errors import CheckpointError, DataError
from segtrain.observe.tracker import IDS
from segtrain.runfolder import checkpoint
from segtrain.runfolder.lease import FILE as LEASE
from segtrain.runfolder.lock import FILE as LOCK

ID = "run.json"  # names the run: two runs never share a folder in a bucket
MARKS = ".uploaded.json"
FOLDER = "checkpoints/"
BEST = "best.json"
# Files that a run needs to resume, here and in its trackers. They are uploaded before checkpoints.
_NEEDED = ("config.yaml", "labels.json", "parts.json", "faults.jsonl", "data/", "splits/", IDS)
# also fetched: appended to, or kept from the first start
_APPENDED = ("journal.jsonl", "spans/", "plan.json")
# Files that the hosts without rank 0 upload.
HOST_FILES = ("spans/", "profile/", "stacks/", "traces/", "hang/")
_PREFIX = 1 << 20  # bytes compared at once


class Mirror:
    """The run folder ``folder`` and its copy below ``prefix`` (with a slash) in a bucket.

    ``keep``: how many recent checkpoints stay. ``own``: name prefixes of the files that this host
    writes; if empty, it writes all. ``foreign``: names of files that other hosts write: this host
    neither writes nor fetches them. Methods raise DataError if the bucket cannot be reached for
    ``outage_s``, and OSError for the local files.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        folder: Path,
        keep: int,
        own: tuple[str, ...],
        foreign: frozenset[str] = frozenset(),
    ) -> None:
        self.client = client
        self.folder = folder
        self.keep = keep
        self._prefix = prefix
        self._own = own
        self._foreign = foreign
        self._objects: dict[str, tuple[str, int]] = {}  # name -> etag and size of the object
        # name -> etag, size, and time of a file that is equal to its object
        self._uploaded: dict[str, list[object]] = {}
        self.sent = [0, 0]  # files and bytes

    def list_objects(self, outage_s: float) -> None:
        """List the objects, and read the marks: which version of each object is equal to the file
        on this host.
        """
        self._uploaded = dict(read_json(self.folder / MARKS))
        start = len(self._prefix)
        self._objects = {
            item["path"][start:]: (str(item.get("e_tag") or item["last_modified"]), item["size"])
            for page in self.client.below(self._prefix, outage_s)
            for item in page
            if item["path"][start:] not in (LEASE, *self._foreign)
        }

    def remote_id(self, outage_s: float) -> str | None:
        """The id of the run in the bucket; "" if the run was copied there by hand, None if there is
        no run.
        """
        if ID in self._objects:
            content = self.client.get(self._prefix + ID, None, "", outage_s).content
            with contextlib.suppress(ValueError):
                record = json.loads(bytes(content))
                return str(record.get("id", "")) if isinstance(record, dict) else ""
        return "" if "config.yaml" in self._objects or self._checkpoints() else None

    def local_id(self) -> str | None:
        run_id = read_json(self.folder / ID).get("id")
        return run_id if isinstance(run_id, str) else None

    def take_id(self, run: str) -> str:
        """Write the run id ``run`` (``""``: a new id) into the local folder, and return it."""
        run = run or uuid.uuid4().hex
        if self.local_id() != run:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / ID, {"id": run})
        return run

    def holds_another_run(self, theirs: str | None) -> bool:
        """Whether the local folder holds another run than the bucket. ``theirs``: the id there;
        None: no run there.
        """
        own = self.local_id()
        # If this run was uploaded, and the bucket holds no run now, somebody removed it there on
        # purpose.
        return own is not None and (bool(self._uploaded) if theirs is None else own != theirs)

    def put_aside(self) -> Path:
        """Rename the local folder, so that the run starts with an empty one. Returns the new
        path.
        """
        when = time.strftime("%Y%m%d-%H%M%S")
        aside = self.folder.with_name(f"{self.folder.name}.{when}.{uuid.uuid4().hex[:4]}")
        self.folder.rename(aside)
        self._uploaded = {}
        return aside

    def fetch(self, outage_s: float) -> None:
        """Fetch what the run needs to resume. The newest checkpoint is used, whether it is here or
        in the bucket.
        """
        self.fetch_records((*_NEEDED, *_APPENDED, BEST), outage_s)
        local = checkpoint.checkpoints(self.folder)
        remote = self._checkpoints()
        for name in reversed(remote):
            step = checkpoint.step_of(Path(name))
            if local and checkpoint.step_of(local[-1]) > step:
                break
            self._fetch_checkpoint(name, outage_s)
            try:
                best = checkpoint.best_of(checkpoint.read(self.folder / name))
            # it is unreadable: the run prints a note when it reads the file itself
            except CheckpointError:
                continue
            if best is not None and f"{FOLDER}{best.file}" in remote:
                self._fetch_checkpoint(f"{FOLDER}{best.file}", outage_s)
            # If one is not in the bucket, the host that wrote the newest checkpoint has removed it.
            for path in local:
                if f"{FOLDER}{path.name}" not in remote:
                    path.unlink(missing_ok=True)
            break
        self._write_uploaded()

    def fetch_records(self, prefixes: tuple[str, ...], outage_s: float) -> None:
        """Fetch the files whose names begin with one of ``prefixes``, except checkpoints."""
        for name in sorted(self._objects):
            if name.startswith(prefixes):
                self._fetch_record(name, outage_s)
        self._write_uploaded()

    def _checkpoints(self) -> list[str]:
        """Names of the checkpoints in the bucket, oldest first."""
        return sorted(
            name for name in self._objects if re.fullmatch(FOLDER + checkpoint.NAME, name)
        )

    def _fetch_checkpoint(self, name: str, outage_s: float) -> None:
        path = self.folder / name
        # A local file of the same step and size may hold other weights, if two hosts wrote it after
        # a lost lease.
        if path.is_file() and self._uploaded.get(name) == [
            self._objects[name][0],
            *(_stat(path) or ()),
        ]:
            return
        with self._fetched(name, outage_s) as partial:
            os.replace(partial, path)
        self._note_uploaded(name, self._objects[name][0])

    def _fetch_record(self, name: str, outage_s: float) -> None:
        """Fetch a file that has changed in the bucket, unless the local one has the same lines and
        perhaps more.
        """
        path, etag = self.folder / name, self._objects[name][0]
        if path.is_file() and self._uploaded.get(name, [""])[0] == etag:
            return
        with self._fetched(name, outage_s) as partial:
            if path.is_file() and _begins_with(path, partial):
                return
            os.replace(partial, path)
        self._note_uploaded(name, etag)

    @contextlib.contextmanager
    def _fetched(self, name: str, outage_s: float) -> Iterator[Path]:
        """Download an object to a hidden file beside the local one. The caller's ``with`` block may
        rename it.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            download(self.client, self._prefix + name, partial, self._objects[name][1], outage_s)
            yield partial
        finally:
            partial.unlink(missing_ok=True)

    def upload_checkpoints(
        self, outage_s: float, confirm: Callable[[], None], stop: threading.Event
    ) -> None:
        """Upload new checkpoints and best.json, and then remove old checkpoints.

        ``confirm`` raises if this host must not write.
        """
        order = self._to_upload()
        if any(self._differs(name) for name in (*order, *self._best_among(order))):
            confirm()
            self.upload_records(outage_s, stop, _NEEDED)
        # If a checkpoint was removed here meanwhile, newer ones have replaced it.
        while not all(self._upload(name, outage_s, stop) for name in order):
            order = self._to_upload()
        for name in self._best_among(order):
            self._upload(name, outage_s, stop)
        recent = [f"{FOLDER}{path.name}" for path in checkpoint.checkpoints(self.folder)][
            -self.keep :
        ]
        for name in reversed(recent if recent[-1:] == order[-1:] else []):
            self._upload(name, outage_s, stop)
        if self._differs(BEST):  # it names a checkpoint that is uploaded next time
            return
        old = [name for name in self._checkpoints()[: -self.keep] if name not in order]
        if old:
            confirm()
        for name in old:
            self.client.delete([self._prefix + name], outage_s)
            self._forget(name)

    def _best_among(self, order: list[str]) -> list[str]:
        """A list with the name best.json if that file names a checkpoint in ``order``, else an
        empty list.
        """
        best = checkpoint.named_best(self.folder)
        return [BEST] if best and f"{FOLDER}{best.file}" in order else []

    def _to_upload(self) -> list[str]:
        """Checkpoints in the order in which they are needed: the best one, then the newest one,
        which names it.
        """
        while True:
            best = checkpoint.named_best(self.folder)
            local = checkpoint.checkpoints(self.folder)
            names = [path.name for path in local if best and path.name == best.file] + [
                path.name for path in local[-1:]
            ]
            # If best.json is unchanged, the newest checkpoint names this best one, or itself if
            # best.json comes later.
            if best == checkpoint.named_best(self.folder):
                return [f"{FOLDER}{name}" for name in dict.fromkeys(names)]

    def upload_records(
        self, outage_s: float, stop: threading.Event, only: tuple[str, ...] = ()
    ) -> None:
        """Upload the files that have changed, except checkpoints and best.json. ``only``: prefixes
        of their names.
        """
        records = list(self._records())
        for name in records:
            if name.startswith(only or ("",)):
                self._upload(name, outage_s, stop)
        # A list of faulty files that was removed must not come back with the next start.
        for name in [
            name for name in self._uploaded if name.startswith(_NEEDED) and name not in records
        ]:
            if not self._own:
                self.client.delete([self._prefix + name], outage_s)
                self._forget(name)

    def waiting(self) -> tuple[int, int]:
        """How many files are not uploaded in their current version, and their bytes."""
        names = [*self._records(), *([] if self._own else [*self._to_upload(), BEST])]
        sizes = [
            stat[0] for name in names if self._differs(name) and (stat := _stat(self.folder / name))
        ]
        return len(sizes), sum(sizes)

    def _records(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self.folder):
            top = Path(folder) == self.folder
            folders[:] = sorted(
                name for name in folders if name[0] != "." and not (top and f"{name}/" == FOLDER)
            )
            for name in sorted(names):
                if name[0] != "." and not (top and name in (BEST, LOCK, LEASE)):
                    record = (Path(folder) / name).relative_to(self.folder).as_posix()
                    if record.startswith(self._own or ("",)) and record not in self._foreign:
                        yield record

    def _differs(self, name: str) -> bool:
        """Whether the local file exists and has changed since it was last uploaded or fetched."""
        stat = _stat(self.folder / name)
        return stat is not None and self._uploaded.get(name, [])[1:] != [*stat]

    def _upload(self, name: str, outage_s: float, stop: threading.Event) -> bool:
        """Upload a file if it has changed. Returns False if it was removed here. Raises Stopped
        after ``stop``.
        """
        if stop.is_set():
            raise Stopped(f"{self.client.base}/{self._prefix}{name}")
        path = self.folder / name
        before = _stat(path)
        if before is None or not self._differs(name):
            return before is not None or name in self._objects
        try:
            etag = self.client.put(self._prefix + name, path, outage_s, stop)
        except (FileNotFoundError, DataError):
            if not path.exists():
                return False
            raise
        self._objects[name] = etag, before[0]
        self._uploaded[name] = [etag, *before]
        self._write_uploaded()
        self.sent = [self.sent[0] + 1, self.sent[1] + before[0]]
        return True

    def _note_uploaded(self, name: str, etag: str) -> None:
        self._uploaded[name] = [etag, *(_stat(self.folder / name) or ())]

    def _forget(self, name: str) -> None:
        self._objects.pop(name, None)
        self._uploaded.pop(name, None)

    def _write_uploaded(self) -> None:
        if self.folder.is_dir():
            write_json(self.folder / MARKS, self._uploaded)


def _stat(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _begins_with(path: Path, other: Path) -> bool:
    """Whether a file begins with the content of another one."""
    with path.open("rb") as mine, other.open("rb") as theirs:
        while block := theirs.read(_PREFIX):
            if mine.read(len(block)) != block:
                return False
    return True
