"""One process at a time writes into a run folder: rank 0 of the run holds a lock there.

The lock is a small file, ``lock.json``. It names its holder (host, process, since when) and has a counter that a thread
of the holder raises every BEAT_S seconds, its heartbeat. Neither flock nor clocks of other hosts are used: NFS, FSx and
Lustre may lack flock, and clocks differ.

A process that finds a lock decides by what it can see:

- The holder runs on this machine: it is alive if and only if its process id belongs to a process that started when the
holder did.
- This machine (by its host name) has rebooted since, and the folder is on a local disk: the holder is dead. On a local
disk it also counts as dead if the lock file is a copy, whose inode number is not the one that it contains. A holder
with another host name may run on another machine, to which this one exports the disk.
- Otherwise (another host, or another container) the counter decides: if it changes, the holder is alive. If it does not
change for SILENT_S seconds, by the clock of the process that looks, the holder counts as dead.

To take over a dead holder's lock, a process first creates ``.lock-TOKEN.next``, with that holder's token. A file can be
created only once, so one of several processes wins, and only the winner replaces the lock. This file stays until the
winner releases the lock, so that a slower process cannot create it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.journal import say_on_stderr
from segtrain.train.holder import (
    Holder,
    bucket_mount,
    content_of,
    holder_in,
    is_copy,
    is_local,
    lives,
    this_process,
    why_dead,
)

FILE = "lock.json"
BEAT_S = 5.0  # seconds between two heartbeats
_DIGITS = 20  # of the counter in the file
SILENT_S = 60.0  # seconds without a heartbeat after which a holder whose process cannot be seen counts as dead


class RunLock:
    """The lock of a run folder. ``acquire`` takes it; as a context manager, it is always released at the end."""

    upload_s = 0.0  # of a run in a bucket: the longest upload of checkpoints so far

    def __init__(self, folder: Path, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        self.folder, self.path = Path(folder), Path(folder, FILE)
        self._beat_s, self._silent_s = beat_s, silent_s
        self._me: Holder | None = None
        self._file: int | None = None
        self._at = 0  # offset of the counter in the file
        self._lost: Holder | None = None
        self._released = False
        self._turn = threading.Lock()  # between the heartbeat thread and threads that call ``check``
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def fetch(self) -> tuple[str, list[str]]:
        """Fetch the run folder if it is in a bucket (see upload.py). Returns the id of the run, and remarks."""
        return "", []

    def follow(self, run: str) -> None:
        """If the run folder is in a bucket, begin to upload this host's files (see upload.py). ``run``: the run id."""

    def acquire(self, say: Callable[[str], None] = say_on_stderr) -> list[str]:
        """Take the lock, unless this process has it. Returns remarks about a dead holder that it was taken from.

        Raises ConfigError that names the holder if there is a live one. Also raises it if the folder cannot be written,
        or is in a mounted bucket.
        """
        if self._me is not None:
            return []
        if program := bucket_mount(self.folder):
            raise ConfigError(
                f"{self.folder} is a bucket mounted by {program}, which can lose a checkpoint that is renamed and a "
                "journal that is appended to: write to the bucket itself, with out=gs://BUCKET/FOLDER, s3://, or az://",
                code="run-folder-on-bucket-mount", run=str(self.folder), found=program,
            )  # fmt: skip
        try:
            return self._acquire(this_process(), say)
        except OSError as error:
            text = f"cannot lock the run folder {self.folder}: {error}: choose another with out=FOLDER"
            raise ConfigError(text, code="run-folder-not-writable", run=str(self.folder)) from None

    def _acquire(self, me: Holder, say: Callable[[str], None]) -> list[str]:
        remarks: list[str] = []
        local = is_local(self.folder)
        ours = self.folder / f".lock-{me.token}.new"
        self._write(ours, me)
        try:
            while True:
                chain = self._chain()
                if not chain:
                    if self._create(self.path, ours, me):
                        break
                    continue
                path, holder, content = chain[-1]
                alive = lives(holder, path, local)
                if alive is False and is_copy(holder, path):
                    why: str | None = "in another folder, of which this is a copy"
                else:
                    read, silent_s = partial(content_of, path), self._silent_s
                    why = why_dead(str(self.folder), holder, alive, content, read, silent_s, say)
                if why is None:
                    continue  # the lock has changed meanwhile
                claim = self._claim(holder)
                if not self._create(claim, ours, me):
                    continue
                if [holder.token for _, holder, _ in self._chain()] != [*(h.token for _, h, _ in chain), me.token]:
                    claim.unlink(missing_ok=True)  # another process was faster, and has the lock already
                    continue
                os.replace(ours, self.path)
                remarks = [f"{self.folder} was locked by {holder}, {why}: this process has taken over"]
                break
        finally:
            ours.unlink(missing_ok=True)
        for file in self.folder.glob(".lock-*.new"):  # left by processes that were killed while they took the lock
            left = content_of(file)
            if left and lives(holder_in(left), file, local) is False:
                file.unlink(missing_ok=True)
        self._me, self._lost, self._released = me, None, False
        self._open()
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat, args=(not local,), name="run-lock", daemon=True)
        self._thread.start()
        return remarks

    def _write(self, path: Path, me: Holder) -> None:
        """Make a file that names ``me``, with the counter at 0. Raises FileExistsError."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            mine = asdict(replace(me, inode=str(os.fstat(file).st_ino)))
            os.write(file, f"{json.dumps(mine)}\n{0:0{_DIGITS}d}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)

    def _claim(self, holder: Holder) -> Path:
        return self.folder / f".lock-{holder.token}.next"

    def _chain(self) -> list[tuple[Path, Holder, bytes]]:
        """The holder in the lock file, the process that is taking over from it, and so on; the last has the lock."""
        found: list[tuple[Path, Holder, bytes]] = []
        path = self.path
        while (content := content_of(path)) is not None and len(found) < 100:
            found.append((path, holder_in(content), content))
            path = self._claim(found[-1][1])
        return found

    def _create(self, path: Path, ours: Path, me: Holder) -> bool:
        """Make the file ``path`` with the content of ``ours`` if it is absent. Only one process at a time gets True."""
        try:
            os.link(ours, path)
            return True
        except FileExistsError:
            content = content_of(path)  # NFS may have made the link, lost the response, and repeated the request
            return content is not None and holder_in(content).token == me.token
        except OSError:  # a file system without hard links
            pass
        try:
            self._write(path, me)
        except FileExistsError:
            return False
        return True

    def _open(self) -> None:
        """Open the file that this process made, so that no heartbeat is written into the lock of another process."""
        assert self._me is not None
        file = os.open(self.path, os.O_RDWR)
        content = os.read(file, 1 << 16)
        if holder_in(content).token != self._me.token:
            os.close(file)
            return
        if self._file is not None:
            os.close(self._file)
        self._file, self._at = file, len(content) - _DIGITS - 1

    def _beat(self, sync: bool) -> None:
        assert self._me is not None
        count = 0
        while not self._stop.wait(self._beat_s):
            with contextlib.suppress(OSError):  # a temporary outage of the network
                with self._turn:
                    if self._stop.is_set() or not self._holds():
                        return
                    count, file = count + 1, self._file
                    if file is not None:
                        os.pwrite(file, f"{count:0{_DIGITS}d}".encode(), self._at)
                if file is not None and sync:
                    os.fsync(file)  # after ``_turn`` is released, so that ``check`` does not wait for the disk

    def _holds(self) -> bool:
        """Whether this process still has the lock. A lock file that was deleted by hand is made again."""
        assert self._me is not None
        content = content_of(self.path)
        if content is None:
            ours = self.folder / f".lock-{self._me.token}.new"
            ours.unlink(missing_ok=True)
            self._write(ours, self._me)
            try:
                self._create(self.path, ours, self._me)
            finally:
                ours.unlink(missing_ok=True)
            self._open()
            content = content_of(self.path)
        if content is not None and holder_in(content).token != self._me.token:
            self._lost = holder_in(content)
        return self._lost is None

    @property
    def lost(self) -> bool:
        """Whether another process is known to have the lock. Reads no file."""
        return self._lost is not None

    def check(self) -> None:
        """Read the lock again. Raises SegtrainError if another process has taken over: nothing must be written then.

        Also raises it after ``release``: then a checkpoint that is still being written after an interrupted run does
        not get its final name.
        """
        if self._released:
            text = f"the lock on {self.folder} has already been released, so nothing more is written"
            raise SegtrainError(text, code="lock-released")
        if self._me is None or self._me.pid != os.getpid():
            return
        try:
            with self._turn:
                held = self._lost is None and self._holds()
        except OSError as error:
            raise SegtrainError(
                f"cannot read {self.path} ({error.strerror}), and nothing is written without the lock: restore the "
                "folder, or set out to its new path, and start the same command again",
                code="lock-not-read", file=str(self.path),
            ) from None  # fmt: skip
        if not held:
            raise SegtrainError(
                f"{self._lost} has taken over {self.folder}, because this process did not respond for too long (was it "
                "suspended?): it stops and writes nothing more; the other one resumes from the newest checkpoint",
                code="lock-lost", run=str(self.folder),
            )  # fmt: skip

    def release(self) -> None:
        """Release the lock if this process has it."""
        if self._me is None or self._me.pid != os.getpid():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        with self._turn:
            with contextlib.suppress(OSError):
                content = content_of(self.path)
                if content is not None and holder_in(content).token == self._me.token:
                    self.path.unlink()
                    for claim in self.folder.glob(".lock-*.next"):
                        claim.unlink(missing_ok=True)
            if self._file is not None:
                os.close(self._file)
            self._me = self._file = self._thread = None
            self._released = True
