"""Predictions of jobs that are described by inputs alone, in the format of `python
bench/plan_exam.py FILE.json`.

Each entry's own inputs give a model of its rate (job.py). A measured neighbor, such as the rate on
one GPU or on another GPU, corrects the model: the factor that gives the neighbor's rate is applied
to the entry. So the model's ratios count where a neighbor is given, and its absolute rates only
where none is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from math import exp, isfinite, sqrt
from pathlib import Path
from typing import Any

from bench.exam.given import Neighbor, neighbors_of
from bench.exam.inputs import Unusable, job_of, number, schedule_of
from bench.exam.job import Correction, Job, rate, solve
from bench.exam.names import transposed_passes
from segtrain.errors import ConfigError
from segtrain.insight.plan import device
from segtrain.insight.plan.device import DENSE, Z80

# Standard deviations of the logarithm of (published / predicted), beside those of device.py. They
# are about the deviations of the figures with neighbors, and larger where few are known.
SD = {
    "software": 0.16,  # more, where the software is not settled: that of the two layouts
    "kind": 0.25,  # more, for networks other than convolutional ones: no figure is known, assumed
    "scaling": 0.05,  # a neighbor with fewer GPUs
    "hosts": 0.08,  # more, where it has fewer hosts
    "loss": 0.45,  # of the efficiency that is lost, in addition
    "samples": 0.4,  # cores limit, and nobody measured a sample
    "fed": 0.1,  # cores limit, as measured
    "size": 0.15,  # another image size
    "again": 0.03,  # the same job
    "time": 0.1,  # validation, start, and saving
}
# Seconds from the start of a run to its first step, whatever the number of GPUs: 4 to 11 for six
# trainers (bench/results/2026-11-21-rivals-train.md).
START = 10.0
_TIMES = {
    "seconds": 1.0,
    "second": 1.0,
    "s": 1.0,
    "minutes": 60.0,
    "min": 60.0,
    "hours": 3600.0,
    "h": 3600.0,
}
_RATES = {
    "img/s",
    "images/s",
    "samples/s",
    "volumes/s",
    "sequences/s",
    "seq/s",
    "sentences/s",
    "items/s",
}
_MONEY = {"usd", "dollars", "$"}


def answers(path: Path) -> list[dict[str, Any]]:
    """One dictionary for each entry of the file: id, value, low, high, and a reason where value is
    None.

    Raises ConfigError if the file is not a JSON list.
    """
    fix = 'write a list of {"id", "kind", "inputs", "predict"}'
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"{path}: cannot be read: {error.strerror or error}"
        raise ConfigError(why, code="exam-unreadable", file=str(path)) from error
    except (ValueError, RecursionError) as error:
        why = f"{path}: not JSON in UTF-8: {str(error)[:100]}: {fix}"
        raise ConfigError(why, code="exam-not-json", file=str(path)) from error
    if not isinstance(entries, list):
        why = f"{path}: holds {type(entries).__name__}, not a list: {fix}"
        raise ConfigError(why, code="exam-not-a-list", file=str(path))
    return [answer(entry) for entry in entries]


def answer(entry: Any, dense: float = DENSE) -> dict[str, Any]:
    """The prediction of one entry. What is missing or malformed is named in "reason", and "value"
    is None.
    """
    name = entry.get("id") if isinstance(entry, dict) else None
    name = name if isinstance(name, (str, int)) else None
    try:
        if not isinstance(entry, dict) or not isinstance(entry.get("inputs"), dict):
            raise Unusable("inputs: missing or not an object")
        value, sd = _predict(entry["inputs"], str(entry.get("predict", "")), dense)
        low, high = value * exp(-Z80 * sd), value * exp(Z80 * sd)
        if "%" in str(entry.get("predict")):
            high = max(value, min(high, 105.0))
        # of a log-normal figure: the value with the least expected relative error
        value *= exp(-(sd**2))
        if not all(isfinite(one) and one > 0 for one in (value, low, high)):
            raise Unusable("inputs: so large or small that no rate follows")
    except (Unusable, OverflowError, ZeroDivisionError, ValueError) as error:
        return {"id": name, "value": None, "low": None, "high": None, "reason": str(error)}
    return {"id": name, "value": _short(value), "low": _short(low), "high": _short(high)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _predict(inputs: dict[str, Any], unit: str, dense: float) -> tuple[float, float]:
    """The predicted figure (its median) in the unit, and the standard deviation of its
    logarithm.
    """
    unit = unit.strip().lower()
    job = job_of(inputs)
    found = neighbors_of(inputs, job)
    by, sd = corrected(job, found, dense)
    whole = rate(job, by, dense)
    if unit in _RATES:
        return whole, sd
    if "per gpu" in unit or "/gpu" in unit:
        if not job.ranks:
            raise Unusable("gpus_per_host: 0, so there is no rate per GPU")
        return whole / job.ranks, sd
    if unit.startswith("%"):
        return 100 * whole / (job.ranks * _alone(job, found, by, dense)), _scaling_sd(
            job, by, dense
        )
    kind = unit.split()[0] if unit else ""
    if kind in _TIMES or kind in _MONEY:
        seconds, sd = _seconds(inputs, job, found, by, sd, dense)
        if kind in _TIMES:
            return seconds / _TIMES[kind], sd
        price = number(inputs, "price_per_hour")
        if price is None:
            raise Unusable("price_per_hour: missing: write the dollars of a host's hour")
        return seconds / 3600 * price * job.hosts, sd
    raise Unusable(
        f"predict={unit!r}: not a known unit: write img/s, img/s per GPU, samples/s, volumes/s, % of N x "
        "one GPU, minutes, hours, or USD"
    )


def _alone(job: Job, found: Iterable[Neighbor], by: Correction, dense: float) -> float:
    """The rate of one GPU: the given one, else the model's."""
    given = [
        one.rate for one in found if one.job.ranks == 1 and one.job.gpu == job.gpu and one.rate
    ]
    return given[0] if given else rate(replace(job, gpus=1, hosts=1, workers=None), by, dense)


