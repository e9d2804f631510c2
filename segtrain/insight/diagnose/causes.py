"""Table of all causes that can slow a run down: one row for each, with everything specific to that
cause.

To add a cause, write a function that finds it and add a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from segtrain.insight.diagnose import cores_rules, loop_rules, pause_rules
from segtrain.insight.diagnose.data_rules import data_verdicts
from segtrain.insight.diagnose.rank_rules import rank_verdicts
from segtrain.insight.diagnose.stats import Figures
from segtrain.insight.diagnose.verdict import Verdict

Rule = Callable[[Figures], "Verdict | list[Verdict] | None"]
# Which runs a rule judges. ``always``: every run. ``steady``: only a run that is long enough to
# show its usual time of a step. ``last``: like ``steady``, and only if no other cause was found,
# except other programs.
When = Literal["always", "steady", "last"]
# The charts in a report.
ChartName = Literal[
    "data-wait", "sample-cost", "loop-phases", "step-phases", "rank-waits", "cores", "gpu-use"
]

_DATA: tuple[ChartName, ...] = ("data-wait", "sample-cost")


@dataclass(frozen=True)
class Cause:
    """A cause. ``words`` complete "bound by ...".

    ``rule`` finds this cause, and perhaps others: each rule is called once, in the order of the
    rows. ``charts`` show the evidence. ``lacks_cpu``: whether more or cheaper CPU work is the
    answer.
    """

    words: str
    rule: Rule
    when: When = "steady"
    charts: tuple[ChartName, ...] = ()
    lacks_cpu: bool = False


# If verdicts have equal shares, the order of the rules decides: the first cause explains the
# others.
CAUSES: dict[str, Cause] = {
    "shm": Cause(
        "shared memory between workers and the rank",
        lambda figures: loop_rules.shm_failure(figures.evidence),
        "always",
        _DATA,
    ),
    "compiling": Cause(
        "torch.compile, which does not pay off in so short a run",
        pause_rules.compiling,
        "always",
        charts=("step-phases",),
    ),
    "memory": Cause("a lack of memory", loop_rules.memory, "always", charts=("cores",)),
    "sync-point": Cause(
        "a wait in the loop's own thread", loop_rules.own_thread, charts=("step-phases",)
    ),
    "main-thread": Cause(
        "work in the loop's own thread",
        loop_rules.own_thread,
        charts=("step-phases", "sample-cost"),
    ),
    "host-to-device": Cause("copies to the device", loop_rules.on_the_gpu, charts=("step-phases",)),
    "too-many-threads": Cause("more threads than cores", loop_rules.threads, charts=("cores",)),
    "other-programs": Cause(
        "other programs that use the cores it needs", cores_rules.other_programs, charts=("cores",)
    ),
    "logging": Cause("logging", pause_rules.pauses, charts=("loop-phases",)),
    "checkpoint": Cause("writing checkpoints", pause_rules.pauses, charts=("loop-phases",)),
    "evaluation": Cause("evaluation", pause_rules.pauses, charts=("loop-phases",)),
    "slow-rank": Cause(
        "one rank that is slower than the others", rank_verdicts, charts=("rank-waits",)
    ),
    "slow-host": Cause(
        "one host that is slower than the others", rank_verdicts, charts=("rank-waits",)
    ),
    "slow-network": Cause("the network between ranks", rank_verdicts, charts=("rank-waits",)),
    "storage-faults": Cause("faults of the storage", data_verdicts, charts=_DATA),
    "storage-latency": Cause("storage latency", data_verdicts, charts=_DATA),
    "storage-bandwidth": Cause("storage bandwidth", data_verdicts, charts=_DATA),
    "decode": Cause("decoding images and masks", data_verdicts, charts=_DATA, lacks_cpu=True),
    "augmentation": Cause("augmentation", data_verdicts, charts=_DATA, lacks_cpu=True),
    "too-few-workers": Cause(
        "too few workers for the samples", data_verdicts, charts=_DATA, lacks_cpu=True
    ),
    "too-few-cores": Cause(
        "a lack of cores: its own threads need more than there are",
        cores_rules.too_few_cores,
        "last",
        charts=("cores",),
        lacks_cpu=True,
    ),
    "small-batch": Cause(
        "the fixed cost of a step, whatever its batch",
        loop_rules.small_batch,
        "last",
        charts=("gpu-use", "step-phases"),
    ),
}
