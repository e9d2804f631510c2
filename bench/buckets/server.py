"""The object store of a rehearsal as a process that waits before each answer, and a FUSE mount of
one of its buckets.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from launch.core.rehearse import buckets

MOUNTED_BY = "rclone"
STATS = "/-/stats"
LATE_S = 1.0
_PATIENCE_S = 20.0


class SlowHandler(buckets.Handler):
    server: SlowStore

    def respond(self) -> None:
        server = self.server
        if self.path == STATS:
            stats = {"requests": server.requests, "cpu_s": time.process_time()}
            return self.send(buckets.Response(200, json.dumps(stats).encode()))
        with server.lock:
            server.requests += 1
            late = server.random.random() < server.late
        time.sleep(server.delay_s + LATE_S * late)
        super().respond()


class SlowStore(buckets.BucketServer):
    """Buckets are the folders in ``folder``. An answer begins ``delay_s`` after its request; the
    share ``late`` of the answers comes LATE_S later.
    """

    handler = SlowHandler

    def __init__(self, folder: Path, delay_s: float, late: float) -> None:
        super().__init__("127.0.0.1", folder)
        self.delay_s, self.late, self.requests, self.random = delay_s, late, 0, random.Random(1)

    def stats(self) -> dict[str, float]:
        """Requests and CPU seconds of the server since its start."""
        with urllib.request.urlopen(f"{self.url}{STATS}") as answer:
            return dict(json.load(answer))

    def environment(self) -> dict[str, str]:
        """Variables that send S3 clients here."""
        local = {"AWS_ALLOW_HTTP": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return {**self.aws_environment("us-east-1"), **local}


@contextlib.contextmanager
def serving(folder: Path, delay_s: float, late: float = 0.0) -> Iterator[SlowStore]:
    """A server of ``folder`` in a process of its own, so that its CPU time can be told from that of
    a reader.
    """
    store = SlowStore(folder, delay_s, late)
    process = multiprocessing.get_context("fork").Process(target=store.serve_forever, daemon=True)
    process.start()
    try:
        yield store
    finally:
        process.kill()
        process.join()
        store.server_close()


def why_not_mounted() -> str:
    """What is missing for a FUSE mount, and how to install it; "" if one can be made."""
    missing = [name for name in (MOUNTED_BY, "fusermount3") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} absent: apt-get install rclone fuse3"
    return (
        ""
        if os.access("/dev/fuse", os.R_OK | os.W_OK)
        else "/dev/fuse cannot be opened: start as root"
    )


@contextlib.contextmanager
def mounted(store: SlowStore, bucket: str, place: Path) -> Iterator[Path]:
    """A bucket as a folder by rclone's FUSE mount, without a disk cache, as a mount of a bucket is
    by itself.
    """
    place.mkdir(parents=True, exist_ok=True)
    options = (
        f"provider=Other,list_version=2,force_path_style=true,env_auth=true,endpoint='{store.url}'"
    )
    line = [
        MOUNTED_BY,
        "mount",
        f":s3,{options}:{bucket}",
        str(place),
        "--read-only",
        "--use-server-modtime",
    ]
    environment = {
        key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"
    } | store.environment()
    log = place.parent / "mount.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*line, "--dir-cache-time", "1h"], env=environment, stdout=output, stderr=output
        )
    try:
        until = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(place):
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit(f"the bucket was not mounted: see {log}")
            time.sleep(0.05)
        yield place
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(place)], check=False)
        process.terminate()
        process.wait()
