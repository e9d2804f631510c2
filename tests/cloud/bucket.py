"""A server of S3 and of GCS's XML interface on loopback for a folder, with a delay and faults of several kinds."""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

FAULTS = ("503", "500", "reset", "cut")
# Of an answer with an object: another range than asked for, in fact or by its header; a body that is longer, or shorter
# than its header says; all of the object with status 200; another etag; a body that takes for ever.
LIES = ("other range", "range header", "long", "short", "whole", "etag", "endless")


class BucketServer(ThreadingHTTPServer):
    """Buckets are the folders in ``folder``.

    delay: seconds before each answer. rate: bytes/s of all answers together. fault: share of the requests that fail, by
    each of ``faults`` in turn. lie: one of LIES that every answer with an object tells. down: reset every connection.
    last: reset every connection after so many objects were asked for.
    status: answer every request with it. match: obey If-Match. page: objects per page of a listing. ``requests`` counts
    methods, ``failed`` faults; ``asked`` has the path and range of each request. ``released``: a request with the fault
    "held" waits for it.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.delay, self.fault, self.faults = folder, 0.0, 0.0, FAULTS
        self.down, self.match, self.status, self.page, self.lie, self.rate = False, True, 0, 1000, "", 0.0
        self.sent_until, self.last = 0.0, 0
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.random, self.lock = random.Random(1), threading.Lock()
        self.faulty, self.released = 0, threading.Event()
        self._gather: tuple[str, int] = ("", 0)
        self._gathered, self._skip, self._came = 0, 0, threading.Condition(self.lock)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """Variables that send segtrain here, without credentials."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1",
            "STORAGE_EMULATOR_HOST": self.url, "GOOGLE_SKIP_SIGNATURE": "true",
        }  # fmt: skip

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def gather(self, count: int, what: str = "", skip: int = 0) -> None:
        """Answer no request whose method and path match ``what`` before ``count`` of them have come: see ``gathered``.

        The first ``skip`` of them are answered at once.
        """
        with self.lock:
            self._gather, self._gathered, self._skip = (what, count), 0, skip

    @property
    def gathered(self) -> bool:
        """Whether so many requests were in flight at once. Their number does not depend on how fast threads run."""
        with self.lock:
            return self._gathered >= self._gather[1] > 0

    def meet(self, request: str) -> None:
        """Wait until enough requests are there; after a minute without them, let all requests pass."""
        with self.lock:
            what, count = self._gather
            if not count or self._gathered >= count or not re.search(what, request):
                return
            if self._skip:
                self._skip -= 1
                return
            self._gathered += 1
            self._came.notify_all()
            if not self._came.wait_for(lambda: self._gathered >= count or not self._gather[1], 60):
                self._gather = ("", 0)
                self._came.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away


def etag_of(path: Path) -> str:
    return f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'


def generation_of(path: Path) -> str:
    """Each write makes a new file, so its number and its time change."""
    found = path.stat()
    return str(found.st_mtime_ns ^ found.st_ino)


