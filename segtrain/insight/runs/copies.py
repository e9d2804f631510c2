"""Local copy of a remote run, with an index of what was fetched, so that only changes are fetched again."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from segtrain.base.json_text import read_json, write_json
from segtrain.errors import file_error
from segtrain.insight.runs.bucket import PARALLEL, WantedFile, explained, fetch, stream, unwritable

INDEX = "fetched.json"
UNPACKED = "unpacked"  # folder in a copy for the files of an archive


class Copy:
    """A folder and its index: file -> ``mark`` of its WantedFile when it was fetched.

    Raises DataError if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        self._marks: dict[str, str] = read_json(folder / INDEX)

    def missing(self, files: Mapping[str, WantedFile]) -> dict[str, WantedFile]:
        """The files that were not fetched yet, or have changed in the bucket since."""
        return {
            name: wanted
            for name, wanted in files.items()
            if self._marks.get(name) != wanted.mark or not (self.folder / name).is_file()
        }

    def take(self, files: Mapping[str, WantedFile]) -> None:
        """Fetch the missing files in parallel. The first error ends the fetch; no file is left half-written."""
        missing, pool = self.missing(files), ThreadPoolExecutor(PARALLEL)
        try:
            fetched = pool.map(lambda name: fetch(files[name], self.folder / name), missing)
            for name, _ in zip(missing, fetched):
                self._marks[name] = files[name].mark
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for thousands of files.
            self._keep()

    def unpack(self, archive: WantedFile, names: re.Pattern[str], most: int, say: Callable[[str], None]) -> None:
        """Unpack the files of a tar.gz whose names match ``names`` into the folder ``UNPACKED``.

        Group 1 of the match is the file's path in that folder. Files that would bring the sum above ``most`` bytes are
        left out, with a warning. The archive itself is not kept.
        """
        folder, uri = self.folder / UNPACKED, archive.item.uri
        if self._marks.get(UNPACKED) == archive.mark and folder.is_dir():
            return
        shutil.rmtree(folder, ignore_errors=True)
        left, out = most, 0
        try:
            with (
                explained(uri, folder), stream(archive.item) as content,
                tarfile.open(fileobj=content, mode="r|gz") as tar,
            ):  # fmt: skip
                for member in tar:
                    found = names.fullmatch(PurePosixPath(member.name).as_posix())
                    source = tar.extractfile(member) if found and member.isfile() else None
                    if found is None or source is None:
                        continue
                    if member.size > left:
                        out += 1
                        continue
                    left -= member.size
                    target = folder / found[1]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(source.read())
                    os.utime(target, (member.mtime, member.mtime))
        except (tarfile.TarError, EOFError, zlib.error) as error:
            problem = f"the archive is incomplete ({error}): the job writes it when it ends: try again then"
            raise file_error(uri, problem, code="archive-torn") from None
        if out:
            say(f"warning: {uri} has more than {most >> 20} MB of records: {out} files are left out")
        self._marks[UNPACKED] = archive.mark
        self._keep()

    def keep_only(self, names: Collection[str]) -> None:
        """Remove fetched files that are not wanted any more."""
        for name in set(self._marks) - set(names):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            del self._marks[name]
        self._keep()

    def _keep(self) -> None:
        try:
            write_json(self.folder / INDEX, self._marks)
        except OSError as error:
            raise unwritable(self.folder, error) from None
