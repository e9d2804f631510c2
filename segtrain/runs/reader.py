"""Lists and fetches the objects of runs in any bucket with ``segtrain.bucket``; bucket.py does so for S3 with boto3."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from segtrain.bucket import split_url
from segtrain.bucket.client import Client, client_of, etag_of
from segtrain.bucket.download import download
from segtrain.errors import ConfigError, DataError, file_error
from segtrain.files import replacing
from segtrain.runs.bucket import HEAD, MOST_OBJECTS, TRIES, Account, Object, WantedFile, too_many, unwritable

SCHEMES = ("s3://", "gs://", "az://")
OUTAGE_S = 60.0  # seconds without an answer after which a request fails


class Reader(Protocol):
    """Lists objects, and copies them to files."""

    def list(self, uri: str) -> list[Object]: ...
    def stream(self, item: Object) -> Any: ...
    def fetch(self, wanted: WantedFile, target: Path) -> None: ...


def reader_of(uri: str) -> Reader:
    """The reader of a folder in a bucket.

    S3 is read with boto3 if it is installed, because it supports every kind of sign-in. Anonymous access
    (AWS_SKIP_SIGNATURE) needs obstore, because boto3 has no environment variable for it. Google and Azure always use
    obstore.
    """
    found = {name: importlib.util.find_spec(name) is not None for name in ("boto3", "obstore")}
    signed = not os.environ.get("AWS_SKIP_SIGNATURE")
    if uri.startswith("s3://") and (not found["obstore"] or (found["boto3"] and signed)):
        return Account()
    return BucketReader()


class BucketReader:
    """Reads S3, Google, and Azure by obstore."""

    def list(self, uri: str) -> list[Object]:
        """All objects below the folder ``uri``, in the order of keys."""
        base, prefix = split_url(uri)
        scheme, _, bucket = base.partition("://")
        if not bucket:
            raise ConfigError(f"{uri!r} names no bucket: {scheme}://BUCKET/PREFIX", code="bucket-name-missing")
        found: list[Object] = []
        with _explained(uri):
            for page in client_of(base).below(prefix and f"{prefix}/", OUTAGE_S):
                found += [
                    Object(bucket, item["path"], item["size"], etag_of(item), item["last_modified"].timestamp(), scheme)
                    for item in page
                ]
                if len(found) > MOST_OBJECTS:
                    raise too_many(uri)
        return found

    def stream(self, item: Object) -> Any:
        """The bytes of an object, as a file that is removed when it is closed."""
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115 (the caller closes it)
        with _explained(item.uri):
            download(client_of(item.base), item.key, Path(file.name), item.size, OUTAGE_S)
        return file

    def fetch(self, wanted: WantedFile, target: Path) -> None:
        """Copy an object, or the first and the newest lines of a large one, to a file, atomically."""
        item, client = wanted.item, client_of(wanted.item.base)
        with _explained(item.uri, target):
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
    """The first and the last bytes of an object, both from the same version, even if a run replaces it meanwhile."""
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
def _explained(what: str, target: Path | None = None) -> Iterator[None]:
    """Name the location in the error of an outage, and leave out data.outage_s, which does not apply here."""
    try:
        yield
    except DataError as error:
        if error.code != "bucket-unreachable":
            raise
        problem = f"the bucket did not answer for {OUTAGE_S:g} s: check the network, and the address of the bucket"
        raise file_error(what, problem, code="bucket-unreachable") from None
    except OSError as error:
        raise unwritable(target or Path(tempfile.gettempdir()), error) from None


# The command of each cloud that lists objects.
LIST_COMMANDS = {"s3": "aws s3 ls", "gs": "gcloud storage ls", "az": "az storage blob list -c CONTAINER"}


def print_command(item: Object) -> str:
    """The command that writes an object to the standard output."""
    if item.scheme == "az":
        return f"az storage blob download -c {quote(item.bucket)} -n {quote(item.key)} --no-progress"
    return f"gcloud storage cat {quote(item.uri)}" if item.scheme == "gs" else f"aws s3 cp {quote(item.uri)} -"


def to_read_all_of(home: str) -> str:
    """A sentence with the command that copies a folder from a bucket.

    The commands for S3 and Google leave out checkpoints; the one for Azure copies them too.
    """
    copy = f"aws s3 sync {quote(home)} FOLDER --exclude 'checkpoints/*'"
    if home.startswith("gs://"):
        copy = f"gcloud storage rsync -r --exclude='.*\\.pt$' {quote(home)} FOLDER"
    if home.startswith("az://"):
        container, _, prefix = home.removeprefix("az://").partition("/")
        copy = f"az storage blob download-batch -s {quote(container)} -d FOLDER --pattern {quote(prefix + '/*')}"
    return f"To read all of it: {copy}, then name FOLDER"
