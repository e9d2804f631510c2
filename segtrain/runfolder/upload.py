"""Run folder of a run with ``out=gs://...``: local, with a thread that keeps a copy of it in the
bucket.

The trainer never waits for the bucket, except at the start, when it fetches what is there, and at
the end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from segtrain.base import stopping
from segtrain.bucket import split_url
from segtrain.bucket.client import client_of
from segtrain.config import Config
from segtrain.errors import CheckpointError, ConfigError, SegtrainError
from segtrain.observe import spans
from segtrain.observe.journal import say_on_stderr
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder.lease import Lease
from segtrain.runfolder.lock import RunLock
from segtrain.runfolder.mirror import HOST_FILES, ID, Mirror

CHECK_S = 1.0  # seconds between two checks for a new checkpoint
RECORDS_S = 30.0  # seconds between two uploads of journal, spans, profile, and pictures
# After an upload of records, which may be large, wait at least this many times as long as it took.
LEAST_SHARE = 20
RETRY_S = 10.0  # seconds between two tries while the bucket cannot be written
TRY_S = 30.0  # seconds without an answer after which a try fails
NOTICE_S = 2.0  # seconds of waiting at the end of a run after which a message is printed


def lock_of(config: Config, cluster: Cluster) -> FolderLock:
    """This rank's run-folder lock. If ``out`` is in a bucket, that of each host's first rank also
    uploads files.
    """
    if config.out_bucket and (cluster.rank == 0 or cluster.local_rank == 0):
        return BucketFolder(config, cluster.rank == 0, _spans_elsewhere(cluster))
    return RunLock(config.run_dir)


def _spans_elsewhere(cluster: Cluster) -> frozenset[str]:
    """The span files of the ranks on other hosts; empty if the numbers of a host's ranks are not
    known.
    """
    own = range(cluster.rank, cluster.rank + cluster.local_world_size)
    ranks = range(cluster.world_size) if cluster.source.ranks_in_order else []
    return frozenset(spans.file_of(Path(), rank).as_posix() for rank in ranks if rank not in own)


class BucketFolder:
    """A run folder in a bucket, as a context manager. Rank 0 alone calls ``fetch`` and ``acquire``.

    The first rank of every other host uploads what the ranks of that host record, after ``follow``
    was called. ``whole``: whether this rank uploads the whole run folder (rank 0). ``foreign``: see
    ``Mirror``.
    """

    def __init__(self, config: Config, whole: bool, foreign: frozenset[str] = frozenset()) -> None:
        self.folder = config.run_dir
        self.upload_s = 0.0  # the longest upload of checkpoints so far
        base, prefix = split_url(config.out)
        client = client_of(base)
        prefix = f"{prefix}/" if prefix else ""
        self.url = config.out_bucket
        self._outage_s = config.data.outage_s
        self._whole = whole
        self._mirror = Mirror(
            client,
            prefix,
            self.folder,
            config.checkpoint.keep,
            () if whole else HOST_FILES,
            foreign,
        )
        self._lease = Lease(client, prefix, self._outage_s)
        self._uploading: threading.Thread | None = None
        self._wake, self._abandon, self._ending = threading.Event(), threading.Event(), False
        self._error: Exception | None = None
        self._complete = False
        self._next_records = 0.0

    def fetch(self) -> tuple[str, list[str]]:
        """Take the lease, and fetch the run folder. Returns the id of the run, and remarks."""
        with self._explained_disk_errors():
            remarks = self._lease.acquire(say_on_stderr)
            mirror = self._mirror
            mirror.list_objects(self._outage_s)
            remote = mirror.remote_id(self._outage_s)
            if mirror.holds_another_run(remote):
                holds = (
                    "the run that was there has been removed"
                    if remote is None
                    else "it holds another run"
                )
                remarks.append(f"{self.url}: {holds}, so {self.folder} is now {mirror.put_aside()}")
            run = mirror.take_id(remote or mirror.local_id() or "")
            mirror.fetch(self._outage_s)
        return run, remarks

    def acquire(self) -> list[str]:
        """Begin to upload this run's files. Returns no remarks: those about the lease come from
        ``fetch``.
        """
        if self._uploading is None:
            with self._explained_disk_errors():
                self._mirror.upload_records(self._outage_s, self._abandon, (ID,))
            self._begin()
        return []

    def follow(self, run: str) -> None:
        """On another host than that of rank 0, begin to upload what its ranks record. ``run``: the
        run id.
        """
        if self._whole:
            return
        mirror = self._mirror
        with self._explained_disk_errors():
            mirror.list_objects(self._outage_s)
            if mirror.local_id() not in (None, run):
                say_on_stderr(
                    f"{self.url} holds another run, so {self.folder} is now {mirror.put_aside()}"
                )
            mirror.take_id(run)
            mirror.fetch_records(("spans/",), self._outage_s)
        self._begin()

    @contextlib.contextmanager
    def _explained_disk_errors(self) -> Iterator[None]:
        """Turn an error of the local disk into a ConfigError that says what to do."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self.folder}, the copy of {self.url} on this host: "
                f"{error.strerror or error}: free "
                "some space, or set SEGTRAIN_CACHE to a folder on another disk",
                code="run-folder-not-writable",
                run=str(self.folder),
                reason=error.strerror,
            ) from None

    def _begin(self) -> None:
        self._uploading = threading.Thread(target=self._work, name="run-upload", daemon=True)
        self._uploading.start()

    def _work(self) -> None:
        """Upload until the run ends, and then what is left."""
        while True:
            last = self._ending
            if last:
                self._mirror.client.patient()
            try:
                self._upload(last)
                self._say_recovered()
                self._complete = last
            # Whatever it is, training goes on, and the next try may succeed.
            except Exception as error:
                self._say_failed(error)
            if last or self._lease.lost:
                return
            self._wake.wait(RETRY_S if self._error else CHECK_S)

    def _upload(self, last: bool) -> None:
        outage_s = self._outage_s if last else TRY_S
        if self._whole:
            begin = time.monotonic()
            self._mirror.upload_checkpoints(
                outage_s, lambda: self._lease.renew(outage_s), self._abandon
            )
            self.upload_s = max(self.upload_s, time.monotonic() - begin)
        if last or time.monotonic() >= self._next_records:
            begin = time.monotonic()
            if self._whole:
                self._lease.renew(outage_s)
            self._mirror.upload_records(outage_s, self._abandon)
            now = time.monotonic()
            self._next_records = now + max(RECORDS_S, LEAST_SHARE * (now - begin))

    def _say_failed(self, error: Exception) -> None:
        if self._abandon.is_set():  # then the interrupt is the error to report
            return
        if self._error is None and not self._ending:
            say_on_stderr(
                f"warning: {self.url} cannot be written now ({error}): training goes on, the files "
                f"stay in {self.folder}, and the upload is tried again"
            )
        self._error = error

    def _say_recovered(self) -> None:
        if self._error is not None and not self._ending:
            say_on_stderr(f"{self.url} can be written again")
        self._error = None

    @property
    def lost(self) -> bool:
        return self._lease.lost

    def check(self) -> None:
        self._lease.check()

    def __enter__(self) -> BucketFolder:
        return self

    def __exit__(self, *raised: object) -> None:
        """Upload what is left, and release the lease.

        Raises CheckpointError if the upload fails and the run itself had no error.
        """
        with stopping.upload_of_the_end():
            try:
                if self._uploading is not None:
                    self._finish(self._uploading, at_once=isinstance(raised[1], KeyboardInterrupt))
            finally:
                self.release()
        if self._error is not None:
            problem = self._not_uploaded(self._error)
            if raised[1] is None:
                raise problem
            say_on_stderr(f"warning: {problem}")

    def _finish(self, uploading: threading.Thread, at_once: bool) -> None:
        begin = time.monotonic()
        announced = False
        sent = list(self._mirror.sent)
        self._ending = True
        self._wake.set()
        try:
            while uploading.is_alive() and not at_once:
                uploading.join(0.1)
                if not announced and time.monotonic() - begin > NOTICE_S and uploading.is_alive():
                    announced = True
                    files, size = self._mirror.waiting()
                    say_on_stderr(
                        f"waiting for the upload of {files} files ({_mb(size)}) to {self.url}"
                    )
        except KeyboardInterrupt:
            say_on_stderr(f"warning: {self._not_uploaded(_interrupted())}")
            raise
        finally:
            self._abandon.set()
            if not self._complete and self._error is None:
                self._error = _interrupted()
        if self._whole and self._complete:
            files, size = (after - before for after, before in zip(self._mirror.sent, sent))
            seconds = time.monotonic() - begin
            print(
                f"uploaded  {self.url}: the last {files} files ({_mb(size)}) took {seconds:.1f} "
                "s after the end"
            )

    def _not_uploaded(self, error: Exception) -> CheckpointError:
        files, size = self._mirror.waiting()
        return CheckpointError(
            f"{files} files of the run ({_mb(size)}) are not in {self.url} ({error}); everything "
            f"is in {self.folder} on host {socket.gethostname()}: start the same command there "
            "again: it uploads them",
            code="run-not-uploaded",
            run=self.url,
            folder=str(self.folder),
            files=files,
            reason=getattr(error, "code", "") or str(error),
        )

    def release(self) -> None:
        self._lease.release()


FolderLock = RunLock | BucketFolder


def _interrupted() -> SegtrainError:
    return SegtrainError("the upload was interrupted", code="upload-interrupted")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
