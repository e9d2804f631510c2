"""Object store of a rehearsal: a server of S3 and of Cloud Storage's XML API, where each bucket is
a local folder.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SECRET = "rehearsal"  # any access key and secret are accepted


class Response(NamedTuple):
    """An answer to a request. ``headers`` may name another Content-Length than that of
    ``content``.
    """

    status: int
    content: bytes = b""
    headers: Mapping[str, object] = {}


class Handler(BaseHTTPRequestHandler):
    server: BucketServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.respond()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def respond(self) -> None:
        self.send(self.answer(self.read_body()))

    def send(self, answer: Response) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": len(answer.content), **answer.headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(self, body: bytes) -> Response:
        """Obey a request, and return the answer."""
        parts = urlsplit(self.path)
        query = {
            key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        # No path may lead out of the folder: every user of this machine can send requests.
        names = [name for name in unquote(parts.path).split("/") if name not in ("", ".", "..")]
        path = self.server.folder.joinpath(*names)
        if "list-type" in query:
            return self._list(path, query)
        if self.command in ("GET", "HEAD"):
            return self._object(path)
        if "uploads" in query or "uploadId" in query:
            return self._upload(path, query, body)
        if "delete" in query:
            keys = re.findall(r"<Key>.*?</Key>", body.decode())
            for key in keys:
                (path / unescape(key[5:-6])).unlink(missing_ok=True)
            deleted = "".join(f"<Deleted>{key}</Deleted>" for key in keys)
            return Response(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if self.command == "DELETE":
            try:
                path.unlink()
            except OSError:
                return self._missing(path)
            return Response(204)
        return self._store(path, body)

    def _missing(self, path: Path) -> Response:
        bucket = self.server.folder / path.relative_to(self.server.folder).parts[0]
        return refusal(404, "NoSuchKey" if bucket.is_dir() else "NoSuchBucket")

    def _object(self, path: Path) -> Response:
        """An object, or the range of its bytes that is asked for."""
        try:
            file = path.open("rb")
        except OSError:
            return self._missing(path)
        with file:
            status = os.fstat(file.fileno())
            begin, end, size = 0, status.st_size, status.st_size
            headers: dict[str, object] = self._version(path)
            if self.headers.get("If-Match") not in (None, headers["ETag"]):
                return refusal(412, "PreconditionFailed")
            wanted = self.headers.get("Range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                if not first:  # the last bytes
                    begin = max(0, size - int(last))
                else:
                    begin, end = int(first), min(size, int(last) + 1) if last else size
                if begin >= size:
                    return refusal(416, "InvalidRange")
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            headers["Last-Modified"] = self.date_time_string(int(status.st_mtime))
            headers["Content-Length"] = end - begin
            file.seek(begin)
            content = b"" if self.command == "HEAD" else file.read(end - begin)
        return Response(206 if wanted else 200, content, headers)

    def _upload(self, path: Path, query: dict[str, str], body: bytes) -> Response:
        """Begin, continue, end, or abort an upload in parts."""
        uploads, name = self.server.uploads, query.get("uploadId", "")
        if not name:
            name = f"upload-{next(self.server.numbers)}"
            uploads[name] = {}
            xml = f"<Bucket>b</Bucket><Key>{escape(path.name)}</Key><UploadId>{name}</UploadId>"
            return Response(
                200,
                f"<InitiateMultipartUploadResult>{xml}</InitiateMultipartUploadResult>".encode(),
            )
        if name not in uploads:
            return refusal(404, "NoSuchUpload")
        if self.command == "PUT":
            uploads[name][int(query["partNumber"])] = body
            return Response(200, headers={"ETag": f'"{len(body)}-{query["partNumber"]}"'})
        parts = uploads.pop(name)
        if self.command == "DELETE":
            return Response(204)
        stored = self._store(path, b"".join(content for _, content in sorted(parts.items())))
        if stored.status == 200:
            etag = escape(str(stored.headers["ETag"]))
            tag = "CompleteMultipartUploadResult"
            stored = stored._replace(content=f"<{tag}><ETag>{etag}</ETag></{tag}>".encode())
        return stored

    def _store(self, path: Path, content: bytes) -> Response:
        with self.server.lock:
            if not self._may_write(path):
                return refusal(412, "PreconditionFailed")
            self.server.write(path, content)
            return Response(200, headers=self._version(path))

    def _version(self, path: Path) -> dict[str, object]:
        return {"ETag": self.server.etag_of(path), "x-goog-generation": generation_of(path)}

    def _may_write(self, path: Path) -> bool:
        """Whether the object is the version that the request wants to replace."""
        etag, generation = (
            self.headers.get("If-Match"),
            self.headers.get("x-goog-if-generation-match"),
        )
        if self.headers.get("If-None-Match") == "*":
            generation = "0"
        if generation is not None:
            return generation == generation_of(path)
        return etag in (None, self.server.etag_of(path))

    def _list(self, bucket: Path, query: dict[str, str]) -> Response:
        if not bucket.is_dir():
            return refusal(404, "NoSuchBucket")
        prefix, after = (
            query.get("prefix", ""),
            query.get("continuation-token") or query.get("start-after", ""),
        )
        names = keys_of(bucket, prefix)
        if query.get("delimiter"):
            names = sorted({name[: name.find("/", len(prefix)) + 1] or name for name in names})
        names = [name for name in names if name > after]
        page, rows = names[: self.server.page], []
        for name in page:
            if name.endswith("/"):
                rows.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            try:
                status = (bucket / name).stat()
            except FileNotFoundError:  # deleted just now
                continue
            written = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            rows.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{written}</LastModified>"
                f"<ETag>{escape(self.server.etag_of(bucket / name))}</ETag>"
                f"<Size>{status.st_size}</Size></Contents>"
            )
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        xml = (
            f"<Name>{bucket.name}</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{''.join(rows)}"
        )
        return Response(
            200, f'<?xml version="1.0"?><ListBucketResult>{xml}</ListBucketResult>'.encode()
        )


class BucketServer(ThreadingHTTPServer):
    """A context manager. Each bucket is a folder in ``folder``, and each object a file that is
    written atomically.
    """

    daemon_threads = True
    request_queue_size = 256
    handler = Handler
    page = 1000  # objects in one answer of a listing

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__((address, 0), self.handler)
        self.folder, self.lock = folder, threading.Lock()
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count()
        self._last = 0
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> BucketServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a killed container breaks its connections: print no traceback

    @property
    def url(self) -> str:
        address, port = self.server_address[:2]
        return f"http://{address!s}:{port}"

    def google_environment(self) -> dict[str, str]:
        """The environment variables with which segtrain and Google's clients find this server."""
        return {"STORAGE_EMULATOR_HOST": self.url, "GOOGLE_SKIP_SIGNATURE": "true"}

    def aws_environment(self, region: str) -> dict[str, str]:
        """Variables with which AWS's toolkit and any S3 client in a container find this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": SECRET,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def place(self, url: str) -> Path:
        """The file or folder of an s3:// or gs:// address."""
        return self.folder / url.partition("://")[2]

    def etag_of(self, path: Path) -> str:
        return f'"{generation_of(path)}"'

    def write(self, path: Path, content: bytes) -> None:
        """Write an object. The caller must hold ``lock`` if others may write. The file's time is
        the generation.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{threading.get_ident()}.part"
        partial.write_bytes(content)
        self._last = max(self._last + 1, time.time_ns())
        os.utime(partial, ns=(self._last, self._last))
        partial.replace(path)

    def put(self, path: Path, url: str) -> None:
        content = path.read_bytes()
        with self.lock:
            self.write(self.place(url), content)

    def put_folder(self, folder: Path, url: str) -> int:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            self.put(path, f"{url.rstrip('/')}/{path.relative_to(folder).as_posix()}")
        return len(files)

    def keys(self, url: str) -> list[str]:
        """Every key that begins with the prefix, as in SageMaker: ``s3://b/run-1`` finds
        ``run-10/`` too.
        """
        bucket, _, prefix = url.partition("://")[2].partition("/")
        return keys_of(self.folder / bucket, prefix)

    def get_folder(self, url: str, folder: Path, share: tuple[int, int] = (0, 1)) -> int:
        """Copy the objects below a prefix. ``share`` is (first, step): every ``step``-th one, from
        index ``first``.
        """
        bucket, _, prefix = url.partition("://")[2].partition("/")
        keys = self.keys(url)[share[0] :: share[1]]
        for key in keys:
            # the prefix may be a whole key
            path = folder / (key[len(prefix) :].lstrip("/") or Path(key).name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / bucket / key, path)
        return len(keys)


def refusal(status: int, code: str) -> Response:
    return Response(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


def keys_of(bucket: Path, prefix: str) -> list[str]:
    paths = (Path(folder, name) for folder, _, names in os.walk(bucket) for name in names)
    keys = (path.relative_to(bucket).as_posix() for path in paths)
    return sorted(key for key in keys if key.startswith(prefix))


def generation_of(path: Path) -> str:
    """The generation of an object, which changes with each write; "0" if the object does not
    exist.
    """
    try:
        return str(path.stat().st_mtime_ns)
    except OSError:
        return "0"
