"""Text of a diagnosis: a page for `segtrain diagnose`, one line for the console."""

from __future__ import annotations

import shlex
import textwrap
from itertools import chain, count
from pathlib import Path

from segtrain.base.units import rounded
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.diagnose.cores_rules import CROWD
from segtrain.insight.diagnose.verdict import HEALTHY, Diagnosis

WIDTH = 110
# A run that uses at least this share of its cores is as fast as they allow, even if other programs
# use a few.
BUSY = 0.85
WORTH = 1.25  # gain above which cheaper samples are mentioned


def page(run: Path, diagnosis: Diagnosis, earlier: str | None = None, shown: str = "") -> str:
    """Text: what bounds the run, each cause with its evidence and fix, and commands that try the
    first fix.

    ``earlier``: the line about an earlier run whose diagnosis predicted the speed of this one.
    ``shown``: the place from which the copy in ``run`` was fetched; then there are no commands,
    because the run trains elsewhere.
    """
    lines = [f"{shown or run}: {headline(diagnosis)}"]
    if "step_ms" in diagnosis.facts:
        lines.append("  " + _step(diagnosis))
    if earlier:
        lines.append(f"  {earlier}")
    for number, verdict in enumerate(diagnosis.verdicts, 1):
        lines += [
            "",
            (
                f"{number}. {verdict.cause}: {verdict.share:.0%} of the time ({verdict.confidence} "
                "confidence)"
            ),
        ]
        do = [
            ("or" if number else "do", choice.text)
            for number, choice in enumerate(verdict.fix.choices)
        ]
        gain = f"about {verdict.gain:.2f}x faster, predicted by the model of a step"
        for head, text in (
            ("why", verdict.evidence),
            *do,
            ("gain", gain if verdict.gain > 1.005 else "not predicted"),
        ):
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=f"   {head:<5}", subsequent_indent=" " * 8
            )
    lines += _remedies(diagnosis)
    return "\n".join(lines if shown else lines + _try(run, diagnosis))


def _remedies(diagnosis: Diagnosis) -> list[str]:
    """A table of ways to make the run faster, with the cost of the same work; empty if no prices
    are known.
    """
    remedies = diagnosis.facts.get("remedies")
    if not remedies:
        return []
    now = f"now: {remedies['machine']}, ${remedies['price']:g}/h"
    lines = ["", f"ways to more speed, the cheapest for the same work first ({now}):"]
    for option in remedies["ways"]:
        price = f"${option['price']:.4g}/h"
        speed = f"{'up to ' * option['most']}{option['gain']:.2f}x"
        lines += textwrap.wrap(
            f"{speed:>11}  {price:>9}  {100 * (option['cost'] - 1):+4.0f} % cost  {option['name']}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * 38,
        )
    return lines + ([f"  {remedies['note']}"] if remedies["note"] else [])


def _try(run: Path, diagnosis: Diagnosis) -> list[str]:
    """Commands that train with each choice of the first fix, and compare the runs.

    Empty if the fix is only advice, or if the run has no config.yaml.
    """
    first = diagnosis.proposed
    choices = [choice.words for choice in first.fix.choices if choice.settings] if first else []
    if not choices or not (run / "config.yaml").is_file():
        return []
    run = run.resolve() if run.name in ("", "..") else run
    names = (run.with_name(f"{run.name}-fixed{number}") for number in chain([""], count(2)))
    free = (name for name in names if not name.exists())
    lines = [""]
    for number, settings in enumerate(choices):
        again = str(next(free))
        train = ["segtrain", "train", str(run / "config.yaml"), *settings, f"out={again}"]
        lines.append(f"{'or' if number else 'try':<5} {shlex.join(train)}")
        lines.append(f"      {shlex.join(['segtrain', 'diagnose', str(run), '--against', again])}")
    return lines


def headline(diagnosis: Diagnosis) -> str:
    if diagnosis.bound == HEALTHY:
        return "bound by the device: nothing holds it up"
    if diagnosis.bound in CAUSES:
        return f"bound by {CAUSES[diagnosis.bound].words} ({diagnosis.bound})"
    unknown = "it waits for its samples, and its spans do not say why: segtrain bench data"
    return str(diagnosis.facts.get("why", unknown))


def line(diagnosis: Diagnosis) -> str:
    """The diagnosis in short, for the console: while a run waits for its samples, and at the end of
    a run.
    """
    if not diagnosis.verdicts:
        return headline(diagnosis)
    first = diagnosis.verdicts[0]
    gain = f", about {rounded(first.gain, 2)}x faster" if first.gain > 1.05 else ""
    return f"{headline(diagnosis)}: {first.evidence}\n          try {first.fix.texts}{gain}"


def closing(diagnosis: Diagnosis, run: Path) -> str:
    """``line`` for the end of a run. If cores are too few, a line about the speed: the run is not
    at fault then.
    """
    if diagnosis.bound != "too-few-cores":
        return line(diagnosis)
    cores, first = diagnosis.facts["cores"], diagnosis.verdicts[0]
    if diagnosis.facts["own_cores"] >= BUSY * cores:
        why = f", as fast as {'this core allows' if cores == 1 else f'these {cores} cores allow'}"
    else:
        why = f"; its threads wait for a core {first.share:.0%} of the time"
    more = (
        f"; cheaper samples would make it up to {rounded(first.gain, 2)}x faster"
        if first.gain > WORTH
        else ""
    )
    return (
        f"{rounded(diagnosis.facts['images_per_s'])} images/s{why}{more} (segtrain diagnose "
        f"{shlex.quote(str(run))})"
    )


def _step(diagnosis: Diagnosis) -> str:
    facts = diagnosis.facts
    parts = sorted(facts["phases"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{phase} {share:.0%}" for phase, share in parts if share >= 0.01)
    speed = f"{rounded(facts['images_per_s'], 4)} images/s"
    text = f"a step takes {rounded(facts['step_ms'], 4)} ms ({shares}), {speed}"
    others = facts.get("cores_of_others", 0.0)
    if others > CROWD:
        text += f"\n  other programs kept {others:.1f} cores busy meanwhile"
    bucket = facts.get("bucket", {})
    if bucket.get("retries"):
        text += (
            f"\n  the bucket failed {bucket['failures']}; retries took "
            f"{rounded(bucket['retry_s'])} s, and "
            f"the other requests {rounded(bucket['seconds'])} s"
        )
    if bucket.get("late"):
        text += (
            f"\n  the bucket answered {bucket['late']:,} of {bucket['requests']:,} requests "
            "so late "
            "that they were sent a second time"
        )
    if not facts["steady"]:
        text += "\n  the run is so short that these figures include its start"
    return text
