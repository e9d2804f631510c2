"""What faster ways to feed a GPU cost: the second account's gain from its stated inputs, and segtrain's own figures.

The tables of accounts_ray.py. *Work per dollar* is the speed-up divided by the rise of the price; the account says that
it rose by 23 %, or that the same work cost 23 % less: a speed-up of 1.94 or 2.05.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from segtrain.diagnose.model import Stages
from segtrain.diagnose.remedies import receive_seconds, with_helpers
from segtrain.machines import machines

BATCH, CROP = 64, (224, 224)
GPU, CPU, LARGER = "ml.g5.xlarge", "ml.c5.4xlarge", "ml.g5.2xlarge"
# The account's figures: dollars per hour, the gain in percent, and the two speed-ups that it can mean.
PRICES, GAIN, MORE_WORK, LESS_COST = (1.408, 0.816), 23.0, 1.94, 2.05
STEPS_S = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # of the GPU: the account does not state it
Results = Sequence[dict[str, Any]]


def price(name: str) -> float:
    found = machines()[name].price
    assert found is not None
    return found


def work_per_dollar(speed_up: float, before: float, after: float) -> float:
    """Percent more work for the same money, if ``before`` dollars per hour become ``after``."""
    return 100 * (speed_up * before / after - 1)


def cost_of_work(speed_up: float, before: float, after: float) -> float:
    """Percent that the same work costs more."""
    return 100 * (after / before / speed_up - 1)


def stated() -> Iterator[tuple[str, float, float, float]]:
    """(prices, speed-up, percent of gain, points by which it misses the account's) from what the account states."""
    for said, (gpu, cpu) in (("the account's", PRICES), ("segtrain/machines", (price(GPU), price(CPU)))):
        for speed_up, gain in ((MORE_WORK, work_per_dollar), (LESS_COST, lambda *of: -cost_of_work(*of))):
            found = gain(speed_up, gpu, gpu + cpu)
            yield f"{said}: ${gpu:g} and ${cpu:g}", speed_up, found, found - GAIN


def stages(device_s: float, cpu_s: float, vcpus: float, batch: int = BATCH) -> Stages:
    """A step, if a sample takes ``cpu_s`` of one core."""
    return Stages(device_s, 0.0, batch, cpu_s, cpu_s, vcpus, 0.0, vcpus)


def ways(device_s: float, cpu_s: dict[str, float]) -> Iterator[tuple[str, float, float]]:
    """(way, speed-up, work per dollar in percent) on the account's machines, by the model of a step.

    ``cpu_s``: measured CPU seconds of a sample, by side.
    """
    types = machines()
    now = stages(device_s, cpu_s["alone"], types[GPU].vcpus)
    both = types[GPU].vcpus + types[CPU].vcpus
    found = [
        (f"helpers on {CPU}", with_helpers(now, types[CPU].vcpus, receive_seconds(*CROP)), price(GPU) + price(CPU)),
        (f"Ray Data, with {CPU}", stages(device_s, cpu_s["ray data"], both).step, price(GPU) + price(CPU)),
        (f"{LARGER}", stages(device_s, cpu_s["alone"], types[LARGER].vcpus).step, price(LARGER)),
        ("blurs of OpenCV", stages(device_s, cpu_s["opencv"], types[GPU].vcpus).step, price(GPU)),
    ]
    for name, step, dollars in found:
        speed_up = now.step / step
        yield name, speed_up, work_per_dollar(speed_up, price(GPU), dollars)


def step_of(speed_up: float, cpu_s: float) -> float:
    """Seconds of a GPU's step with which helpers that are fast enough bring a speed-up."""
    return BATCH * cpu_s / machines()[GPU].vcpus / speed_up


def line(found: dict[str, Any]) -> str:
    """What one side has given, for the screen."""
    head = f"round {found['round']}  {found['side']:9}"
    if "error" in found:
        return f"{head} failed: {found['error']}\n{found['said']}"
    share = f"  helpers {found['share']:.0%}" if "share" in found else ""
    return (
        f"{head} {found['rate']:6.1f}/s  {found['cpu_ms']:6.1f} CPU ms  {found['wire_kb']:6.1f} kB on the wire  "
        f"device idle {found['idle']:.0%}{share}"
    )


def of(results: Results, side: str, key: str) -> list[float]:
    return [one[key] for one in results if one["side"] == side and key in one]


def spread(values: Sequence[float], form: str) -> str:
    """Median, least, and most of the rounds."""
    if not values:
        return ""
    middle = format(median(values), form)
    return middle if len(values) == 1 else f"{middle} ({format(min(values), form)} to {format(max(values), form)})"


def speed_ups(results: Results, side: str) -> list[float]:
    """Speed relative to one core, in each round."""
    rates = {(one["side"], one["round"]): one["rate"] for one in results if "rate" in one}
    return [
        rate / rates["alone", number]
        for (name, number), rate in rates.items()
        if name == side and ("alone", number) in rates
    ]


def measured(said: dict[str, str], results: Results) -> list[str]:
    heads = [
        "side",
        "images/s",
        "speed-up",
        "device idle",
        "CPU ms an image, all processes",
        "link, kB an image",
        "made by helpers",
    ]
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for side in dict.fromkeys(one["side"] for one in results):
        keys = (("rate", ".1f"), ("idle", ".0%"), ("cpu_ms", ".1f"), ("wire_kb", ".1f"), ("share", ".0%"))
        rate, *rest = (spread(of(results, side, key), form) for key, form in keys)
        errors = [one["error"] for one in results if one["side"] == side and "error" in one]
        cells = [said[side], rate or f"failed: {errors[0]}", spread(speed_ups(results, side), ".2f"), *rest]
        table.append(f"| {' | '.join(cells)} |")
    return table


def model_here(device_s: float, batch: int, results: Results) -> list[str]:
    """The model's speeds of a core with a helper, and of two cores, beside those measured."""
    cpu_s = median(of(results, "alone", "cpu_ms")) / 1000
    now = stages(device_s, cpu_s, 1, batch)
    steps = {"helpers": with_helpers(now, 1, receive_seconds(*CROP)), "larger": stages(device_s, cpu_s, 2, batch).step}
    told = []
    for side, step in steps.items():
        if rates := of(results, side, "rate"):
            told.append(
                f"{side} {batch / step:.1f}/s (measured {median(rates):.1f}/s, {median(rates) * step / batch - 1:+.0%})"
            )
    return [f"By the model of a step, from the CPU time of `alone`: {'; '.join(told)}."] if told else []


def price_table(results: Results) -> list[str]:
    """The account's machines with the samples measured here. Needs all sides."""
    cpu_s = {side: median(of(results, side, "cpu_ms")) / 1000 for side in ("alone", "ray data", "opencv")}
    names = [name for name, *_ in ways(1.0, cpu_s)]
    rows = [f"| GPU step, s | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    exact = step_of(MORE_WORK, cpu_s["alone"])
    for device_s in sorted((*STEPS_S, exact)):
        cells = [f"{speed_up:.2f}x, {more:+.0f} %" for _, speed_up, more in ways(device_s, cpu_s)]
        rows.append(f"| {f'**{device_s:.2f}**' if device_s == exact else f'{device_s:g}'} | {' | '.join(cells)} |")
    moves = "; ".join(
        f"{change:+.0%}: {next(iter(ways(exact * (1 + change), cpu_s)))[2]:+.0f} %" for change in (-0.2, -0.1, 0.1, 0.2)
    )
    return [
        f"Assumed: a vCPU is as fast as a core here, so a sample takes {1000 * cpu_s['alone']:.0f} ms of it; the GPU's step is "
        "open. Each cell: the speed-up, and the work per dollar.\n",
        *rows,
        f"\nThe account's {MORE_WORK}x needs the step in bold: {BATCH / exact:.0f} images/s on the GPU. Work per dollar with "
        f"helpers, if the step, or a vCPU's speed, is another by so much: {moves}.",
    ]


def page(facts: dict[str, Any], said: dict[str, str], device_s: float, batch: int, results: Results) -> str:
    lines = [f"# Ten blurs for each sample on a small GPU host, {facts['date']}\n"]
    lines += [f"- {key}: {value}" for key, value in facts.items() if key != "date"]
    lines += ["\nMedians of the rounds, with the least and the most. Speed-ups are formed within a round.\n"]
    lines += measured(said, results)
    diagnoses = sorted({one["diagnosis"] for one in results if "diagnosis" in one})
    lines += ["", *(f"`segtrain diagnose` of `one core`: {found}." for found in diagnoses)]
    if of(results, "alone", "rate"):
        lines += model_here(device_s, batch, results)
    lines += [
        "\n## The account's gain from its stated inputs\n",
        "| prices per hour | speed-up | gain | account | misses by |",
    ]
    lines += ["|---" * 5 + "|"]
    for prices, speed_up, gain, miss in stated():
        what = "work per dollar" if speed_up == MORE_WORK else "less cost of the same work"
        lines.append(f"| {prices} | {speed_up} | {gain:.1f} % {what} | {GAIN:g} % | {miss:+.1f} points |")
    if all(of(results, side, "cpu_ms") for side in ("alone", "ray data", "opencv")):
        lines += ["\n## The account's machines with these samples\n", *price_table(results)]
    return "\n".join(lines) + "\n"
