"""Interleaved rounds of all loops: images/s, peak memory, and our rate divided by each other
one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import page
import torch

from loops.task import Case, Stopwatch, Task, fresh, smp_network

OURS = "segtrain"
# Side -> package that it needs, module of this folder, function.
SIDES = {
    OURS: ("torch", "ours", "run"),
    "segtrain, batches on the device": ("torch", "ours", "run_step"),
    "plain loop": ("torch", "plain", "run"),
    "plain loop, channels_last, fused AdamW": ("torch", "plain", "run_tuned"),
    "torchvision's reference": ("torch", "torchvision_amp", "run"),
    "SMP and Lightning": ("lightning or pytorch_lightning", "lightning_smp", "run"),
    "Composer": ("composer", "composer_trainer", "run"),
    "mmengine": ("mmengine", "mmengine_runner", "run"),
}
NETWORKS = (
    ("DeepLabV3+ R50", "deeplabv3plus", "resnet50"),
    ("SegFormer-B2", "segformer", "mit_b2"),
    ("U-Net R34", "unet", "resnet34"),
    ("DeepLabV3+ R101", "deeplabv3plus", "resnet101"),
)
ROUNDS, WARM, STEPS = 3, 10, 40


@dataclass
class SideResult:
    """The results of a side in the rounds of a case; in ``errors`` those that failed."""

    rates: dict[int, float] = field(default_factory=dict)  # images/s by round
    peak_gib: float = 0.0
    errors: list[str] = field(default_factory=list)


def cases(tiny: bool) -> list[Case]:
    """The most important first."""
    if tiny:
        return [Case("U-Net R18", "unet", "resnet18", 5, 2, (32, 32))]
    small = [Case(*network, 19, 16, (512, 1024)) for network in NETWORKS]
    many = [Case(*network, 150, 16, (512, 512)) for network in NETWORKS]
    return small + many


def absent(side: str) -> str:
    """Which package a side lacks; "" if none."""
    needed = SIDES[side][0]
    there = any(importlib.util.find_spec(name) is not None for name in needed.split(" or "))
    return "" if there else needed


def compete(
    case: Case,
    device: str,
    amp: bool,
    rounds: int,
    warm: int,
    steps: int,
    late: Callable[[], bool],
    note: Callable[[str, str], None] = lambda what, result: None,
    earlier: Mapping[str, str] = {},
) -> dict[str, SideResult]:
    """All sides take turns, ``rounds`` times, or until ``late()``. Lightning, Composer, ... count
    if installed.

    ``note(what, result)`` gets each measurement at once. ``earlier``: what it has got in another
    call, which is not measured again.
    """
    network, sides = smp_network(case), [side for side in SIDES if not absent(side)]
    results = {side: SideResult() for side in sides}
    for number in range(rounds):
        for side in sides:
            if late() and number:
                return results
            if results[side].errors:
                continue
            what = f"  {case.title}, round {number + 1}, {side}"
            if what in earlier:
                rate, _, _, peak, _ = earlier[what].split()
                results[side].rates[number], results[side].peak_gib = float(rate), float(peak)
                continue
            network.to("cpu", memory_format=torch.contiguous_format).zero_grad(set_to_none=True)  # type: ignore[call-overload]
            fresh(device)
            mark = Stopwatch(device, warm, steps)
            try:
                with _quiet():
                    _function(side)(Task(case, network, device, amp, warm, steps), mark)
            except Exception as error:
                traceback.print_exc()
                results[side].errors.append(
                    f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                )
                continue
            results[side].rates[number] = (steps - warm) * case.images / mark.seconds
            results[side].peak_gib = mark.peak_gib
            note(what, f"{results[side].rates[number]:.1f} images/s, peak {mark.peak_gib:.2f} GiB")
    return results


def _function(side: str) -> Callable[[Task, Stopwatch], None]:
    _, module, name = SIDES[side]
    return getattr(importlib.import_module(f"loops.{module}"), name)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def rows(case: Case, results: dict[str, SideResult]) -> Iterator[tuple[str, str]]:
    """(what, result) of each side of a case. A ratio is formed within each round; its median is
    reported.
    """
    ours = results[OURS].rates
    yield case.title, f"rounds: {max(len(side_result.rates) for side_result in results.values())}"
    for side, side_result in results.items():
        if side_result.errors:
            yield f"  {side}", f"failed: {side_result.errors[0]}"
            continue
        ratios = [
            ours[number] / rate for number, rate in side_result.rates.items() if number in ours
        ]
        ratio = f", segtrain is {median(ratios):.2f} x as fast" if ratios and side != OURS else ""
        if side_result.rates:
            rates = page.each_round(side_result.rates.values(), ".1f")
            yield f"  {side}", f"images/s: {rates}, peak {side_result.peak_gib:.2f} GiB{ratio}"


def race(
    device: str,
    amp: bool,
    tiny: bool,
    rounds: int,
    end: float,
    note: Callable[[str, str], None],
    earlier: Mapping[str, str] = {},
) -> None:
    """All cases until ``end`` (time.monotonic()). ``note(what, result)`` gets each row, unless it
    is in ``earlier``.
    """
    for side in SIDES:
        if lacking := absent(side):
            note(side, f"left out: {lacking} is not installed")
    warm, steps = (1, 2) if tiny else (WARM, STEPS)
    longest = 0.0
    for case in cases(tiny):
        if earlier.get(case.title) == f"rounds: {rounds}":
            continue
        begin = time.monotonic()
        if begin + 0.6 * longest > end:
            note(case.title, "left out: no time is left")
            continue
        results = compete(
            case, device, amp, rounds, warm, steps, lambda: time.monotonic() > end, note, earlier
        )
        longest = max(longest, time.monotonic() - begin)
        for what, result in rows(case, results):
            note(what, result)
