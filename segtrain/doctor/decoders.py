"""Checks the native decoder and the Python packages that replace it: which one is in use, and how fast each is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from segtrain.bench.child import child
from segtrain.doctor.line import NOTE, OK, PROBLEM, CheckLine
from segtrain.errors import SegtrainError

SECONDS = 0.25  # CPU time per decoder


def look() -> Iterator[CheckLine]:
    turned_off = os.environ.get("SEGTRAIN_NATIVE") == "0"
    with ThreadPoolExecutor(2) as pool:
        native, packages = pool.map(_tried, ("", "0"))
    if isinstance(packages, str):
        found = f"the packages cannot decode JPEG and PNG: {packages}"
        yield CheckLine(PROBLEM, "decoder", found, "reinstall", fatal=True)
        return
    if isinstance(native, str):
        found = f"the native decoder fails: {native}"
        yield CheckLine(PROBLEM, "decoder", found, "reinstall; SEGTRAIN_NATIVE=0 turns it off")
        return
    there = native["path"] == "native"
    used = packages if turned_off or not there else native
    speed = f"{used['cpu_ms']:.1f} ms of CPU per sample of 1024x512"
    if there and turned_off:
        found = f"packages, because of SEGTRAIN_NATIVE=0: {speed}; the native decoder needs {native['cpu_ms']:.1f} ms"
        yield CheckLine(NOTE, "decoder", found, "unset SEGTRAIN_NATIVE")
    elif there:
        yield CheckLine(OK, "decoder", f"{native['path_says']}: {speed}; packages need {packages['cpu_ms']:.1f} ms")
    else:
        why, _, fix = str(native["path_says"]).partition(": ")[2].rpartition(": ")
        yield CheckLine(NOTE, "decoder", f"packages: {speed}; {why}", fix)


def _tried(switch: str) -> dict[str, object] | str:
    """The measurement of ``segtrain.bench.quick`` with this SEGTRAIN_NATIVE ("": unset), or an error message."""
    try:
        with tempfile.TemporaryDirectory(prefix="segtrain-bench-") as scratch:
            return child("quick", {"seconds": SECONDS}, {"SEGTRAIN_NATIVE": switch, "SEGTRAIN_CACHE": scratch})
    except SegtrainError as error:
        return str(error)
