"""Lists the objects of runs in the buckets of S3, Google, and Azure, and keeps local copies of
them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from segtrain.base.files import replacing
from segtrain.base.json_text import read_json, write_json
from segtrain.bucket import CLOUDS, command_of, scheme_of, split_url
from segtrain.bucket.client import Client, client_of, etag_of
from segtrain.bucket.download import download
from segtrain.errors import DataError, file_error
from segtrain.observe.journal import Say

OUTAGE_S = 60.0  # seconds without an answer after which a request fails
PARALLEL = 16  # files fetched at the same time: most are small, and take one round trip
# Listing more takes minutes, and so many objects are a whole bucket rather than one run.
MOST_OBJECTS = 300_000
HEAD = 1 << 16  # bytes fetched from the start of a file that is too large to be fetched whole
# tries to read both parts of an object from one version, if the object is replaced at the same time
TRIES = 3


@dataclass(frozen=True)
class Object:
    """An object of the bucket ``base``, such as ``s3://BUCKET``.

    ``etag`` changes with its content; ``modified``: Unix time.
    """

    base: str
    key: str
    size: int
    etag: str
    modified: float

    @property
    def uri(self) -> str:
        return f"{self.base}/{self.key}"


@dataclass(frozen=True)
class WantedFile:
    """An object to fetch.

    If it has more than ``most`` + HEAD bytes, only its first lines and its last ``most`` bytes are
    fetched.
    """

    item: Object
    most: int

    @property
    def mark(self) -> str:
        """A text that identifies the bytes to fetch: if it is equal to an earlier one, they have
        not changed.
        """
        return f"{self.item.etag} {self.bytes} {self.item.size}"

    @property
    def cut(self) -> bool:
        return self.item.size > self.most + HEAD

    @property
    def bytes(self) -> int:
        return self.most if self.cut else self.item.size


def list_objects(uri: str) -> list[Object]:
    """All objects below the folder ``uri``, in the order of keys."""
    base, prefix = split_url(uri)
    objects: list[Object] = []
    with explained(uri):
        for page in client_of(base).below(prefix and f"{prefix}/", OUTAGE_S):
            objects += [
                Object(
                    base,
                    item["path"],
                    item["size"],
                    etag_of(item),
                    item["last_modified"].timestamp(),
                )
                for item in page
            ]
            if len(objects) > MOST_OBJECTS:
                raise file_error(
                    uri,
                    f"there are more than {MOST_OBJECTS} objects: name the prefix of one run",
                    code="too-many-objects",
                )
    return objects


def fetch(wanted: WantedFile, target: Path) -> None:
    """Copy an object, or the first and the newest lines of a large one, to a file, atomically."""
    item, client = wanted.item, client_of(wanted.item.base)
    with explained(item.uri, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as partial:
            if not wanted.cut:
                download(client, item.key, partial, item.size, OUTAGE_S)
            else:
                head, tail = _ends(client, wanted)
                # The tail usually begins in the middle of a line.
                partial.write_bytes(head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :])
            # The age of a journal shows whether its run is alive.
            os.utime(partial, (item.modified, item.modified))


def _ends(client: Client, wanted: WantedFile) -> tuple[bytes, bytes]:
    """The first and the last bytes of an object, both from the same version, even if a run replaces
    it meanwhile.
    """
    for left in reversed(range(TRIES)):
        try:
            head = client.get(wanted.item.key, (0, HEAD), "", OUTAGE_S)
            span = max(0, head.size - wanted.most), head.size
            tail = client.get(wanted.item.key, span, head.etag, OUTAGE_S)
            return bytes(head.content), bytes(tail.content)
        except DataError as error:
            if error.code != "object-changed" or not left:
                raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def explained(what: str, target: Path | None = None) -> Iterator[None]:
    """Name the location in the error of an outage, and leave out data.outage_s, which does not
    apply here.
    """
    try:
        yield
    except DataError as error:
        if error.code != "bucket-unreachable":
            raise
        raise file_error(
            what,
            f"the bucket did not answer for {OUTAGE_S:g} s: check the network, and the "
            "address of the bucket",
            code="bucket-unreachable",
        ) from None
    except OSError as error:
        raise unwritable(target or Path(tempfile.gettempdir()), error) from None


def unwritable(path: Path, error: OSError) -> DataError:
    """The error for a copy that cannot be written."""
    return file_error(
        str(path),
        f"it cannot be written: {error.strerror or error}: set SEGTRAIN_CACHE to a folder "
        "with free space",
        code="cache-unwritable",
    )


def print_command(uri: str) -> str:
    """The command that writes an object to the standard output."""
    return command_of(CLOUDS[scheme_of(uri)].print_command, uri)


def to_read_all_of(home: str) -> str:
    """A sentence with the command that copies a folder from a bucket."""
    copy = command_of(CLOUDS[scheme_of(home)].copy_command, home)
    return f"To read all of it: {copy}, then name FOLDER"


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
        """Fetch the missing files in parallel. The first error ends the fetch; no file is left
        half-written.
        """
        missing, pool = self.missing(files), ThreadPoolExecutor(PARALLEL)
        try:
            fetched = pool.map(lambda name: fetch(files[name], self.folder / name), missing)
            for name, _ in zip(missing, fetched):
                self._marks[name] = files[name].mark
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for thousands of files.
            self._keep()

    def unpack(self, archive: WantedFile, names: re.Pattern[str], most: int, say: Say) -> None:
        """Unpack the files of a tar.gz whose names match ``names`` into the folder ``UNPACKED``.

        Group 1 of the match is the file's path in that folder. Files that would bring the sum above
        ``most`` bytes are left out, with a warning. The archive itself is not kept.
        """
        folder = self.folder / UNPACKED
        item = archive.item
        uri = archive.item.uri
        if self._marks.get(UNPACKED) == archive.mark and folder.is_dir():
            return
        shutil.rmtree(folder, ignore_errors=True)
        left, out = most, 0
        try:
            with explained(uri, folder), tempfile.NamedTemporaryFile(dir=self.folder) as file:
                download(client_of(item.base), item.key, Path(file.name), item.size, OUTAGE_S)
                with tarfile.open(fileobj=file, mode="r|gz") as tar:
                    for member in tar:
                        match = names.fullmatch(PurePosixPath(member.name).as_posix())
                        source = tar.extractfile(member) if match and member.isfile() else None
                        if match is None or source is None:
                            continue
                        if member.size > left:
                            out += 1
                            continue
                        left -= member.size
                        target = folder / match[1]
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(source.read())
                        os.utime(target, (member.mtime, member.mtime))
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise file_error(
                uri,
                f"the archive is incomplete ({error}): the job writes it when it ends: try "
                "again then",
                code="archive-torn",
            ) from None
        if out:
            say(
                f"warning: {uri} has more than {most >> 20} MB of records: {out} files are left out"
            )
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
