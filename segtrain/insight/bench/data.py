"""`segtrain bench data`: the cost of a sample on this data and machine, the bottleneck, and whether
GPUs wait.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from segtrain.base.cores import usable_cores
from segtrain.base.memory import memory_limit
from segtrain.config import Config, load_config
from segtrain.data.datasets import open_dataset, refuse_stored
from segtrain.errors import ConfigError
from segtrain.insight.bench import verdict
from segtrain.insight.bench.child import child
from segtrain.insight.bench.table import table
from segtrain.insight.diagnose.differences import accepted
from segtrain.insight.diagnose.verdict import HEALTHY
from segtrain.observe.journal import Say

SAMPLES = 64
SECONDS = 2.0  # for each setting of the loader
MAX_WORKERS = 16


def bench_data(
    config_path: str | Path | None,
    overrides: list[str],
    *,
    samples: int = SAMPLES,
    seconds: float = SECONDS,
    device_ms: float | None = None,
    rate: float | None = None,
    as_json: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Measure, print a table or one JSON object, and return what was measured.

    ``device_ms``: milliseconds that a device takes for a batch of train.batch_size images.
    ``rate``: images per second of the device, in place of ``device_ms``. Raises SegtrainError for a
    wrong config, and for bad files.
    """
    options = {"--samples": samples, "--seconds": seconds, "--device-ms": device_ms, "--rate": rate}
    for option, value in options.items():
        if value is not None and value <= 0:
            raise ConfigError(
                f"{option}={value}: must be above 0", code="not-positive", key=option, found=value
            )
    if device_ms is not None and rate is not None:
        raise ConfigError(
            "--device-ms and --rate set the same value: give only one", code="two-rates"
        )
    config = load_config(config_path, overrides)
    refuse_stored(config.data, "segtrain bench data")
    if device_ms is not None:
        rate = 1000 * config.train.batch_size / device_ms
    result = measure(config, samples, seconds, rate)
    say(json.dumps(result) if as_json else table(result))
    return result


def measure(
    config: Config, samples: int, seconds: float, device_per_s: float | None
) -> dict[str, Any]:
    """Measure what the table shows, as values for JSON: times in ms, sizes in bytes, shares and
    gains as fractions.
    """
    data = config.data
    total = len(open_dataset(data, data.train_split))
    cores = usable_cores()
    with tempfile.TemporaryDirectory(prefix="segtrain-bench-") as scratch:
        request = {
            "config": config.model_dump(mode="json"),
            "samples": min(samples, total),
            "scratch": scratch,
        }
        here = child("stages", {**request, "packed": True})
        loader = child("rates", {**request, "workers": worker_counts(cores), "seconds": seconds})
    best = max(loader["rates"], key=lambda row: row["per_s"])
    limit, limit_source = memory_limit()
    needed = int(4 * here["pixels"] * total)
    bytes_a_sample = here["bytes_image"] + here["bytes_mask"]
    fits = bytes_a_sample * total < 0.8 * limit
    cold_s = (
        None if fits or "ms_a_file" not in here["cold"] else 2 * here["cold"]["ms_a_file"] / 1000
    )
    # The measured loader has at most MAX_WORKERS workers. The loaders of other ranks can use the
    # remaining cores.
    host_per_s = best["per_s"] * max(1.0, cores / MAX_WORKERS)
    may_cache = data.cache != "ram" and accepted(
        config.model_dump(mode="json"), {"data.cache": "ram"}
    )
    verdicts = verdict.verdicts(
        loader["window"], config, cores, device_per_s, cold_s, loader["rates"]
    )
    return {
        "config": config.name or "defaults",
        "hash": config.hash,
        "data": {
            "name": os.path.basename(os.path.abspath(data.root)) if data.root else data.layout,
            "split": data.train_split,
            "total": total,
            "measured": here["samples"],
            "formats": here["formats"],
            "pixels": here["pixels"],
            "crop": list(data.crop),
            "stored_bytes": int(bytes_a_sample * total),
            "fits_in_memory": fits,
            "decoded_bytes": needed,
        },
        "host": {"cores": cores, "memory": int(limit), "memory_by": limit_source},
        "sample": here,
        "path": here["path"],
        "path_says": here["path_says"],
        "rates": loader["rates"],
        "limit_per_s": 1000 * cores / best["cpu_ms"],
        "measured_per_s": best["per_s"],
        "bytes_a_sample": bytes_a_sample,
        "storage_mb_per_s": bytes_a_sample * best["per_s"] / 1e6,
        "bound": verdicts[0].cause if verdicts else HEALTHY,
        "why": verdicts[0].evidence
        if verdicts
        else "the samples are there before the device needs them",
        "verdicts": [each.to_dict() for each in verdicts],
        "cures": verdict.fixes(here, may_cache and needed <= 0.8 * limit),
        "device_per_s": device_per_s,
        "feeding": verdict.feeding(best["per_s"], host_per_s, device_per_s) if device_per_s else [],
    }


def worker_counts(cores: float) -> list[int]:
    """Numbers of workers to try: powers of 2 up to the number of cores (at most 16), and that
    number itself.
    """
    most = max(1, min(MAX_WORKERS, math.ceil(cores)))
    return sorted({2**k for k in range(most.bit_length())} | {most})
