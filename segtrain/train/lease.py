"""Lease of a run folder in a bucket: the object ``lease.json``, which one process at a time renews.

The holder writes it again every BEAT_S seconds. Each write is conditional: it succeeds only if the object still has the
version that the writer has last seen. So only one of two processes gets the lease, and a holder that has lost it
notices this at its next write. A process that finds a lease takes it over at once if the holder ran on this machine and
has ended. Otherwise it takes the lease over after SILENT_S seconds without a new version.

A request that was on its way when the lease was lost may still arrive. A store that ignores conditional writes gives no
protection.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, replace

from segtrain.bucket.client import Client
from segtrain.bucket.versions import Version, read_version, write_version
from segtrain.errors import SegtrainError
from segtrain.train.holder import Holder, holder_in, runs_here, this_process, why_dead

FILE = "lease.json"
BEAT_S = 10.0  # seconds between two writes
SILENT_S = 60.0  # seconds without a write after which a holder whose process cannot be seen counts as dead


class Lease:
    """The lease of the folder ``url``. ``outage_s``: how long ``acquire`` waits for a bucket that does not answer."""

    def __init__(
        self, client: Client, prefix: str, outage_s: float, beat_s: float = BEAT_S, silent_s: float = SILENT_S
    ) -> None:
        self._client, self._key, self.url = client, f"{prefix}{FILE}", f"{client.base}/{prefix}".rstrip("/")
        self._outage_s, self._beat_s, self._silent_s = outage_s, beat_s, silent_s
        self._me: Holder | None = None
        self._version: Version | None = None
        self._count = 0
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: Holder | None = None  # who has the lease now, after this process has lost it

    def acquire(self, say: Callable[[str], None]) -> list[str]:
        """Take the lease, and return remarks about a holder that it was taken from.

        Raises ConfigError that names the holder if it is alive, and DataError if the bucket cannot be read or written.
        """
        self._me, remarks = replace(this_process(), inode=self.url), list[str]()
        while True:
            found = read_version(self._client, self._key, self._outage_s)
            if found is not None:
                holder = holder_in(found.content)
                if holder.token == self._me.token:  # this process wrote it, but the response was lost
                    self._version = found.version
                    break
                if holder.pid and holder.inode != self.url:
                    why: str | None = "in another folder, of which this is a copy"
                else:
                    alive, silent_s = runs_here(holder), self._silent_s
                    why = why_dead(self.url, holder, alive, found.content, self._read, silent_s, say)
                if why is None:
                    continue
                remarks = [f"{self.url} was locked by {holder}, {why}: this process has taken over"]
            self._version = self._write(found.version if found else None, self._outage_s)
            if self._version is not None:
                break
        self._thread = threading.Thread(target=self._beat, name="run-lease", daemon=True)
        self._thread.start()
        return remarks

    def _read(self) -> bytes | None:
        found = read_version(self._client, self._key, self._outage_s)
        return found.content if found else None

    def _write(self, known: Version | None, outage_s: float) -> Version | None:
        assert self._me is not None
        content = f"{json.dumps(asdict(self._me))}\n{self._count}\n".encode()
        return write_version(self._client, self._key, content, known, outage_s)

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_s) and self.lost is None:
            # After any error, such as an outage, the next beat tries again. ``check`` tells whether the lease is lost.
            with contextlib.suppress(Exception):
                self.renew(self._beat_s)

    def renew(self, outage_s: float) -> None:
        """Write the lease once more. Raises SegtrainError as ``check`` does, and DataError in an outage."""
        with self._turn:
            if self._stop.is_set():
                raise self._released()
            self._count += 1
            version = None if self.lost else self._write(self._version, outage_s)
            if version is None and not self.lost:
                version = self._found_again(outage_s)
            self._version = version
        self.check()

    def _found_again(self, outage_s: float) -> Version | None:
        """After a failed write: the version of the lease if this process still has it, else None with ``lost`` set."""
        assert self._me is not None
        while True:
            found = read_version(self._client, self._key, outage_s)
            if found is None:  # it was removed by hand
                version = self._write(None, outage_s)
                if version is not None:
                    return version
                continue
            holder = holder_in(found.content)
            if holder.token == self._me.token:
                return found.version
            self.lost = holder
            return None

    def check(self) -> None:
        """Raise SegtrainError if another process is known to have the lease, or after ``release``. Makes no request."""
        if self._stop.is_set():
            raise self._released()
        if self.lost is not None:
            raise SegtrainError(
                f"{self.lost} has taken over {self.url}, because this process did not reach the bucket for too long: "
                "it stops and writes nothing more; the other one resumes from the newest checkpoint",
                code="lock-lost", run=self.url,
            )  # fmt: skip

    def _released(self) -> SegtrainError:
        text = f"the lease of {self.url} has already been released, so nothing more is written"
        return SegtrainError(text, code="lock-released")

    def release(self) -> None:
        """Remove the lease if this process has it. In an outage the lease stays; its holder soon counts as dead."""
        self._stop.set()
        if self._me is None or self._me.pid != os.getpid():
            return
        with self._turn:
            me, self._me = self._me, None
            try:
                found = None if self.lost else read_version(self._client, self._key, self._beat_s)
                if found is not None and holder_in(found.content).token == me.token:
                    self._client.delete([self._key], self._beat_s)
            except SegtrainError:
                pass
