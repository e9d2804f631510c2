"""A hyperparameter tuning job: many training jobs with one request, except for settings that vary within ranges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Any, Literal

from launch import job_values as values
from launch.aws.job import SageMakerJob
from launch.aws.preflight.cost import cost_ceiling
from launch.aws.preflight.training import training
from launch.aws.service_model import violations
from launch.findings import Finding, error, note, warning
from segtrain.errors import ConfigError, closest

Strategy = Literal["bayesian", "random", "grid", "hyperband"]
Scale = Literal["auto", "linear", "log", "reverse_log"]
Goal = Literal["maximize", "minimize"]
STRATEGIES = {"bayesian": "Bayesian", "random": "Random", "grid": "Grid", "hyperband": "Hyperband"}
SCALES = {"auto": "Auto", "linear": "Linear", "log": "Logarithmic", "reverse_log": "ReverseLogarithmic"}
DEFAULT_METRIC = "val:miou_percent"
MINIMIZE = ("train:loss", "train:data_wait_percent")  # those of a job's default metrics for which less is better
KEYS = ("strategy", "objective", "ranges", "jobs", "parallel", "early_stopping", "max_run", "seed", "resource")
_STAMP = "%y%m%d-%H%M%S"
_NAME = 32  # characters of a tuning job's name
# Members of CreateTrainingJob that the training jobs of a tuning job cannot have. ``_lost`` tells the user about it.
DROPPED = ("TrainingJobName", "HyperParameters", "ProfilerConfig", "RemoteDebugConfig", "Tags")


@dataclass(frozen=True)
class Range:
    """The values of a setting: numbers from ``least`` to ``most`` (integers if both are), or one of ``choices``."""

    key: str
    least: float | int = 0
    most: float | int = 0
    scale: Scale = "auto"
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values with which a check tests the training config: all choices, or both ends."""
        return self.choices or (self.least, self.most)


@dataclass(frozen=True)
class Tuning:
    """The tuning file. ``jobs`` 0: all combinations of a grid. ``resource``: minimum and maximum number of epochs or
    evaluations of one training job, for Hyperband.
    """

    ranges: tuple[Range, ...]
    strategy: Strategy = "bayesian"
    metric: str = DEFAULT_METRIC
    goal: Goal = "maximize"
    jobs: int = 0
    parallel: int = 1
    early_stopping: bool = False
    max_run: int | None = None  # seconds of the whole tuning job
    seed: int | None = None
    resource: tuple[int, int] | None = None


def read(path: str | Path) -> Tuning:
    """Read the YAML file of a tuning. Raises ConfigError that names the key, the value, and the fix."""
    source = str(path)
    given = values.known(values.read_mapping(path), KEYS, source)
    ranges = _ranges(given.get("ranges"), f"{source}: ranges")
    strategy = values.choice(str(given.get("strategy", "bayesian")).lower(), Strategy, f"{source}: strategy")
    metric, goal = _objective(given.get("objective", DEFAULT_METRIC), f"{source}: objective")
    jobs, parallel, seed = (
        None if given.get(key) is None else values.whole(given[key], f"{source}: {key}")
        for key in ("jobs", "parallel", "seed")
    )
    found = Tuning(ranges, strategy, metric, goal, jobs or 0, 1 if parallel is None else parallel, seed=seed)
    if strategy == "grid":
        found = _grid(found, source)
    if found.jobs < 1 or not 1 <= found.parallel <= found.jobs:
        raise ConfigError(
            f"{source}: jobs={found.jobs} and parallel={found.parallel}: write how many training jobs there are "
            "in all, and how many of them at once, as jobs: 20 and parallel: 2"
        )
    stopping = values.switch(given.get("early_stopping", False), f"{source}: early_stopping")
    if stopping and strategy == "hyperband":
        raise ConfigError(f"{source}: early_stopping with strategy: hyperband, which stops jobs itself: leave it out")
    longest = values.seconds(given["max_run"], f"{source}: max_run") if given.get("max_run") is not None else None
    return replace(found, early_stopping=stopping, max_run=longest, resource=_resource(given, strategy, source))


def _objective(value: Any, where: str) -> tuple[str, Goal]:
    """``val:miou_percent``, or ``{metric: train:loss, goal: minimize}``."""
    if isinstance(value, str):
        value = {"metric": value}
    given = values.known(value, ("metric", "goal"), where)
    metric = values.text(given.get("metric", DEFAULT_METRIC), f"{where}.metric")
    usual = "minimize" if metric in MINIMIZE else "maximize"
    return metric, values.choice(given.get("goal", usual), Goal, f"{where}.goal")


