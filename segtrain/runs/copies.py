"""The local copy of a remote run, with an index of what was fetched, so that only changes are fetched again."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from segtrain.errors import DataError, SegtrainError
from segtrain.files import writing
from segtrain.runs.bucket import PARALLEL, Account, Object, explain

INDEX = "fetched.json"
UNPACKED = "unpacked"  # of a copy: what came out of an archive


@dataclass(frozen=True)
class WantedFile:
    """An object, and how many bytes of it at most: of a larger one the first and the newest lines."""

    item: Object
    most: int

    @property
    def mark(self) -> str:
        """Equal where the same bytes would be fetched."""
        return f"{self.item.etag} {min(self.most, self.item.size)} {self.item.size}"

    @property
    def bytes(self) -> int:
        return min(self.most, self.item.size)


class Copy:
    """``folder`` and its index: file -> mark of what was fetched. Raises DataError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from None
        try:
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        self._marks: dict[str, str] = content if isinstance(content, dict) else {}

    def missing(self, files: Mapping[str, WantedFile]) -> dict[str, WantedFile]:
        """Those that are not here as they are there."""
        return {
            name: wanted
            for name, wanted in files.items()
            if self._marks.get(name) != wanted.mark or not (self.folder / name).is_file()
        }

    def take(self, account: Account, files: Mapping[str, WantedFile]) -> None:
        """Fetch what is missing, side by side. The first error ends it, and leaves whole files."""
        todo = self.missing(files)

        def one(name: str) -> str:
            account.fetch(todo[name].item, self.folder / name, todo[name].most)
            return name

        pool = ThreadPoolExecutor(PARALLEL)
        try:
            for name in pool.map(one, todo):
                self._marks[name] = todo[name].mark
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for thousands of files
            self._keep()

    def unpack(
        self, account: Account, archive: WantedFile, names: re.Pattern[str], most: int, say: Callable[[str], None]
    ) -> None:
        """The files of a tar.gz whose names match into ``UNPACKED/``, group 1 being the name there; the archive is not kept.

        Those beyond ``most`` bytes in all are left out, and said.
        """
        folder = self.folder / UNPACKED
        if self._marks.get(UNPACKED) == archive.mark and folder.is_dir():
            return
        shutil.rmtree(folder, ignore_errors=True)
        left, out = most, 0
        try:
            with account.stream(archive.item) as stream, tarfile.open(fileobj=stream, mode="r|gz") as tar:
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
        except SegtrainError:
            raise
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(f"{archive.item.uri} is no whole archive ({error}): a job writes it at its end") from None
        except OSError as error:
            raise _unwritable(folder, error) from None
        except Exception as error:
            raise explain(error, archive.item.uri) from None
        if out:
            say(f"warning: {archive.item.uri} holds more than {most >> 20} MB of records: {out} files are left out")
        self._marks[UNPACKED] = archive.mark
        self._keep()

    def keep_only(self, names: Collection[str]) -> None:
        """Remove what was fetched before and is wanted no more: gone from the bucket, or another part of a long profile."""
        for name in set(self._marks) - set(names):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            del self._marks[name]
        self._keep()

    def _keep(self) -> None:
        try:
            with writing(self.folder / INDEX) as stream:
                stream.write(json.dumps(self._marks).encode())
        except OSError as error:
            raise _unwritable(self.folder, error) from None


def _unwritable(folder: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {folder}: {error.strerror or error}: set SEGTRAIN_CACHE to a folder with room")
