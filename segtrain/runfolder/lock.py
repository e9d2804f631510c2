"""One process at a time writes into a run folder: rank 0 of the run holds a lock there.

The lock is a small file, ``lock.json``. It names its holder (host, process, since when) and has a
counter that a thread of the holder raises every BEAT_S seconds, its heartbeat. Neither flock nor
clocks of other hosts are used: NFS, FSx and Lustre may lack flock, and clocks differ.

A process that finds a lock decides as ownership.py says, and by two more things that a disk shows:

- This machine (by its host name) has rebooted since, and the folder is on a local disk: the holder
is dead. On a local disk it also counts as dead if the lock file is a copy, whose inode number is
not the one that it contains. A holder with another host name may run on another machine, to which
this one exports the disk.

To take over a dead holder's lock, a process first creates ``.lock-TOKEN.next``, with that holder's
token. A file can be created only once, so one of several processes wins, and only the winner
replaces the lock. This file stays until the winner releases the lock, so that a slower process
cannot create it again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from segtrain.bucket import url_forms
from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.runfolder.holder import (
    Holder,
    bucket_mount,
    content_of,
    holder_in,
    is_copy,
    is_local,
    lives,
)
from segtrain.runfolder.ownership import Claim, Ownership

FILE = "lock.json"
BEAT_S = 5.0  # seconds between two heartbeats
_DIGITS = 20  # of the counter in the file
# seconds without a heartbeat after which a holder whose process cannot be seen counts as dead
SILENT_S = 60.0


class RunLock(Ownership):
    """The lock of a run folder on a disk. As a context manager, it is always released at the
    end.
    """

    upload_s = 0.0  # see upload.py, as for ``fetch`` and ``follow``

    def __init__(self, folder: Path, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        super().__init__(str(folder), beat_s, silent_s)
        self.folder, self.path = Path(folder), Path(folder, FILE)
        self._local = False
        self._chain: list[tuple[Path, Holder, bytes]] = []
        self._count = 0

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def fetch(self) -> tuple[str, list[str]]:
        return "", []

    def follow(self, run: str) -> None:
        pass

    def acquire(self, say: Say = say_on_stderr) -> list[str]:
        """Also raises ConfigError if the folder cannot be written, or is in a mounted bucket."""
        if program := bucket_mount(self.folder):
            raise ConfigError(
                f"{self.folder} is a bucket mounted by {program}, which can lose a checkpoint that "
                "is renamed and a journal that is appended to: write to the bucket itself, with "
                f"out={url_forms('FOLDER')}",
                code="run-folder-on-bucket-mount",
                run=str(self.folder),
                found=program,
            )
        try:
            self._local = is_local(self.folder)
            remarks = super().acquire(say)
            # left by processes that were killed while they took the lock
            for file in self.folder.glob(".lock-*.new"):
                left = content_of(file)
                if left and lives(holder_in(left), file, self._local) is False:
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot lock the run folder {self.folder}: {error}: choose another with "
                "out=FOLDER",
                code="run-folder-not-writable",
                run=str(self.folder),
            ) from None
        return remarks

    def _find(self) -> Claim | None:
        self._chain = self._holders()
        if not self._chain:
            return None
        path, holder, content = self._chain[-1]
        alive = lives(holder, path, self._local)
        return Claim(holder, content, alive, alive is False and is_copy(holder, path))

    def _holders(self) -> list[tuple[Path, Holder, bytes]]:
        """The holder in the lock file, the process that is taking over from it, and so on; the last
        has the lock.
        """
        holders: list[tuple[Path, Holder, bytes]] = []
        path = self.path
        while (content := content_of(path)) is not None and len(holders) < 100:
            holders.append((path, holder_in(content), content))
            path = self._claim(holders[-1][1])
        return holders

    def _claim(self, holder: Holder) -> Path:
        return self.folder / f".lock-{holder.token}.next"

    def _take(self, me: Holder, claim: Claim | None) -> bool:
        if claim is None:
            return self._create(self.path, me)
        successor = self._claim(claim.holder)
        if not self._create(successor, me):
            return False
        expected = [*(holder.token for _, holder, _ in self._chain), me.token]
        if [holder.token for _, holder, _ in self._holders()] != expected:
            # another process was faster, and has the lock already
            successor.unlink(missing_ok=True)
            return False
        ours = self.folder / f".lock-{me.token}.new"
        self._create(ours, me)
        os.replace(ours, self.path)
        return True

    def _create(self, path: Path, me: Holder) -> bool:
        """Make a file that names ``me``, with the counter at 0. Only one process gets True; False
        if it exists.
        """
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            mine = asdict(replace(me, inode=str(os.fstat(file).st_ino)))
            os.write(file, f"{json.dumps(mine)}\n{0:0{_DIGITS}d}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)
        return True

    def _renew(self, me: Holder, outage_s: float) -> Holder | None:
        winner = self._read_winner(me)
        if winner is None:
            with self.path.open("r+b", buffering=0) as file:
                content = file.read()
                # If another process has replaced the file since it was opened, this writes into the
                # old one.
                if holder_in(content).token == me.token:
                    self._count += 1
                    file.seek(len(content) - _DIGITS - 1)
                    file.write(f"{self._count:0{_DIGITS}d}".encode())
                    if not self._local:
                        os.fsync(file.fileno())
        return winner

    def _read_winner(self, me: Holder) -> Holder | None:
        content = content_of(self.path)
        if content is None:  # deleted by hand
            self._create(self.path, me)
            content = content_of(self.path)
        holder = me if content is None else holder_in(content)
        return None if holder.token == me.token else holder

    def check(self) -> None:
        """Read the lock again, and raise SegtrainError if this process does not have it any
        more.
        """
        me = self._me
        if me is not None and me.pid == os.getpid():
            try:
                with self._turn:
                    if not self._stop.is_set() and not self.lost:
                        self._winner = self._read_winner(me)
            except OSError as error:
                raise SegtrainError(
                    f"cannot read {self.path} ({error.strerror}), and nothing is written without "
                    "the lock: restore the folder, or set out to its new path, and start the same "
                    "command again",
                    code="lock-not-read",
                    file=str(self.path),
                ) from None
        super().check()

    def _remove(self, me: Holder) -> None:
        content = content_of(self.path)
        if content is not None and holder_in(content).token == me.token:
            self.path.unlink()
            for claim in self.folder.glob(".lock-*.next"):
                claim.unlink(missing_ok=True)
