"""Ways to feed a device that waits for its samples, with speed and price: fixes, another machine
type, helpers.

The speeds follow from the model of a step (model.py) and the run's own figures, the prices from
segtrain/machines. All types are assumed to have cores and GPUs as fast as the run's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from segtrain.base.units import ms
from segtrain.errors import ConfigError, closest
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.diagnose.model import Stages, stages_of
from segtrain.insight.diagnose.stats import Figures
from segtrain.insight.diagnose.verdict import Verdict
from segtrain.machines import Machine, machines
from segtrain.machines.receiving import WORTH, receive_seconds

# A faster way that gains less than this is not listed.
LEAST_GAIN = 1.05
# The newest types may be missing in a region; of each kind only the cheapest for the same work is
# listed.
_HELPERS = ("ml.c5.", "ml.c6i.", "ml.c7i.")


@dataclass(frozen=True)
class Remedy:
    """``gain``: speed as a multiple of the present one. ``price``: dollars per hour of one host
    with the remedy.

    ``cost``: of the same work, as a multiple of the present cost. ``most``: whether ``gain`` is an
    upper limit.
    """

    name: str
    gain: float
    price: float
    cost: float
    most: bool = False


def with_helpers(now: Stages, cores: float, receive: float) -> float:
    """Seconds of a step if ``cores`` helper cores per rank make samples too.

    ``receive``: CPU seconds that the rank needs for a sample of a helper.
    """
    if not cores or not now.cpu:
        return now.step
    rate = cores / now.cpu
    workers = now.samples * now.wall / (now.workers + rate * now.wall)
    own = (now.samples * now.cpu + now.computed) / (now.cores + rate * (now.cpu - receive))
    # If helpers make all samples, the rank still receives them.
    least = (now.samples * receive + now.computed) / now.cores
    return max(now.device, workers, own, least) + now.stalls


def remedies(figures: Figures, verdicts: Sequence[Verdict], machine: Machine) -> list[Remedy]:
    """The ways to make a run on ``machine`` faster, the cheapest for the same work first.

    Empty if the run does not lack CPU for its samples, or if the price of ``machine`` is unknown.
    """
    rank = figures.most_starved_rank
    lacking = [verdict for verdict in verdicts if CAUSES[verdict.cause].lacks_cpu]
    if not lacking or rank.samples is None or machine.price is None:
        return []
    now, gain = stages_of(figures, rank, others=False), lacking[0].gain
    # The gain of cheaper samples is predicted for samples without the stage.
    most = lacking[0].cause != "too-few-workers"
    options = [
        *(
            Remedy(choice.text, gain, machine.price, 1 / gain, most)
            for choice in lacking[0].fix.choices
            if gain > 1
        ),
        *_types(now, machine),
        *_helpers(now, machine, rank.ranks_on_host, receiving(figures)),
    ]
    return sorted(
        (option for option in options if option.gain >= LEAST_GAIN),
        key=lambda option: (option.cost, -option.gain),
    )


def remedy_facts(figures: Figures, verdicts: Sequence[Verdict], on: str) -> dict[str, Any]:
    """``remedies`` for the facts of a diagnosis; empty if there are none, or if the machine type is
    unknown.

    ``on``: the type of the run's machines, "" if the run says it. Raises ConfigError if the table
    does not have it.
    """
    name = on or figures.most_starved_rank.machine
    machine = machines().get(name)
    if machine is None:
        if not on:
            return {}
        near = closest(on, machines(), 0.6)
        fix = f"did you mean {near}?" if near else "segtrain/machines/sagemaker.csv lists the types"
        raise ConfigError(
            f"--on={on}: unknown machine type: {fix}", code="unknown-machine-type", found=on
        )
    listed = remedies(figures, verdicts, machine)
    if not listed:
        return {}
    return {
        "remedies": {
            "machine": name,
            "price": machine.price,
            "ways": [asdict(option) for option in listed],
            "note": why_no_helpers(figures),
        }
    }


def why_no_helpers(figures: Figures) -> str:
    """Why helpers would not pay, or "" if they may."""
    samples = figures.most_starved_rank.samples
    if samples is None:
        return ""
    receive = receiving(figures)
    if receive < WORTH * samples.cpu:
        return ""
    return (
        f"helpers would not pay: receiving a sample takes {ms(receive)} of CPU, and making it "
        f"{ms(samples.cpu)}"
    )


def receiving(figures: Figures) -> float:
    """CPU seconds of a rank for a sample that a helper made: as the run has measured it, else for
    its crop.
    """
    samples = figures.most_starved_rank.samples
    crop = figures.evidence.setting("data.crop", (0, 0))
    if samples is not None and samples.receive is not None:
        return samples.receive
    return receive_seconds(*(crop if isinstance(crop, (list, tuple)) else (crop, crop)))


def _types(now: Stages, machine: Machine) -> Iterator[Remedy]:
    """The type with the same GPUs and more cores that is cheapest for the same work."""
    assert machine.price is not None
    options = []
    for other in machines().values():
        same = (other.gpu, other.gpus) == (machine.gpu, machine.gpus) and not other.retired
        if not same or other.vcpus <= machine.vcpus or other.price is None:
            continue
        cores = now.cores * other.vcpus / machine.vcpus
        then = replace(
            now, cores=cores, workers=max(now.workers, cores - min(1.0, now.computed / now.step))
        )
        gain = now.step / then.step
        name = f"{other.name}: {other.vcpus} vCPUs instead of {machine.vcpus}"
        options.append(Remedy(name, gain, other.price, other.price / machine.price / gain))
    yield from sorted(options, key=lambda option: option.cost)[:1]


def _helpers(now: Stages, machine: Machine, ranks: int, receive: float) -> Iterator[Remedy]:
    """The CPU type that helps each host at the lowest cost for the same work."""
    if receive >= WORTH * now.cpu:
        return
    assert machine.price is not None
    options = []
    for other in machines().values():
        if not other.name.startswith(_HELPERS) or other.price is None or other.vcpus < 4:
            continue
        gain = now.step / with_helpers(now, other.vcpus / ranks, receive)
        price = machine.price + other.price
        name = f"data.helpers=ray, and one {other.name} ({other.vcpus} vCPUs) for each host"
        options.append(Remedy(name, gain, price, price / machine.price / gain))
    yield from sorted(options, key=lambda option: option.cost)[:1]