class _Handler(BaseHTTPRequestHandler):
    server: BucketServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.meet(f"{self.command} {unquote(self.path)}")
        self._handle()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _handle(self) -> None:
        server, place = self.server, urlsplit(self.path)
        body = self._body() if self.command in ("PUT", "POST") else b""
        query = {key: values[0] for key, values in parse_qs(place.query, keep_blank_values=True).items()}
        with server.lock:
            server.requests["list" if "list-type" in query else self.command] += 1
            server.asked.append((unquote(place.path), self.headers.get("Range", "")))
            fault = ""
            if server.random.random() < server.fault:
                server.faulty += 1
                fault = server.faults[server.faulty % len(server.faults)]
        if server.delay:
            time.sleep(server.delay)
        if server.down or (server.last and server.requests["GET"] > server.last):
            return self._reset()
        if fault or server.status:
            with server.lock:
                server.failed[fault or str(server.status)] += 1
        if server.status:
            return self._answer(server.status, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
        if fault.isdigit():
            code = {"400": "RequestTimeout"}.get(fault, "SlowDown")
            return self._answer(int(fault), f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
        if fault == "slow":
            time.sleep(1)
        if fault == "held":
            server.released.wait(600)
        if fault == "reset":
            return self._reset()
        if "list-type" in query:
            return self._list(unquote(place.path).strip("/"), query)
        path = server.folder / unquote(place.path).lstrip("/")
        if self.command in ("PUT", "POST", "DELETE"):
            return self._reset() if fault == "cut" else self._change(path, query, body)
        self._object(path, fault or server.lie)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _change(self, path: Path, query: dict[str, str], body: bytes) -> None:
        """Write or remove an object, or a part of a large one. An object appears whole, in one step."""
        server, upload = self.server, query.get("uploadId", "")
        if self.command == "DELETE":
            with server.lock:
                if server.uploads.pop(upload, None) is None:
                    path.unlink(missing_ok=True)
            return self._answer(204, b"")
        if self.command == "POST" and "delete" in query:
            keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for key in keys:
                (path / key).unlink(missing_ok=True)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
        if self.command == "POST" and "uploads" in query:
            with server.lock:
                upload = f"upload-{len(server.uploads)}-{server.requests.total()}"
                server.uploads[upload] = {}
            xml = f"<Bucket>b</Bucket><Key>{escape(path.name)}</Key><UploadId>{upload}</UploadId>"
            return self._answer(200, f"<InitiateMultipartUploadResult>{xml}</InitiateMultipartUploadResult>".encode())
        if upload and upload not in server.uploads:
            return self._answer(404, b"<Error><Code>NoSuchUpload</Code><Message>no</Message></Error>")
        if upload and self.command == "PUT":
            server.uploads[upload][int(query["partNumber"])] = body
            return self._answer(200, b"", ETag=f'"{hashlib.md5(body).hexdigest()}"')
        if source := unquote(self.headers.get("x-amz-copy-source", "")):
            original = server.folder / source.lstrip("/")
            if not original.is_file():
                return self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")
            body = original.read_bytes()
        if upload:
            body = b"".join(content for _, content in sorted(server.uploads[upload].items()))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{threading.get_ident()}")
        partial.write_bytes(body)
        with server.lock:
            replaced = not server.match or self._may_replace(path)
            if replaced:
                partial.replace(path)
                server.uploads.pop(upload, None)
        if not replaced:
            partial.unlink()
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        etag, generation = etag_of(path), generation_of(path)
        done = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        if source:
            done = f"<CopyObjectResult><ETag>{escape(etag)}</ETag></CopyObjectResult>"
        self._answer(200, done.encode() if upload or source else b"", ETag=etag, x_goog_generation=generation)

    def _may_replace(self, path: Path) -> bool:
        """Whether the object is the version that the request wants to replace."""
        etag, generation = self.headers.get("If-Match"), self.headers.get("x-goog-if-generation-match")
        if self.headers.get("If-None-Match") == "*" or generation == "0":
            return not path.exists()
        if generation is not None:
            return path.exists() and generation == generation_of(path)
        return etag is None or (path.exists() and etag == etag_of(path))

    def _reset(self) -> None:
        # A linger time of 0 sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _object(self, path: Path, lie: str) -> None:
        if not path.is_file():
            there = (self.server.folder / path.relative_to(self.server.folder).parts[0]).is_dir()
            code = "NoSuchKey" if there else "NoSuchBucket"
            return self._answer(404, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
        content, etag = path.read_bytes(), etag_of(path)
        wanted = self.headers.get("If-Match")
        if self.server.match and wanted not in (None, etag):
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        begin, end, asked = 0, len(content), self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if not first:  # the last bytes
                begin = max(0, end - int(last))
            else:
                begin, end = int(first), min(end, int(last) + 1) if last else end
            if begin >= len(content):
                return self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        if lie == "short":
            end = max(begin + 1, end - 1)
        if lie == "other range":
            begin, end = (begin + 1, end + 1) if end < len(content) else (begin - 1, end - 1)
        body = content[begin:end] + b"x" * 7 * (lie == "long")
        if lie == "whole":
            asked, body = None, content
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"lie"' if lie == "etag" else etag)
        self.send_header("x-goog-generation", generation_of(path))
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.send_header("Content-Length", str(len(body)))
        if asked:
            shift = lie == "range header"
            self.send_header("Content-Range", f"bytes {begin + shift}-{end - 1 + shift}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if lie == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            return self._reset()
        if lie == "endless":
            return self._drip(body)
        self._paced(len(body))
        self.wfile.write(body)

    def _drip(self, body: bytes) -> None:
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.1)

    def _paced(self, count: int) -> None:
        """Wait until the bytes of all answers so far could have been sent at the server's rate."""
        server = self.server
        if not server.rate:
            return
        with server.lock:
            server.sent_until = max(server.sent_until, time.monotonic()) + count / server.rate
            until = server.sent_until
        time.sleep(max(0.0, until - time.monotonic()))

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        root = self.server.folder / bucket
        if not root.is_dir():
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code><Message>no</Message></Error>")
        paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
        keys = {path.relative_to(root).as_posix(): path for path in paths}
        names = sorted(key for key in keys if key.startswith(prefix))
        if query.get("delimiter"):
            below = {key: key[: key.find("/", len(prefix)) + 1] for key in names}
            names = sorted({below[key] or key for key in names})
        names = [name for name in names if name > after]
        page = names[: self.server.page]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(etag_of(keys[key]))}</ETag><Size>{keys[key].stat().st_size}</Size></Contents>"
            for key in page
            if not key.endswith("/")
        )
        rows += "".join(
            f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in page if key.endswith("/")
        )
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>x</Name>'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        )
        self._answer(200, body.encode())
