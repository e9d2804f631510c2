"""A stand-in of EC2's instance metadata service (IMDSv2): its token, and the spot notice for one
machine.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOTICE = '{"action": "terminate", "time": "2026-11-23T08:22:00Z"}'


class Imds(ThreadingHTTPServer):
    """``notice``: whether a machine is to be taken away; ``tokens``: how many were given;
    ``valid``: the newest.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.notice = ""
        self.machines = threading.Semaphore(1)
        self.tokens = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Imds

    def do_PUT(self) -> None:
        if (
            self.path != "/latest/api/token"
            or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers
        ):
            return self._answer(400, "")
        self.server.tokens += 1
        return self._answer(200, f"token-{self.server.tokens}")

    def do_GET(self) -> None:
        server = self.server
        if self.headers.get("X-aws-ec2-metadata-token") != f"token-{server.tokens}":
            return self._answer(401, "")
        if self.path != "/latest/meta-data/spot/instance-action" or not server.notice:
            return self._answer(404, "")
        # The machine that has it is gone afterwards: another one takes its place.
        mine = server.machines.acquire(blocking=False)
        return self._answer(200, server.notice) if mine else self._answer(404, "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def imds() -> Iterator[Imds]:
    with Imds() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