def _ranges(value: Any, where: str) -> tuple[Range, ...]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"{where}: name the settings that vary, as optim.lr: {{min: 0.0001, max: 0.1, scale: log}}")
    return tuple(_range(key, item, f"{where}.{key}") for key, item in _flat(value).items())


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """``{optim: {lr: RANGE}}`` as ``{optim.lr: RANGE}``. A mapping with min, max, or scale is a range; any other is a
    section.
    """
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and not {"min", "max", "scale"} & set(item):
            flat.update({f"{key}.{inner}": deeper for inner, deeper in item.items()})
        else:
            flat[str(key)] = item
    return flat


def _range(key: str, value: Any, where: str) -> Range:
    if isinstance(value, (list, tuple)):
        if not value or any(isinstance(item, (Mapping, list)) for item in value):
            raise ConfigError(f"{where}={value!r}: must be a list of values, as [0.5, 1.0]")
        return Range(key, choices=tuple(value))
    given = values.known(value, ("min", "max", "scale"), where)
    ends = [_number(given.get(end), f"{where}.{end}") for end in ("min", "max")]
    if not ends[0] < ends[1]:
        raise ConfigError(f"{where}: min={ends[0]} is not less than max={ends[1]}")
    scale = values.choice(given.get("scale", "auto"), Scale, f"{where}.scale")
    if scale == "log" and ends[0] <= 0:
        raise ConfigError(f"{where}: scale=log needs numbers above 0, min={ends[0]} is not")
    if scale == "reverse_log" and not (ends[0] >= 0 and ends[1] < 1):
        raise ConfigError(f"{where}: scale=reverse_log is for numbers from 0 to below 1")
    return Range(key, ends[0], ends[1], scale)


def _number(value: Any, where: str) -> float | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value is None:
        raise ConfigError(f"{where} is missing: write both ends, as {{min: 0.0001, max: 0.1}}")
    return values.number(value, where)


def _grid(found: Tuning, source: str) -> Tuning:
    """The tuning with the number of combinations as ``jobs``. Raises ConfigError for a range that is not a list."""
    for one in found.ranges:
        if not one.choices:
            raise ConfigError(
                f"{source}: strategy=grid takes lists: ranges.{one.key} is from {one.least} to {one.most}"
            )
    count = prod(len(one.choices) for one in found.ranges)
    if found.jobs not in (0, count):
        raise ConfigError(f"{source}: jobs={found.jobs}, but the grid has {count} combinations: leave jobs out")
    return replace(found, jobs=count)


def _resource(given: Mapping[str, Any], strategy: str, source: str) -> tuple[int, int] | None:
    if given.get("resource") is None:
        return None
    if strategy != "hyperband":
        raise ConfigError(f"{source}: resource is for strategy: hyperband, not for {strategy}")
    pair = values.known(given["resource"], ("min", "max"), f"{source}: resource")
    least, most = (values.whole(pair.get(end), f"{source}: resource.{end}") for end in ("min", "max"))
    return least, most


def name(job: SageMakerJob, now: datetime) -> str:
    """The tuning job's name, such as ``camvid-261122-093000``: at most 32 characters."""
    stamp = now.strftime(_STAMP)
    base = re.sub(r"[^A-Za-z0-9]+", "-", job.name)[: _NAME - len(stamp) - 1].strip("-") or "segtrain"
    return f"{base}-{stamp}"


def request(job: SageMakerJob, asked: Mapping[str, Any], tuning: Tuning, now: datetime) -> dict[str, Any]:
    """The arguments of boto3's ``create_hyper_parameter_tuning_job``. ``asked``: the CreateTrainingJob request."""
    config: dict[str, Any] = {
        "Strategy": STRATEGIES[tuning.strategy],
        "HyperParameterTuningJobObjective": {"Type": tuning.goal.capitalize(), "MetricName": tuning.metric},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": tuning.jobs, "MaxParallelTrainingJobs": tuning.parallel},
        "ParameterRanges": _parameter_ranges(tuning.ranges),
        "TrainingJobEarlyStoppingType": "Auto" if tuning.early_stopping else "Off",
    }
    if tuning.strategy == "grid":  # counted by the service
        del config["ResourceLimits"]["MaxNumberOfTrainingJobs"]
    if tuning.max_run is not None:
        config["ResourceLimits"]["MaxRuntimeInSeconds"] = tuning.max_run
    if tuning.seed is not None:
        config["RandomSeed"] = tuning.seed
    if tuning.resource is not None:
        ends = dict(zip(("MinResource", "MaxResource"), tuning.resource))
        config["StrategyConfig"] = {"HyperbandStrategyConfig": ends}
    whole = {
        "HyperParameterTuningJobName": name(job, now),
        "HyperParameterTuningJobConfig": config,
        "TrainingJobDefinition": _definition(asked, tuning),
    }
    return whole | ({"Tags": asked["Tags"]} if "Tags" in asked else {})


