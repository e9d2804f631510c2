"""The object store of the rehearsals with a delay and faults of several kinds."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import launch.core.rehearse.buckets as buckets
from launch.core.rehearse.buckets import Response

FAULTS = ("503", "500", "reset", "cut")
# Of an answer with an object: another range than asked for; a body that is longer or shorter; all
# of the object with status 200; another etag; a body that takes for ever.
LIES = ("other range", "long", "short", "whole", "etag", "endless")


class Handler(buckets.Handler):
    server: BucketServer

    def respond(self) -> None:
        server, path, body = self.server, unquote(urlsplit(self.path).path), self.read_body()
        server.meet(f"{self.command} {unquote(self.path)}")
        listing = "list-type" in self.path
        with server.lock:
            server.requests["list" if listing else self.command] += 1
            server.asked.append((path, self.headers.get("Range", "")))
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
            return self.send(buckets.refusal(server.status, "AccessDenied"))
        if fault.isdigit():
            code = {"400": "RequestTimeout"}.get(fault, "SlowDown")
            return self.send(buckets.refusal(int(fault), code))
        if fault == "slow":
            time.sleep(1)
        if fault == "held":
            server.released.wait(600)
        writes = self.command not in ("GET", "HEAD")
        if fault == "reset" or (fault == "cut" and writes):
            return self._reset()
        lie = "" if listing or writes else fault or server.lie
        if lie == "whole":
            del self.headers["Range"]
        if not server.match:
            del self.headers["If-Match"]
        answer = self.answer(body)
        self._lie(answer, lie) if answer.status in (200, 206) else self.send(answer)

    def _reset(self) -> None:
        # A linger time of 0 sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _lie(self, answer: Response, lie: str) -> None:
        content, headers = answer.content, dict(answer.headers)
        if lie == "etag":
            headers["ETag"] = '"lie"'
        if lie == "other range" and "Content-Range" in headers:
            begin, end, size = map(int, re.findall(r"\d+", str(headers["Content-Range"])))
            shift = 1 if end + 1 < size else -1
            headers["Content-Range"] = f"bytes {begin + shift}-{end + shift}/{size}"
        if lie == "long":
            content += b"x" * 7
        if lie == "short":
            content = content[:-1] or content
        if lie in ("long", "short") and self.command != "HEAD":
            headers["Content-Length"] = len(content)
        if lie in ("cut", "endless") and self.command != "HEAD":
            self.send(
                answer._replace(content=b"", headers={**headers, "Content-Length": len(content)})
            )
            return self._cut(content) if lie == "cut" else self._drip(content)
        self._wait_for_rate(len(content))
        self.send(Response(answer.status, content, headers))

    def _cut(self, content: bytes) -> None:
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self._reset()

    def _drip(self, content: bytes) -> None:
        for byte in content:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.1)

    def _wait_for_rate(self, count: int) -> None:
        """Wait until the bytes of all answers so far could have been sent at the server's rate."""
        server = self.server
        if not server.rate:
            return
        with server.lock:
            server.sent_until = max(server.sent_until, time.monotonic()) + count / server.rate
            until = server.sent_until
        time.sleep(max(0.0, until - time.monotonic()))


class BucketServer(buckets.BucketServer):
    """Buckets are the folders in ``folder``. It runs from its creation to ``close``.

    delay: seconds before each answer. rate: bytes/s of all answers together. fault: share of the
    requests that fail, by each of ``faults`` in turn. lie: one of LIES that every answer with an
    object tells. down: reset every connection. last: reset every connection after so many objects
    were asked for.
    status: answer every request with it. match: obey If-Match. page: objects per page of a listing.
    ``requests`` counts methods, ``failed`` faults; ``asked`` has the path and range of each
    request. ``released``: a request with the fault "held" waits for it.
    """

    handler = Handler

    def __init__(self, folder: Path) -> None:
        super().__init__("127.0.0.1", folder)
        self.delay, self.fault, self.faults = 0.0, 0.0, FAULTS
        self.down, self.match, self.status, self.lie, self.rate = False, True, 0, "", 0.0
        self.sent_until, self.last = 0.0, 0
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        self.random = random.Random(1)
        self.faulty, self.released = 0, threading.Event()
        self._gather: tuple[str, int] = ("", 0)
        self._gathered, self._skip, self._came = 0, 0, threading.Condition(self.lock)
        self.__enter__()

    def environment(self) -> dict[str, str]:
        """Variables that send segtrain here, without credentials."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            **self.google_environment(),
        }

    def etag_of(self, path: Path) -> str:
        """As S3 computes it of an object that was written in one request."""
        return (
            f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'
            if path.exists()
            else super().etag_of(path)
        )

    def close(self) -> None:
        self.__exit__()

    def gather(self, count: int, what: str = "", skip: int = 0) -> None:
        """Answer no request whose method and path match ``what`` before ``count`` of them have
        come: see ``gathered``.

        The first ``skip`` of them are answered at once.
        """
        with self.lock:
            self._gather, self._gathered, self._skip = (what, count), 0, skip

    @property
    def gathered(self) -> bool:
        """Whether so many requests were in flight at once. Their number does not depend on how fast
        threads run.
        """
        with self.lock:
            return self._gathered >= self._gather[1] > 0

    def meet(self, request: str) -> None:
        """Wait until enough requests are there; after a minute without them, let all requests
        pass.
        """
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
