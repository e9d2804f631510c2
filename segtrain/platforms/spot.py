"""Turns EC2's spot notice, given two minutes before a machine is taken away, into the signal that
saves the state.

The instance metadata service (IMDSv2) of a machine shows the notice. If SEGTRAIN_SPOT_S is set to a
number of seconds, one rank per host asks for the notice at that interval. Imports no torch.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster

EVERY = "SEGTRAIN_SPOT_S"
# AWS's own tools read this variable too.
ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ADDRESS = "http://169.254.169.254"
TOKEN_S = 21_600
TIMEOUT_S = 2.0
# After this many failed requests in a row, a warning is printed: the metadata service is down or
# off, or this is not an EC2 machine.
MOST_SILENT = 5


class SpotNotice:
    """Asks the metadata service of this machine. Each request needs a token, which is renewed
    before it expires.
    """

    def __init__(self, base: str = ADDRESS) -> None:
        self._base = base.rstrip("/")
        # Ignore a proxy in the environment variables: it cannot reach the metadata service of this
        # machine.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._token, self._until = "", 0.0

    def poll(self) -> str:
        """``terminate at 2026-11-23T08:22:00Z`` if this machine is to be taken away, else "".
        Raises OSError.
        """
        if time.monotonic() >= self._until:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self._token = self._ask("PUT", "/latest/api/token", headers)
            self._until = time.monotonic() + TOKEN_S / 2
        try:
            text = self._ask(
                "GET",
                "/latest/meta-data/spot/instance-action",
                {"X-aws-ec2-metadata-token": self._token},
            )
        except urllib.error.HTTPError as error:
            if error.code == 404:  # no notice
                return ""
            self._until = 0.0  # get a new token next time: after 401, the old one has expired
            raise
        try:
            notice = json.loads(text)
            return f"{notice['action']} at {notice['time']}"
        except (ValueError, KeyError, TypeError):
            return f"a notice: {text[:80]}"

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._base + path, method=method, headers=headers)
        with self._open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode(errors="replace"))


def watch(cluster: Cluster, environ: Mapping[str, str] = os.environ) -> None:
    """On a host's first rank, start a thread that looks for the notice, and at a notice sends this
    process SIGTERM.

    Raises ConfigError, on all ranks of a host alike, if the environment variable is wrong.
    """
    text = environ.get(EVERY)
    if not text:
        return
    try:
        every = float(text)
    except ValueError:
        every = 0.0
    if not 0 < every < math.inf:
        raise ConfigError(
            f"the environment variable {EVERY}={text!r} is not a number of seconds: set it to "
            "5, or unset it",
            code="bad-spot-interval",
            key=EVERY,
            found=text,
        )
    notice = SpotNotice(environ.get(ENDPOINT) or ADDRESS)
    if cluster.local_rank:
        return
    threading.Thread(target=_watch, args=(notice, every), name="spot-notice", daemon=True).start()


def _watch(notice: SpotNotice, every: float) -> None:
    silent = 0
    while True:
        try:
            interruption, silent = notice.poll(), 0
        # ValueError: the address is not a URL.
        except (OSError, ValueError, http.client.HTTPException) as error:
            interruption, silent = "", silent + 1
            if silent == MOST_SILENT:
                print(
                    "warning: no spot notice can be seen: the metadata service of this machine "
                    f"does not answer ({error}); training goes on, and it is asked again",
                    file=sys.stderr,
                    flush=True,
                )
        if interruption:
            print(
                f"EC2 takes this machine away ({interruption}): saving the state",
                file=sys.stderr,
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(every)