def _parameter_ranges(ranges: tuple[Range, ...]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in ranges:
        described: dict[str, Any] = {}
        if one.choices:  # in JSON, like every other hyperparameter
            kind, described = "Categorical", {"Values": [json.dumps(value) for value in one.choices]}
        else:
            kind = "Integer" if isinstance(one.least, int) and isinstance(one.most, int) else "Continuous"
            described = {"MinValue": str(one.least), "MaxValue": str(one.most), "ScalingType": SCALES[one.scale]}
        found.setdefault(f"{kind}ParameterRanges", []).append({"Name": one.key, **described})
    return found


def _definition(asked: Mapping[str, Any], tuning: Tuning) -> dict[str, Any]:
    tuned = {one.key for one in tuning.ranges}
    definition = {key: value for key, value in asked.items() if key not in DROPPED}
    algorithm = asked["AlgorithmSpecification"]
    kept = ("TrainingImage", "TrainingInputMode", "MetricDefinitions")
    definition["AlgorithmSpecification"] = {key: algorithm[key] for key in kept if key in algorithm}
    static = {key: text for key, text in asked["HyperParameters"].items() if key not in tuned}
    return {"StaticHyperParameters": static, **definition}


def findings(job: SageMakerJob, asked: Mapping[str, Any], tuning: Tuning, root: Path) -> Iterator[Finding]:
    """Findings about a tuning job that its training job alone does not have. ``asked``: the tuning request."""
    yield from _of_metric(job, tuning)
    yield from _of_ranges(job, tuning, root)
    for text in violations(asked, operation="CreateHyperParameterTuningJob") or []:
        yield error("tuning-model", text, source="botocore's model of CreateHyperParameterTuningJob")
    yield from _lost(job, tuning)


def _of_metric(job: SageMakerJob, tuning: Tuning) -> Iterator[Finding]:
    known = [metric.name for metric in job.metrics]
    if tuning.metric not in known:
        near = closest(tuning.metric, known)
        yield error(
            "tuning-metric",
            f"objective.metric={tuning.metric}: the job has no such metric",
            f"metric: {near}" if near else f"one of {', '.join(known)}, or add it to the job's metrics",
        )


def _of_ranges(job: SageMakerJob, tuning: Tuning, root: Path) -> Iterator[Finding]:
    """Errors of the training config with each end of each range. Errors of the job itself are reported elsewhere."""
    before = {(one.code, one.message) for one in training(job, root, ()) if one.level == "error"}
    for one in tuning.ranges:
        if one.key == "config" or one.key.startswith("sagemaker_") or one.key == "parallel.strategy":
            yield error("tuning-range", f"ranges.{one.key}: it decides how a job is started and cannot vary")
            continue
        for value in one.ends:
            tried = replace(job, settings={**job.settings, one.key: value})
            for finding in training(tried, root, ()):
                if finding.level == "error" and (finding.code, finding.message) not in before:
                    yield error("tuning-range", f"ranges.{one.key}, value {value}: {finding.message}", finding.cure)


def _lost(job: SageMakerJob, tuning: Tuning) -> Iterator[Finding]:
    yield note(
        "tuning-entrypoint",
        "training jobs of a tuning are started by the image's own entry point, without SageMaker's profiler: "
        "a job that is stopped early keeps only its last checkpoint",
        source="HyperParameterTrainingJobDefinition in the SageMaker API reference",
    )
    if job.remote_debug:
        yield warning("tuning-debug", "remote_debug=true: not available in training jobs of a tuning", "leave it out")
    if job.checkpoints:
        yield note(
            "tuning-checkpoints",
            f"checkpoints={job.checkpoints}: each training job has a folder with its name there, and downloads "
            "all of them at its start",
        )
    if tuning.parallel > 1:
        yield note(
            "tuning-quota",
            f"parallel={tuning.parallel}: the quota must allow {tuning.parallel * job.hosts} machines at once",
        )


def cost(job: SageMakerJob, tuning: Tuning) -> str:
    """The most that all jobs together can cost, in words."""
    dollars, words = cost_ceiling(job)
    if dollars is None:
        return words
    return f"at most ${tuning.jobs * dollars:,.2f}: {tuning.jobs} jobs, each {words}"
