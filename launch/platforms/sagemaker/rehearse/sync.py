"""Checkpoints of a rehearsal: copied to S3 while the job runs, and copied back to every host before
the job starts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

from launch.core.rehearse.buckets import BucketServer

INTERVAL_S = 1.0


class Sync:
    """A context manager that uploads changed files from the folders (host -> folder) every second,
    and once more at the end.

    Nothing is ever deleted in S3: AWS does not document that SageMaker deletes anything. Hosts that
    write the same name overwrite each other there.
    """

    def __init__(self, store: BucketServer, uri: str, folders: Mapping[str, Path]) -> None:
        self._store, self._uri, self._folders = store, uri, folders
        self._seen: dict[Path, tuple[int, int]] = {}
        self._writers: dict[str, set[str]] = {}  # name below the prefix -> hosts
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sync:
        if self._uri:
            for folder in self._folders.values():
                self._store.get_folder(self._uri, folder)
                self._seen.update(_marks(folder))  # downloaded files need no upload
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._uri:
            self._done.set()
            self._thread.join()
            self.up()

    @property
    def contested(self) -> list[str]:
        """Names of files that more than one host wrote. On SageMaker, the last write wins."""
        return sorted(name for name, hosts in self._writers.items() if len(hosts) > 1)

    def up(self) -> None:
        for host, folder in self._folders.items():
            for path, mark in _marks(folder).items():
                if self._seen.get(path) == mark:
                    continue
                name = path.relative_to(folder).as_posix()
                try:
                    self._store.put(path, f"{self._uri.rstrip('/')}/{name}")
                except OSError:
                    continue  # the file was replaced or deleted in the meantime
                self._seen[path] = mark
                self._writers.setdefault(name, set()).add(host)

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            # A failed request must not end the thread: it is repeated, at last by __exit__, which
            # raises.
            with contextlib.suppress(Exception):
                self.up()


def _marks(folder: Path) -> dict[Path, tuple[int, int]]:
    """The size and modification time of each file, by which a change is noticed."""
    marks = {}
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                marks[path] = (path.stat().st_size, path.stat().st_mtime_ns)
        except OSError:
            continue  # the file was deleted after it was listed
    return marks
