"""Which way of decoding is in use, and what would the other give? Each is tried in a process of its own, for a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from segtrain.bench.child import child
from segtrain.doctor.line import NOTE, OK, PROBLEM, CheckLine
from segtrain.errors import SegtrainError

SECONDS = 0.25  # of CPU for each way


def look() -> Iterator[CheckLine]:
    turned_off = os.environ.get("SEGTRAIN_NATIVE") == "0"
    with ThreadPoolExecutor(2) as pool:
        native, packages = pool.map(_tried, ("", "0"))
    if isinstance(packages, str):
        yield CheckLine(
            PROBLEM, "decoder", f"JPEG and PNG cannot be decoded by packages: {packages}", "install again", fatal=True
        )
        return
    if isinstance(native, str):
        yield CheckLine(
            PROBLEM, "decoder", f"the native part fails: {native}", "SEGTRAIN_NATIVE=0 turns it off; install again"
        )
        return
    there = native["path"] == "native"
    used = packages if turned_off or not there else native
    speed = f"{used['cpu_ms']:.1f} ms of CPU for a sample of 1024x512"
    if there and turned_off:
        yield CheckLine(
            NOTE,
            "decoder",
            f"packages, by SEGTRAIN_NATIVE=0: {speed}; the native part takes {native['cpu_ms']:.1f}",
            "unset SEGTRAIN_NATIVE",
        )
    elif there:
        yield CheckLine(OK, "decoder", f"{native['path_says']}: {speed}; packages take {packages['cpu_ms']:.1f}")
    else:
        why, _, cure = str(native["path_says"]).partition(": ")[2].rpartition(": ")
        yield CheckLine(NOTE, "decoder", f"packages: {speed}; {why}", cure)


def _tried(switch: str) -> dict[str, object] | str:
    """What ``segtrain.bench.quick`` measured with this value of SEGTRAIN_NATIVE ("": unset), or why it could not."""
    try:
        return child("quick", {"seconds": SECONDS}, {"SEGTRAIN_NATIVE": switch})
    except SegtrainError as error:
        return str(error)
