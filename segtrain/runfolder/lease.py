"""Lease of a run folder in a bucket: the object ``lease.json``, which one process at a time renews.

Each write is conditional: it succeeds only if the object still has the version that the writer has
last seen. So only one of two processes gets the lease, and a holder that has lost it notices this
at its next write.

A request that was on its way when the lease was lost may still arrive. A store that ignores
conditional writes gives no protection.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from segtrain.bucket.client import Client
from segtrain.bucket.versions import Version, read_version, write_version
from segtrain.runfolder.holder import Holder, holder_in, is_running_here
from segtrain.runfolder.ownership import Claim, Ownership

FILE = "lease.json"
BEAT_S = 10.0  # seconds between two writes
# seconds without a write after which a holder whose process cannot be seen counts as dead
SILENT_S = 60.0


class Lease(Ownership):
    """The lease of a folder. ``outage_s``: how long ``acquire`` waits for a bucket that does not
    answer.

    ``acquire`` and ``renew`` also raise DataError if the bucket cannot be read or written.
    ``check`` makes no request.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        outage_s: float,
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
    ) -> None:
        super().__init__(f"{client.base}/{prefix}".rstrip("/"), beat_s, silent_s)
        self._client = client
        self._key = f"{prefix}{FILE}"
        self._outage_s = outage_s
        self._version: Version | None = None
        self._count = 0

    def _find(self) -> Claim | None:
        stored = read_version(self._client, self._key, self._outage_s)
        self._version = stored.version if stored else None
        if stored is None:
            return None
        holder = holder_in(stored.content)
        copied = holder.pid > 0 and holder.inode != self.place
        return Claim(holder, stored.content, is_running_here(holder), copied)

    def _take(self, me: Holder, claim: Claim | None) -> bool:
        self._version = self._write(me, self._version, self._outage_s)
        return self._version is not None

    def _write(self, me: Holder, version: Version | None, outage_s: float) -> Version | None:
        content = f"{json.dumps(asdict(replace(me, inode=self.place)))}\n{self._count}\n".encode()
        return write_version(self._client, self._key, content, version, outage_s)

    def _renew(self, me: Holder, outage_s: float) -> Holder | None:
        self._count += 1
        version = self._write(me, self._version, outage_s)
        while version is None:
            stored = read_version(self._client, self._key, outage_s)
            if stored is None:
                version = self._write(me, None, outage_s)
                continue
            holder = holder_in(stored.content)
            if holder.token != me.token:
                return holder
            version = stored.version
        self._version = version
        return None

    def _remove(self, me: Holder) -> None:
        stored = None if self.lost else read_version(self._client, self._key, self._beat_s)
        if stored is not None and holder_in(stored.content).token == me.token:
            self._client.delete([self._key], self._beat_s)