def corrected(job: Job, found: list[Neighbor], dense: float) -> tuple[Correction, float]:
    """What the neighbors say of the job, and the standard deviation of the logarithm of its
    rate.
    """
    by, sd = Correction(), _specs_sd(job)
    free = [one for one in found if one.rate and not one.fed and one.job.ranks]
    fed = [one for one in found if one.rate and one.fed]
    if free:
        same = [one for one in free if one.job.gpu == job.gpu] or free
        best = max(same, key=lambda one: (one.unlimited, one.job.ranks <= job.ranks, one.job.ranks))
        own = replace(best.job, workers=None, images=False) if best.unlimited else best.job
        by = replace(
            by,
            device=solve(lambda c: rate(own, replace(by, device=c), dense), float(best.rate or 0)),
        )
        terms = [device.OTHER_GPU] if best.job.gpu != job.gpu else []
        terms += [SD["size"]] if best.job.size != job.size else []
        terms += [_scaling_sd(job, by, dense)] if best.job.ranks != job.ranks else []
        sd = sqrt(sum(term**2 for term in terms or [SD["again"]]))
    if fed:
        best = max(fed, key=lambda one: one.job.hosts * (one.job.workers or 0))
        by = replace(by, fed=True)
        cost = solve(lambda c: rate(best.job, replace(by, sample=c), dense), float(best.rate or 0))
        by, sd = replace(by, sample=cost), sqrt(sd**2 / 4 + SD["fed"] ** 2)
    elif job.workers is not None and (
        not job.gpus or rate(job, by, dense) < 0.95 * rate(replace(job, workers=None), by)
    ):
        sd = sqrt(sd**2 / 4 + SD["samples"] ** 2)
    return by, sd


def _specs_sd(job: Job) -> float:
    _, settled = transposed_passes(job.work.kind, job.framework, job.year, job.precision[0])
    more = {"software": not settled, "kind": job.work.kind not in ("conv", "dense")}
    scaling = 0.1 if job.ranks > 1 else 0.0
    return sqrt(
        device.SPECS**2
        + sum(SD[name] ** 2 for name, applies in more.items() if applies)
        + scaling**2
    )


def _scaling_sd(job: Job, by: Correction, dense: float) -> float:
    alone = rate(replace(job, gpus=1, hosts=1, workers=None, images=False), by, dense)
    lost = max(0.0, 1 - rate(job, by, dense) / (job.ranks * alone))
    return sqrt(SD["scaling"] ** 2 + SD["hosts"] ** 2 * (job.hosts > 1) + (SD["loss"] * lost) ** 2)


def _seconds(
    inputs: dict[str, Any], job: Job, found: list[Neighbor], by: Correction, sd: float, dense: float
) -> tuple[float, float]:
    """Seconds of the whole schedule, with what a run takes beyond its steps."""
    timed = [one for one in found if one.seconds]
    plan = schedule_of(inputs, job.size)
    if timed and (not any(one.rate for one in found) or not plan):
        one = max(timed, key=lambda one: one.job.ranks)
        known = float(one.seconds or 0)
        start = min(START, known / 2)
        terms = [SD["again"], _scaling_sd(job, by, dense) if one.job.ranks != job.ranks else 0.0]
        terms.append(device.OTHER_GPU if one.job.gpu != job.gpu else 0.0)
        seconds = start + (known - start) * rate(one.job, by, dense) / rate(job, by, dense)
        return seconds, sqrt(sum(term**2 for term in terms))
    images = number(inputs, "images")
    if images is None:
        raise Unusable("images: missing: write the number of images of an epoch")
    if not plan:
        raise Unusable("schedule: missing: write [[epochs, size], ...]")
    total = 0.0
    for epochs, size in plan:
        scale = (size / job.size) ** 2 if job.size else 1.0
        work = replace(
            job.work, flops=job.work.flops * scale, activations=job.work.activations * scale
        )
        batch = max(1.0, job.batch / scale)  # as much of the memory
        total += epochs * images / rate(replace(job, work=work, size=size, batch=batch), by, dense)
    other = any(size != job.size for _, size in plan)
    return START + total, sqrt(sd**2 + SD["time"] ** 2 + (SD["size"] ** 2 if other else 0.0))
