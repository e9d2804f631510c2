"""Cloud Storage for a rehearsal: a server with its XML API and without credentials. Each bucket is a local folder."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000  # objects in one answer of a listing


class StorageServer(ThreadingHTTPServer):
    """A context manager. Each bucket is a folder in ``folder``, and each object a file that is written atomically."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__((address, 0), _Handler)
        self.folder, self.lock = folder, threading.Lock()
        self.uploads: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._last = 0
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> StorageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which segtrain and Google's clients find this server."""
        address, port = self.server_address[:2]
        return {"STORAGE_EMULATOR_HOST": f"http://{address!s}:{port}", "GOOGLE_SKIP_SIGNATURE": "true"}

    def place(self, url: str) -> Path:
        """The file or folder of a gs:// address."""
        return self.folder / url.removeprefix("gs://")

    def write(self, path: Path, content: bytes) -> None:
        """Write an object. The caller must hold ``lock`` if clients may write. The file's time is the generation."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{threading.get_ident()}.part"
        partial.write_bytes(content)
        self._last = max(self._last + 1, time.time_ns())
        os.utime(partial, ns=(self._last, self._last))
        partial.replace(path)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a killed container breaks its connections: print no traceback


def generation(path: Path) -> str:
    """The generation of an object, which changes with each write; "0" if the object does not exist."""
    try:
        return str(path.stat().st_mtime_ns)
    except OSError:
        return "0"


class _Handler(BaseHTTPRequestHandler):
    server: StorageServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _target(self) -> tuple[Path, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        # No path may lead out of the folder: every user of this machine can send requests.
        names = [name for name in unquote(parts.path).split("/") if name not in ("", ".", "..")]
        return self.server.folder.joinpath(*names), query

    def _answer(self, status: int, content: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def do_GET(self) -> None:
        path, query = self._target()
        if "list-type" in query or "prefix" in query:
            return self._list(path, query)
        try:
            file = path.open("rb")
        except OSError:
            return self._refuse(404, "NoSuchKey")
        with file:
            self._send(file)

    do_HEAD = do_GET

    def _send(self, file: BinaryIO) -> None:
        """Answer with an object, or with the range of its bytes that is asked for."""
        status = os.fstat(file.fileno())
        etag, size = f'"{status.st_mtime_ns}"', status.st_size
        if self.headers.get("If-Match") not in (None, etag):
            return self._refuse(412, "PreconditionFailed")
        asked = self.headers.get("Range")
        begin, end = 0, size
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if not first:  # the last bytes
                begin = max(0, end - int(last))
            else:
                begin, end = int(first), min(end, int(last) + 1) if last else end
            if begin >= size:
                return self._refuse(416, "InvalidRange")
        headers = {"Content_Range": f"bytes {begin}-{end - 1}/{size}"} if asked else {}
        file.seek(begin)
        self._answer(
            206 if asked else 200,
            b"" if self.command == "HEAD" else file.read(end - begin),
            Content_Length=end - begin,
            ETag=etag,
            x_goog_generation=status.st_mtime_ns,
            Last_Modified=self.date_time_string(int(status.st_mtime)),
            **headers,
        )

    def do_PUT(self) -> None:
        (path, query), body = self._target(), self._body()
        if "uploadId" in query:
            with self.server.lock:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self._answer(200, ETag=f'"{len(body)}-{query["partNumber"]}"')
        self._store(path, body)

    def do_POST(self) -> None:
        path, query = self._target()
        self._body()  # read and dropped: it lists the parts, which ``uploads`` already has by their numbers
        if "uploads" in query:
            name = f"upload-{time.monotonic_ns()}"
            xml = f"<Bucket>b</Bucket><Key>{escape(path.name)}</Key><UploadId>{name}</UploadId>"
            return self._answer(200, f"<InitiateMultipartUploadResult>{xml}</InitiateMultipartUploadResult>".encode())
        with self.server.lock:
            parts = self.server.uploads.pop(query["uploadId"], {})
        self._store(path, b"".join(content for _, content in sorted(parts.items())), multipart=True)

    def do_DELETE(self) -> None:
        path, query = self._target()
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
            return self._answer(204)
        try:
            path.unlink()
        except OSError:
            return self._refuse(404, "NoSuchKey")
        self._answer(204)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _store(self, path: Path, content: bytes, multipart: bool = False) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            known = wanted in (None, generation(path))
            if known:
                self.server.write(path, content)
            now = generation(path)
        if not known:
            return self._refuse(412, "PreconditionFailed")
        done = f'<CompleteMultipartUploadResult><ETag>"{now}"</ETag></CompleteMultipartUploadResult>'
        self._answer(200, done.encode() if multipart else b"", ETag=f'"{now}"', x_goog_generation=now)

    def _list(self, bucket: Path, query: dict[str, str]) -> None:
        if not bucket.is_dir():
            return self._refuse(404, "NoSuchBucket")
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        paths = (Path(folder, name) for folder, _, names in os.walk(bucket) for name in names)
        names = [name for name in (path.relative_to(bucket).as_posix() for path in paths) if name.startswith(prefix)]
        if query.get("delimiter"):
            names = [name[: name.find("/", len(prefix)) + 1] or name for name in names]
        names = sorted(name for name in set(names) if name > after)
        page, rows = names[:PAGE], []
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
                f'<Contents><Key>{escape(name)}</Key><LastModified>{written}</LastModified><ETag>"'
                f'{status.st_mtime_ns}"</ETag><Size>{status.st_size}</Size></Contents>'
            )
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        xml = f"<Name>{bucket.name}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(rows)}"
        self._answer(200, f'<?xml version="1.0"?><ListBucketResult>{xml}</ListBucketResult>'.encode())
