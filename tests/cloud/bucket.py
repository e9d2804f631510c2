"""A server of S3 and of GCS's XML interface on loopback for a folder, with a delay and faults of several kinds."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

FAULTS = ("503", "500", "reset", "cut")


class BucketServer(ThreadingHTTPServer):
    """Buckets are the folders in ``folder``.

    delay: seconds before each answer. fault: share of the requests that fail, by one of ``faults``. down: reset every
    connection. short: answer with fewer bytes than asked for. status: answer every request with it. match: obey
    If-Match. page: objects per page of a listing. ``requests`` counts methods, ``failed`` faults; ``asked`` has the
    path and range of each request.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.delay, self.fault, self.faults = folder, 0.0, 0.0, FAULTS
        self.down, self.short, self.match, self.status, self.page = False, False, True, 0, 1000
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        self.random, self.lock = random.Random(1), threading.Lock()
        self.in_flight = self.most_in_flight = 0
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

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away


def etag_of(path: Path) -> str:
    return f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    server: BucketServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            self._handle()
        finally:
            with server.lock:
                server.in_flight -= 1

    do_HEAD = do_GET

    def _handle(self) -> None:
        server, place = self.server, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(place.query, keep_blank_values=True).items()}
        with server.lock:
            server.requests["list" if "list-type" in query else self.command] += 1
            server.asked.append((unquote(place.path), self.headers.get("Range", "")))
            fault = server.random.choice(server.faults) if server.random.random() < server.fault else ""
        if server.delay:
            time.sleep(server.delay)
        if server.down:
            return self._reset()
        if fault or server.status:
            with server.lock:
                server.failed[fault or str(server.status)] += 1
        if server.status:
            return self._answer(server.status, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
        if fault == "503":
            return self._answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>")
        if fault == "500":
            return self._answer(500, b"<Error><Code>InternalError</Code><Message>again</Message></Error>")
        if fault == "reset":
            return self._reset()
        if "list-type" in query:
            return self._list(unquote(place.path).strip("/"), query)
        self._object(server.folder / unquote(place.path).lstrip("/"), cut=fault == "cut")

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

    def _object(self, path: Path, cut: bool) -> None:
        if not path.is_file():
            return self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")
        content, etag = path.read_bytes(), etag_of(path)
        wanted = self.headers.get("If-Match")
        if self.server.match and wanted not in (None, etag):
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        begin, end, asked = 0, len(content), self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(end, int(last) + 1) if last else end
            if begin >= len(content):
                return self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        if self.server.short:
            end = max(begin + 1, end - 1)
        body = content[begin:end]
        self.send_response(206 if asked else 200)
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.send_header("Content-Length", str(len(body)))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            return self._reset()
        self.wfile.write(body)

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
