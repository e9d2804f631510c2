"""Checkpoints of a rehearsal: copied to S3 while the job runs, and back to every host before it starts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from launch.aws.rehearse.s3 import S3Server

INTERVAL_S = 1.0


class Sync:
    """A context manager: while inside, what changes in the folders (host -> folder) goes up each second, and once more
    at the end.

    Nothing is ever deleted in S3, as nothing says that SageMaker would. Hosts that write the same name overwrite each
    other there.
    """

    def __init__(self, store: S3Server, uri: str, folders: Mapping[str, Path]) -> None:
        self._store, self._uri, self._folders = store, uri, folders
        self._seen: dict[Path, tuple[int, int]] = {}
        self._writers: dict[str, set[str]] = {}  # name below the prefix -> hosts
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sync:
        if self._uri:
            for folder in self._folders.values():
                self._store.get_folder(self._uri, folder)
                self._seen.update(_marks(folder))  # what came from there need not go back
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._uri:
            self._done.set()
            self._thread.join()
            self.up()

    @property
    def contested(self) -> list[str]:
        """Names that more than one host wrote: on SageMaker the last one wins."""
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
                    continue  # replaced or deleted meanwhile
                self._seen[path] = mark
                self._writers.setdefault(name, set()).add(host)

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self.up()


def _marks(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
        except OSError:
            continue  # gone since it was listed
    return found
