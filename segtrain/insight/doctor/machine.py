"""Checks of the machine: cores, OpenMP settings, memory, shared memory, cache folder, open files,
image decoders.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from segtrain.base.cores import affinity, cpu_quota
from segtrain.base.files import cache_folder
from segtrain.base.memory import memory_free, memory_limit
from segtrain.errors import SegtrainError
from segtrain.insight.doctor.line import NOTE, OK, PROBLEM, CheckLine

LEAST_SHM = 64 << 20  # Docker's default, which is too small
LEAST_CACHE = 1 << 30
LEAST_FILES = 1024
SECONDS = 0.25  # of CPU time for the measurement of a decoder
PINS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def checks() -> Iterator[CheckLine]:
    yield cores(affinity(), os.cpu_count() or 1, cpu_quota())
    yield from threads(os.environ, affinity())
    yield memory()
    yield from shared_memory()
    yield cache()
    yield from open_files()
    yield from decoders()


def cores(allowed: int, there: int, quota: float | None) -> CheckLine:
    if quota is not None and quota < allowed:
        fix = "segtrain respects the quota; to raise it: docker --cpus, or resources.limits.cpu"
        return CheckLine(
            NOTE, "cores", f"{quota:.3g} by the container's quota; the host shows {allowed}", fix
        )
    if allowed < there:
        fix = "raise it with taskset, or with cpus-per-task of the job"
        return CheckLine(NOTE, "cores", f"{allowed} of {there}, by affinity", fix)
    return CheckLine(OK, "cores", f"{allowed}")


def threads(environment: Mapping[str, str], allowed: int) -> Iterator[CheckLine]:
    """OpenMP settings that slow down training."""
    setting = environment.get("OMP_NUM_THREADS", "")
    if setting and (not setting.isdigit() or int(setting) > allowed):
        text = f"{setting} for {allowed} cores: threads wait for each other"
        yield CheckLine(PROBLEM, "OMP_NUM_THREADS", text, "unset it")
    for name in PINS:
        value = environment.get(name, "false")
        if value.lower() not in ("false", "none"):
            fix = f"unset {name}: it may put all workers and ranks on one core"
            yield CheckLine(NOTE, name, f"{value} binds threads to cores", fix)


def memory() -> CheckLine:
    limit, by = memory_limit()
    text = f"{limit / 2**30:.1f} GiB" + (" by the container's limit" if by == "cgroup" else "")
    free = memory_free()
    if by == "host" and free < limit:
        text += f", {free / 2**30:.1f} GiB free"
    return CheckLine(OK, "memory", text)


def shared_memory(folder: str = "/dev/shm") -> Iterator[CheckLine]:
    """Space in /dev/shm, where NCCL and worker processes share memory."""
    if not os.path.isdir(folder):
        if sys.platform == "linux":
            text = "missing: worker processes may fail to share memory"
            yield CheckLine(NOTE, folder, text, "data.worker_kind=thread")
        return
    total, _, free = shutil.disk_usage(folder)
    text = f"{total / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB free"
    if min(total, free) <= LEAST_SHM:
        text += ": too small for NCCL and worker processes"
        yield CheckLine(PROBLEM, folder, text, "docker run --shm-size=8g (or --ipc=host)")
    else:
        yield CheckLine(OK, folder, text)


def cache() -> CheckLine:
    folder = cache_folder()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK):
        fix = (
            "set SEGTRAIN_CACHE to a writable folder; without a cache, each start reads the "
            "whole data set"
        )
        return CheckLine(PROBLEM, "cache", f"{folder}: not writable", fix)
    free = shutil.disk_usage(there).free
    text = f"{folder}: {free / 2**30:.1f} GiB free"
    if free < LEAST_CACHE:
        return CheckLine(NOTE, "cache", text, "set SEGTRAIN_CACHE to a folder with more space")
    return CheckLine(OK, "cache", text)


def open_files() -> Iterator[CheckLine]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        most = LEAST_FILES if hard < 0 or sys.platform != "linux" else min(hard, 65536)
        yield CheckLine(NOTE, "open files", f"at most {soft}", f"ulimit -n {most}")


def decoders() -> Iterator[CheckLine]:
    """The native decoder and the packages that replace it: which one is in use, and how fast each
    is.
    """
    turned_off = os.environ.get("SEGTRAIN_NATIVE") == "0"
    with ThreadPoolExecutor(2) as pool:
        native, packages = pool.map(_tried, ("", "0"))
    if isinstance(packages, str):
        text = f"the packages cannot decode JPEG and PNG: {packages}"
        yield CheckLine(PROBLEM, "decoder", text, "reinstall", fatal=True)
        return
    if isinstance(native, str):
        text = f"the native decoder fails: {native}"
        yield CheckLine(PROBLEM, "decoder", text, "reinstall; SEGTRAIN_NATIVE=0 turns it off")
        return
    there = native["path"] == "native"
    used = packages if turned_off or not there else native
    speed = f"{used['cpu_ms']:.1f} ms of CPU per sample of 1024x512"
    if there and turned_off:
        text = (
            f"packages, because of SEGTRAIN_NATIVE=0: {speed}; the native decoder needs "
            f"{native['cpu_ms']:.1f} ms"
        )
        yield CheckLine(NOTE, "decoder", text, "unset SEGTRAIN_NATIVE")
    elif there:
        yield CheckLine(
            OK,
            "decoder",
            f"{native['path_says']}: {speed}; packages need {packages['cpu_ms']:.1f} ms",
        )
    else:
        why, _, fix = str(native["path_says"]).partition(": ")[2].rpartition(": ")
        yield CheckLine(NOTE, "decoder", f"packages: {speed}; {why}", fix)


def _tried(switch: str) -> dict[str, object] | str:
    """Results of ``segtrain.insight.bench.quick`` with this SEGTRAIN_NATIVE ("": as if unset), or
    an error message.
    """
    try:
        # Imported here, because it needs OpenCV, which may be missing.
        from segtrain.insight.bench.child import child

        with tempfile.TemporaryDirectory(prefix="segtrain-bench-") as scratch:
            return child(
                "quick", {"seconds": SECONDS}, SEGTRAIN_NATIVE=switch, SEGTRAIN_CACHE=scratch
            )
    except (SegtrainError, ImportError) as error:
        return str(error)
