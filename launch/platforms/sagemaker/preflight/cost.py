"""The most that a job can cost, and checks of the groups that do not train: each helps, gets the
data, and is worth its price, or is said to do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from launch.core.bundle import all_settings
from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Group
from launch.platforms.sagemaker.preflight.places import hours
from segtrain.errors import SegtrainError
from segtrain.machines import dated, machines


def cost_ceiling(job: SageMakerJob) -> tuple[float | None, str]:
    """The most that the job can cost, in dollars (None if a price is not known) and in words.

    With fallback types: the cost on the most expensive type.
    """
    if job.fallbacks:
        others = [
            replace(job, type=fallback.type, instances=fallback.instances or job.instances)
            for fallback in job.fallbacks
        ]
        sums = [cost_ceiling(replace(variant, fallbacks=())) for variant in (job, *others)]
        return next(
            (ceiling for ceiling in sums if ceiling[0] is None),
            max(sums, key=lambda ceiling: ceiling[0] or 0.0),
        )
    groups = job.groups or (Group("", job.type, job.instances),)
    hourly = 0.0
    parts = []
    unknown = []
    for group in groups:
        price, source = price_of(job, group.type)
        if price is None:
            unknown.append(group.type)
            continue
        hourly += group.instances * price
        parts.append(f"{group.instances} x {group.type} at ${price:g}/h ({source})")
    if unknown:
        cure = (
            "give it with --price"
            if job.training_type in unknown
            else "look it up: --price sets only the price of the type that trains"
        )
        return None, f"not known: no price of {', '.join(unknown)} in the table; {cure}"
    total = hourly * job.max_run / 3600
    words = f"at most ${total:,.2f}: {' + '.join(parts)} for {hours(job.max_run)}"
    if job.spot:
        words += "; spot is cheaper, but its price changes by the hour"
    if job.warm_pool:
        warm_pool_cost = hourly * job.warm_pool / 3600
        total += warm_pool_cost
        words += f"; and ${warm_pool_cost:,.2f} for {hours(job.warm_pool)} of warm pool"
    if job.retries:
        words += "; the longest run holds for all retries together"
    return round(total, 2), words + "; storage and transfer are extra"


def price_of(job: SageMakerJob, name: str) -> tuple[float | None, str]:
    """Dollars per hour of an instance (None: not known), and their source."""
    if job.price is not None and name == job.training_type:
        return job.price, "--price"
    instance = INSTANCES.get(name)
    if instance is None or instance.price is None:
        return None, ""
    elsewhere = f", for {job.region} it differs" if job.region not in ("", "us-east-1") else ""
    return instance.price, f"us-east-1, {dated(instance.price_source)}{elsewhere}"


NONE = "none"  # value of data.helpers without helping hosts
LEAST_GAIN = 1.05  # helping hosts that make a job less than this many times as fast are not needed
_SOURCE = "computed from --like, as segtrain diagnose does"
MEASURED = "measured on two hosts, 2026-11-22: docs/helpers.md"


def helpers(job: SageMakerJob) -> Iterator[Finding]:
    settings = all_settings(job)
    requested = settings.get("data.helpers") not in (None, "", NONE)
    yield from _marks(job)
    if job.helping_groups and not requested:
        names = ", ".join(group.name for group in job.helping_groups)
        yield error(
            "helpers-unused",
            f"groups {names}: their hosts join the training, but data.helpers is not set, so "
            "no sample comes from them",
            "data.helpers=ray",
        )
    elif requested and not job.helping_groups:
        yield error(
            "helpers-missing",
            f"data.helpers={settings['data.helpers']}, but no group helps",
            "--group NAME=TYPE*N:train --group cpu=ml.c5.4xlarge*1:help, or leave data.helpers out",
        )
    for group in job.helping_groups:
        # A helping host reads the same files as a training host.
        trains = {training_group.name for training_group in job.training_groups}
        for channel in job.data:
            if trains & set(channel.groups) and group.name not in channel.groups:
                yield error(
                    "helpers-without-data",
                    f"data.{channel.name} goes to {', '.join(channel.groups)}, not to the "
                    f"helping group {group.name}",
                    f"add {group.name} to its groups",
                )
        machine = machines().get(group.type)
        if machine and machine.gpus:
            yield warning(
                "helpers-with-gpus",
                f"groups.{group.name}: the {machine.gpus} x {machine.gpu} of a {group.type} are "
                "billed and do nothing",
                "a type without GPUs, such as --group "
                f"{group.name}=ml.c5.4xlarge*{group.instances}:help",
            )
    if job.helping_groups:
        yield from _need(job, bool(settings.get("data.transforms")))


def _marks(job: SageMakerJob) -> Iterator[Finding]:
    for group in job.groups:
        if group.help and group in job.training_groups:
            yield error(
                "group-marks",
                f"groups.{group.name} would both train and help",
                "mark another group :train",
            )
        elif group not in job.training_groups and not group.help and group.instances > 0:
            yield warning(
                "group-idle",
                f"groups.{group.name}: {group.instances} x {group.type}{_price(job, [group])} will "
                "do nothing: its hosts end at once, but are billed for as long as the job runs",
                f"leave the group {group.name} out, or let it make samples for the group that "
                f"trains: --group {group.name}={group.type}*{group.instances}:help "
                "data.helpers=ray",
            )


def _need(job: SageMakerJob, transforms: bool) -> Iterator[Finding]:
    """What the helping groups cost, and whether they pay: computed from a past run, or not
    known.
    """
    if job.like:
        yield from _like(job)
        return
    for group in job.helping_groups:
        what = f"groups.{group.name}: {group.instances} x {group.type}{_price(job, [group])}"
        if transforms:
            yield warning(
                "helpers-need",
                f"{what}: whether helping hosts pay is not shown: they do where data.transforms "
                "take far longer than 10 ms of a core for a sample, and the cores of the training "
                "hosts cannot keep up",
                "--like RUN, a past run with this config; or measure: segtrain bench data "
                "CONFIG --device-ms MS",
                MEASURED,
            )
        else:
            yield warning(
                "helpers-need",
                f"{what} are not likely to pay: without data.transforms, making a sample of "
                "512x1024 takes 5 ms of a core, and receiving it from another host more than 1 ms",
                f"leave the group {group.name} out, or take a type with more vCPUs per GPU; "
                "--like RUN computes it",
                MEASURED,
            )


def _like(job: SageMakerJob) -> Iterator[Finding]:
    """The speed and the price with and without helping hosts, from the run that ``job.like``
    names.
    """
    from segtrain.insight.plan.helping import need
    from segtrain.insight.plan.terms import terms_of

    groups, types = job.helping_groups, machines()
    names = ", ".join(group.name for group in groups)
    what = f"groups {names}{_price(job, groups)}"
    if any(name not in types for name in (job.training_type, *(group.type for group in groups))):
        yield warning(
            "helpers-need",
            f"{what}: the sizes of their types are not known",
            "types of segtrain's table",
        )
        return
    try:
        estimate = need(
            terms_of(
                Path(job.like), job.training_type if types[job.training_type].gpus == 0 else ""
            ),
            types[job.training_type],
            job.training_hosts,
            [(types[group.type], group.instances) for group in groups],
        )
    except SegtrainError as problem:
        message = f"{what}: --like {job.like} does not show their need: {problem}"
        yield warning("helpers-need", message, "a run of a SageMaker job")
        return
    rates = (
        f"the devices take {estimate.device:,.1f} images/s, and the training hosts alone reach "
        f"{estimate.alone:,.1f}"
    )
    leave = f"leave the groups {names} out"
    if not estimate.pays:
        costs = (
            f"receiving a sample takes {1000 * estimate.receive:.2g} ms of CPU time there, and "
            "making it"
        )
        yield warning(
            "helpers-need",
            f"{what} would not pay: {costs} {1000 * estimate.make:.2g} ms",
            leave,
            _SOURCE,
        )
        return
    if estimate.gain < LEAST_GAIN:
        yield warning("helpers-need", f"{what} are not needed: {rates}", leave, _SOURCE)
        return
    speed = f"{rates}, with helping hosts {estimate.assisted:,.1f} ({estimate.gain:.2f}x)"
    training, helping = _hourly(job, job.training_groups), _hourly(job, groups)
    if training is None or helping is None:
        yield note("helpers-need", f"{what}: {speed}", source=_SOURCE)
        return
    alone, assisted = training * estimate.hours[0], (training + helping) * estimate.hours[1]
    money = f"a run like it costs ${assisted:,.2f} in {estimate.hours[1]:,.1f} h, "
    money += f"and ${alone:,.2f} in {estimate.hours[0]:,.1f} h without them"
    if assisted <= alone:
        yield note("helpers-need", f"{what} pay: {speed}; {money}", source=_SOURCE)
    else:
        fix = (
            f"{leave}, unless time is worth it; segtrain plan --like {quote(job.like)} "
            "compares types"
        )
        yield warning(
            "helpers-need", f"{what} cost more than they save: {speed}; {money}", fix, _SOURCE
        )


def _hourly(job: SageMakerJob, groups: Sequence[Group]) -> float | None:
    """Dollars per hour; None if a price is not known."""
    prices = [(price_of(job, group.type)[0], group.instances) for group in groups]
    return (
        sum(price * count for price, count in prices if price is not None)
        if all(p for p, _ in prices)
        else None
    )


def _price(job: SageMakerJob, groups: Sequence[Group]) -> str:
    """($1.63/h, at most $39.17 in 24 h); "" if a price is not known."""
    hourly = _hourly(job, groups)
    if hourly is None:
        return ""
    return (
        f" (${hourly:,.2f}/h, at most ${hourly * job.max_run / 3600:,.2f} in {hours(job.max_run)})"
    )
