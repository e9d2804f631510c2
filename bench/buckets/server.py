"""The object store of server.cpp as a process, compiled when it is first used, and a FUSE mount of one of its buckets."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("server.cpp")
MOUNTED_BY = "rclone"
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Store:
    """A running server. Buckets are the folders in its folder."""

    url: str

    def stats(self) -> dict[str, float]:
        """Requests, bytes, CPU seconds, and the most requests in flight since its start."""
        with urllib.request.urlopen(f"{self.url}/-/stats") as answer:
            return dict(json.load(answer))

    def environment(self) -> dict[str, str]:
        """Variables that send S3 clients here."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true", "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }  # fmt: skip


@contextlib.contextmanager
def serving(folder: Path, delay_s: float, rate: float = 0.0, late: float = 0.0, late_s: float = 1.0) -> Iterator[Store]:
    """A server of ``folder``: ``delay_s`` before each answer, ``rate`` bytes/s for all answers together (0: no limit).

    late: share of the answers that come ``late_s`` later.
    """
    binary = folder / ".server"
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        if shutil.which("g++") is None:
            raise SystemExit("the object store of this bench is compiled by g++, which is absent: install it")
        subprocess.run(["g++", "-O2", "-std=c++17", "-o", str(binary), str(SOURCE)], check=True)
    numbers = map(str, (delay_s, rate, late, late_s))
    process = subprocess.Popen([str(binary), str(folder), *numbers], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Store(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()


def why_not_mounted() -> str:
    """What is missing for a FUSE mount, and how to install it; "" where one can be made."""
    missing = [name for name in (MOUNTED_BY, "fusermount3") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} absent: apt-get install rclone fuse3"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse cannot be opened: start as root"


@contextlib.contextmanager
def mounted(store: Store, bucket: str, place: Path) -> Iterator[Path]:
    """A bucket as a folder by rclone's FUSE mount, without a disk cache, as a mount of a bucket is by itself."""
    place.mkdir(parents=True, exist_ok=True)
    remote = f":s3,provider=Other,force_path_style=true,env_auth=true,endpoint='{store.url}':{bucket}"
    line = [MOUNTED_BY, "mount", remote, str(place), "--read-only", "--use-server-modtime", "--dir-cache-time", "1h"]
    environment = {key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"} | store.environment()
    with (place.parent / "mount.log").open("w") as said:
        process = subprocess.Popen(line, env=environment, stdout=said, stderr=said)
    try:
        until = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(place):
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit(f"the bucket was not mounted: see {place.parent / 'mount.log'}")
            time.sleep(0.05)
        yield place
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(place)], check=False)
        process.terminate()
        process.wait()
