"""Measured neighbors of an exam's entry: the same job on other GPUs, hosts, or workers, with its
rate or time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from bench.exam.inputs import Unusable, job_of, number
from bench.exam.job import Job

_KEY = re.compile(
    r"(rate|minutes|hours|seconds)_(\d+)_?(gpu|host|node|machine|worker|core|vcpu|cpu)s?(?:_(\w+))?"
)
_WORKERS = re.compile(r"(\d+)_?(?:worker|core|vcpu|cpu)s?")
# Keys without their 0 -> the input that they replace.
_INPUTS = (
    *("gpu", "gpus_per_host", "hosts", "precision", "batch_per_gpu", "image_size", "interconnect"),
    *("workers_per_host", "framework", "year"),
)
_FIELDS = {
    **{name: name for name in _INPUTS},
    **{
        "batch": "batch_per_gpu",
        "size": "image_size",
        "workers": "workers_per_host",
        "gpus": "gpus_per_host",
    },
}
_CORES = ("worker", "core", "vcpu", "cpu")
_SECONDS = {"minutes": 60.0, "hours": 3600.0, "seconds": 1.0}


@dataclass(frozen=True)
class Neighbor:
    """A measured job. ``rate``: samples/s of the whole job; ``seconds``: of its run; one of them is
    None.

    ``fed``: its samples limit it. ``unlimited``: measured with samples that cost nothing.
    """

    job: Job
    rate: float | None
    seconds: float | None
    fed: bool = False
    unlimited: bool = False


def neighbors_of(inputs: dict[str, Any], job: Job) -> list[Neighbor]:
    """The neighbors in ``given``, from keys such as rate_8gpu, rate_1host, minutes_2hosts,
    rate_4workers.

    A neighbor with other inputs has ``gpu0``, ``batch_per_gpu0``, ... with ``rate_gpu0``. Other
    keys are ignored.
    """
    given = inputs.get("given")
    if given is None:
        return []
    if not isinstance(given, dict):
        raise Unusable("given: not an object")
    measured = {key: value for key, value in given.items() if _KEY.fullmatch(key)}
    free = any("not_input" in key or "synthetic" in key for key in measured)
    found = [_scaled(key, given, job, free) for key in measured]
    other = _other(inputs, given)
    return [one for one in (*found, other) if one is not None]


def _scaled(key: str, given: dict[str, Any], job: Job, free: bool) -> Neighbor | None:
    match = _KEY.fullmatch(key)
    value = number(given, key)
    if match is None or value is None:
        return None
    what, count, unit, suffix = match[1], int(match[2]), match[3], match[4] or ""
    if not 0 < count <= 1_000_000:
        raise Unusable(f"{key}: not a number of GPUs or hosts")
    unlimited = "not_input" in suffix or "synthetic" in suffix
    base = job
    if unit in _CORES:
        base = replace(job, workers=float(count), hosts=1)
    elif unit == "gpu":
        hosts = max(1, -(-count // job.gpus)) if job.gpus else 1
        local = count // hosts if job.gpus else 0
        share = local / job.gpus if job.gpus else 1.0
        base = replace(job, gpus=local, hosts=hosts, workers=job.workers and job.workers * share)
    else:
        base = replace(job, hosts=count)
    if workers := _WORKERS.search(suffix):
        base = replace(base, workers=float(workers[1]))
    starved = (
        (free and not unlimited)
        or unit in _CORES
        or not job.gpus
        or "input" in suffix
        or bool(workers)
    )
    fed = starved and not unlimited and base.workers is not None
    if what == "rate":
        return Neighbor(base, value, None, fed, unlimited)
    return Neighbor(base, None, value * _SECONDS[what], fed, unlimited)


def _other(inputs: dict[str, Any], given: dict[str, Any]) -> Neighbor | None:
    """The neighbor whose inputs differ by the keys that end in 0, such as gpu0, with a rate such as
    rate_gpu0.
    """
    changed = {
        key[:-1]: value for key, value in given.items() if key.endswith("0") and key[:-1] in _FIELDS
    }
    rates = [key for key in given if re.fullmatch(r"rate\w*0", key)]
    if not rates:
        return None
    changed = {_FIELDS[key]: value for key, value in changed.items()}
    if not changed:
        raise Unusable(f"{rates[0]}: gpu0 is missing, so it is not known what was measured")
    return Neighbor(
        job_of({**inputs, **changed}),
        number(given, rates[0]),
        None,
        fed="workers_per_host" in changed,
    )
