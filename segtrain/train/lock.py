"""One process at a time writes into a run folder: rank 0 of the run holds a lock there.

The lock is a small file, ``lock.json``: who holds it (host, process, since when) and a count that a thread of the
holder raises every BEAT_S seconds. Neither flock nor clocks are trusted, since NFS, FSx and Lustre may lack the one and
hosts disagree about the other.

A process that finds a lock decides by what it can see:

- The holder runs on this machine: it is alive exactly if its process id still belongs to the process that began when
the holder began.
- This machine (by its name) was started again since, and the folder lies on a disk of its own: the holder is gone. The
same holds for a lock that was copied with its folder, which shows by the number of the file. A holder of another name
may run on another machine, to which this one exports the disk.
- Otherwise (another host, or another container) the count decides: if it moves, the holder is alive. If it stands still
for SILENT_S seconds, by the clock of the process that looks, the holder counts as dead.

To take over a dead holder's lock, a process first creates ``.lock-TOKEN.next``, named after that holder. A name can be
created once, so one of several processes wins, and only the winner replaces the lock. Its claim stays until it is done,
so that a slower process cannot win the same name again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.journal import say_on_stderr
from segtrain.train.holder import Holder, content_of, holder_in, is_copy, is_local, lives, this_process

FILE = "lock.json"
BEAT_S = 5.0  # between two signs of life
_DIGITS = 20
SILENT_S = 60.0  # without one, until a holder whose process cannot be seen counts as dead


class RunLock:
    """The lock of a run folder. As a context it lets go at the end, whatever happens; ``acquire`` takes it."""

    def __init__(self, folder: Path, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        self.folder, self.path = Path(folder), Path(folder, FILE)
        self._beat_s, self._silent_s = beat_s, silent_s
        self._me: Holder | None = None
        self._file: int | None = None
        self._at = 0  # where the count stands in it
        self._lost: Holder | None = None
        self._released = False
        self._turn = threading.Lock()  # of the thread that gives signs of life, and of those that ask
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, say: Callable[[str], None] = say_on_stderr) -> list[str]:
        """Take the lock, and remarks about a holder that it was taken from. Does nothing where this process has it.

        Raises ConfigError that names the holder where there is one, or where the folder cannot be written.
        """
        if self._me is not None:
            return []
        try:
            return self._acquire(this_process(), say)
        except OSError as error:
            text = f"cannot lock the run folder {self.folder}: {error.strerror}: choose another with out=FOLDER"
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
                why = self._why_dead(path, holder, content, local, say)
                if why is None:
                    continue  # the lock has changed meanwhile
                claim = self._claim(holder)
                if not self._create(claim, ours, me):
                    continue
                if [holder.token for _, holder, _ in self._chain()] != [*(h.token for _, h, _ in chain), me.token]:
                    claim.unlink(missing_ok=True)  # somebody was faster, and is done already
                    continue
                os.replace(ours, self.path)
                remarks = [f"{self.folder} was locked by {holder}, {why}: this process has taken over"]
                break
        finally:
            ours.unlink(missing_ok=True)
        for file in self.folder.glob(".lock-*.new"):  # of a process that was killed while it took the lock
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
        """Make a file that names ``me``, with a count of 0. Raises FileExistsError."""
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
        """The holder in the lock, the process that is taking over from it, and so on. The last one counts."""
        found: list[tuple[Path, Holder, bytes]] = []
        path = self.path
        while (content := content_of(path)) is not None and len(found) < 100:
            found.append((path, holder_in(content), content))
            path = self._claim(found[-1][1])
        return found

    def _create(self, path: Path, ours: Path, me: Holder) -> bool:
        """Make ``path`` a copy of ``ours``, if there is no such file. Returns True in one of several processes."""
        try:
            os.link(ours, path)
            return True
        except FileExistsError:
            content = content_of(path)  # NFS may have done it, lost the answer, and tried again
            return content is not None and holder_in(content).token == me.token
        except OSError:  # a file system without hard links
            pass
        try:
            self._write(path, me)
        except FileExistsError:
            return False
        return True

    def _why_dead(
        self, path: Path, holder: Holder, content: bytes, local: bool, say: Callable[[str], None]
    ) -> str | None:
        """Why the holder counts as dead, or None where its lock has changed. Raises ConfigError where it is alive."""
        alive = lives(holder, path, local)
        if alive is False:
            return "in another folder, of which this is a copy" if is_copy(holder, path) else "which has ended"
        if alive is None:
            say(
                f"{self.folder} is locked by {holder}, which cannot be seen from here: waiting up to "
                f"{self._silent_s:g} s for a sign of life"
            )
            now = self._watched(path, content)
            if now == content:
                return f"which gave no sign of life for {self._silent_s:g} s"
            if now is None or holder_in(now).token != holder.token:
                return None
        raise ConfigError(
            f"{holder} is training into {self.folder}: wait for its end or stop it, or choose another folder with "
            "out=FOLDER",
            code="run-folder-locked", run=str(self.folder), pid=holder.pid, host=holder.host,
        )  # fmt: skip

    def _watched(self, path: Path, content: bytes) -> bytes | None:
        """The lock's content as soon as it is another one, or after SILENT_S seconds."""
        begin = time.monotonic()
        now: bytes | None = content
        while now == content and time.monotonic() - begin < self._silent_s:
            time.sleep(min(1.0, self._silent_s / 10))
            now = content_of(path)
        return now

    def _open(self) -> None:
        """The very file that this process made, so that no sign of life reaches another one's lock."""
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
            with contextlib.suppress(OSError):  # a network that is away for a while
                with self._turn:
                    if self._stop.is_set() or not self._holds():
                        return
                    count, file = count + 1, self._file
                    if file is not None:
                        os.pwrite(file, f"{count:0{_DIGITS}d}".encode(), self._at)
                if file is not None and sync:
                    os.fsync(file)  # without the turn, so that ``check`` does not wait for the disk

    def _holds(self) -> bool:
        """Whether this process still has the lock. One that was deleted by hand is made again."""
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
        """Whether another process is known to have the lock; costs nothing."""
        return self._lost is not None

    def check(self) -> None:
        """Look once more. Raises SegtrainError where another process has taken over; nothing must be written then.

        Likewise after ``release``: a checkpoint whose writing outlasts an interrupted run gets no name.
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
        """Let go, if this process has the lock."""
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
