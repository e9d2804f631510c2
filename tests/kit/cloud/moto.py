"""S3, EC2, IAM, and STS for tests: one moto server per test process, which ends with it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import pytest

from segtrain.parallel.cluster import free_port

# The server ends when its standard input does: also where the test process was killed.
_CODE = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


@functools.cache
def _started() -> str:
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    pytest.importorskip(
        "flask", reason="moto's server is not installed: pip install 'moto[server,s3,ec2,iam,sts]'"
    )
    pytest.importorskip(
        "moto", reason="moto is not installed: pip install 'moto[server,s3,ec2,iam,sts]'"
    )
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(port)],
        # not the checkout
        env={**os.environ, "MOTO_RECORDER_FILEPATH": os.path.join(tempfile.mkdtemp(), "requests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()

    atexit.register(end)
    while server.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"moto's server ended with {server.returncode} before it answered")


def moto_server() -> str:
    """The URL of an empty account 123456789012; the calling test is skipped where moto is not
    installed.
    """
    url = _started()
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/moto-api/reset", method="POST")
    ) as answer:
        answer.read()
    return url


@functools.cache
def _read_each_model_once() -> None:
    """All sessions share the service descriptions, which botocore parses for each one. EC2's alone
    takes a second.
    """
    with contextlib.suppress(ImportError):
        from botocore import session

        session.create_loader = functools.cache(session.create_loader)


def environment(cloud: str = "", moto: str = "", region: str = "us-east-1") -> dict[str, str]:
    """Variables that send boto3 to ``cloud`` (SageMaker, FSx, quotas, logs) and ``moto``
    (everything else), never outside.

    Use: ``for key, value in environment(...).items(): monkeypatch.setenv(key, value)``.
    """
    _read_each_model_once()
    nowhere = "http://127.0.0.1:9"  # the discard port: refused at once
    found = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
        "AWS_ENDPOINT_URL": moto or nowhere,
        "NO_PROXY": "127.0.0.1",
    }
    for service in ("SAGEMAKER", "FSX", "SERVICE_QUOTAS", "CLOUDWATCH_LOGS"):
        found[f"AWS_ENDPOINT_URL_{service}"] = cloud or nowhere
    return found
