"""Whether hosts that make samples pay for a job like a past run: the speed with and without
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segtrain.insight.diagnose.model import Stages
from segtrain.insight.diagnose.remedies import with_helpers
from segtrain.insight.plan.terms import Terms
from segtrain.machines import Machine, gpus, machines
from segtrain.machines.receiving import WORTH


@dataclass(frozen=True)
class HelperRates:
    """Images/s of all ranks: what the devices take, what the training hosts alone reach, and what
    helpers add to that.

    ``hours``: of the whole run without helpers, and with them. ``make``, ``receive``: CPU seconds
    of a sample.
    """

    device: float
    alone: float
    assisted: float
    hours: tuple[float, float]
    make: float
    receive: float

    @property
    def gain(self) -> float:
        return self.assisted / self.alone

    @property
    def pays(self) -> bool:
        """Whether receiving a sample costs little enough beside making it."""
        return self.receive < WORTH * self.make


def need(
    terms: Terms, training: Machine, hosts: int, helping: Sequence[tuple[Machine, int]]
) -> HelperRates:
    """For ``hosts`` training hosts of a type, and helping hosts (type, number). Time for gradients
    is left out.
    """
    own, local = machines()[terms.machine], training.gpus or 1
    ranks, cores = local * hosts, training.vcpus / local
    ratio = 1.0 if training.gpu == own.gpu else gpus()[own.gpu].speed / gpus()[training.gpu].speed
    device = terms.device * ratio
    now = Stages(
        device=device,
        stalls=0.0,
        samples=terms.images,
        wall=terms.wall,
        cpu=terms.cpu,
        workers=max(1.0, cores - 1),
        computed=terms.computed,
        cores=cores,
    )
    helper_cores = sum(machine.vcpus * count for machine, count in helping) / ranks
    steps = now.step, with_helpers(now, helper_cores, terms.receive)
    rates = [ranks * terms.images / max(1e-9, step) for step in (device, *steps)]
    return HelperRates(
        rates[0],
        rates[1],
        rates[2],
        (terms.total / rates[1] / 3600, terms.total / rates[2] / 3600),
        terms.cpu,
        terms.receive,
    )
