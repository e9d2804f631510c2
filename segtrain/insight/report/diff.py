"""Differences between runs: facts, figures, phase times, and classes, for the console."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from string import ascii_uppercase

from segtrain.base.terminal import columns, counted
from segtrain.base.units import duration, percent, short_seconds
from segtrain.config.mistakes import fields
from segtrain.errors import ConfigError, DataError
from segtrain.insight.diagnose import verify
from segtrain.insight.diagnose.verify import Verification
from segtrain.insight.diagnose.verify_words import sentences as verified
from segtrain.insight.report import classes, facts
from segtrain.insight.report.timeline import laps, means, speed, words
from segtrain.insight.runs.folder import RunFolder
from segtrain.observe.scores import LOSS, SHOWN, Score

NOTHING = "-"
# Settings that differ between any two runs and have no effect on the results.
_IDLE = {"out", "run folder"}


@dataclass(frozen=True)
class DiffRow:
    """A text per run. Of two runs, ``change`` from A to B is in words; ``better``: +1 if B is
    better, -1 if it is worse, 0 if neither is better.

    ``numbers``: the values of a figure; None: unknown.
    """

    what: str
    texts: tuple[str, ...]
    change: str = ""
    better: int = 0
    numbers: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Comparison:
    runs: Sequence[RunFolder]
    figures: Sequence[DiffRow]
    stages: Sequence[DiffRow]
    # the phase whose time differs most between two runs; None if steps cannot be compared
    moved: DiffRow | None
    classes: Sequence[DiffRow]
    config: Sequence[DiffRow]
    environment: Sequence[DiffRow]
    data: Sequence[DiffRow]
    # Predicted and measured gain, if one of two runs repeats the other with its proposed fix. None
    # if a run has no spans.
    verification: Verification | None

    @property
    def letters(self) -> str:
        return ascii_uppercase[: len(self.runs)]


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Raises ConfigError for more runs than letters."""
    if not 2 <= len(runs) <= len(ascii_uppercase):
        raise ConfigError(
            f"{len(runs)} runs cannot be compared: name 2 to {len(ascii_uppercase)}",
            code="too-many-runs",
            found=len(runs),
        )
    stages, moved = _stages([means(laps(run.events)) for run in runs])
    verification = None
    if len(runs) == 2 and runs[0].folder.resolve() != runs[1].folder.resolve():
        with contextlib.suppress(DataError):  # a run without spans, or without steps
            verification = verify.compare(*map(verify.compared, runs))
    return Comparison(
        runs,
        _figures(runs),
        stages,
        moved,
        _classes(runs),
        config=_by_page(differences([facts.settings(run.config) for run in runs])),
        environment=differences([facts.environment(run) for run in runs]),
        data=differences([facts.data(run) for run in runs]),
        verification=verification,
    )


def differences(facts_of_runs: Sequence[Mapping[str, str]]) -> list[DiffRow]:
    keys = dict.fromkeys(key for known in facts_of_runs for key in known if key not in _IDLE)
    rows = [DiffRow(key, tuple(known.get(key, NOTHING) for known in facts_of_runs)) for key in keys]
    return [row for row in rows if len({*row.texts}) > 1]


def _by_page(rows: list[DiffRow]) -> list[DiffRow]:
    """Settings in the order of docs/config.md."""
    return sorted(rows, key=lambda row: [*fields(), row.what].index(row.what))


def _figures(runs: Sequence[RunFolder]) -> list[DiffRow]:
    rows = [
        *(_score(score, runs) for score in dict.fromkeys([*SHOWN, LOSS, runs[0].best_by])),
        _plain("at step", [run.best.get("step") for run in runs]),
    ]
    paces = [speed(laps(run.events)) for run in runs]
    if all(paces):
        known = [pace for pace in paces if pace]
        rows += [
            _ratio(
                "images/s", [pace.images_per_s for pace in known], lambda v: f"{v:.3g}", more=True
            ),
            _ratio("time of a step", [pace.step_s for pace in known], short_seconds),
            _points("waiting for data", [pace.wait for pace in known], more=False),
            _ratio("cores busy", [p.cores for p in known], lambda v: f"{v:.2f}", judged=False),
        ]
    rows += [
        _ratio("time", [run.row["time"] for run in runs], duration),
        _ratio("CPU-s of training", [run.row["cpu_s"] for run in runs], lambda v: f"{v:,.0f}"),
        _plain("status", [run.row["status"] for run in runs]),
        _plain("steps done", [run.row["step"] for run in runs]),
    ]
    return [row for row in rows if {*row.texts} != {NOTHING}]


def _score(score: Score, runs: Sequence[RunFolder]) -> DiffRow:
    """A score of the best evaluations."""
    scores = [run.best.get("scores", {}) for run in runs]
    what = "best " * (score == runs[0].best_by) + score.words
    numbers = [values.get(score.key) for values in scores]
    if score.unit == "%":
        row = _points(what, numbers)
    else:
        row = _ratio(what, numbers, "{:.4g}".format, more=not score.lower)
    return replace(row, texts=tuple(map(score.percent, scores)))


def _plain(what: str, values: Sequence[object]) -> DiffRow:
    return DiffRow(what, tuple(NOTHING if value is None else str(value) for value in values))


def _points(
    what: str, values: Sequence[float | None], more: bool = True, digits: int = 2
) -> DiffRow:
    change, better = "", 0
    a, b = (*values, None)[:2] if len(values) == 2 else (None, None)
    if a is not None and b is not None:
        change = f"{100 * (b - a):+.{digits}f} points"
        # A share of time may vary by one percentage point from one day to the next; a score does
        # not.
        better = 0 if abs(b - a) < (5e-4 if more else 1e-2) else 1 if (b > a) == more else -1
    texts = tuple(percent(value, digits) for value in values)
    return DiffRow(what, texts, change, better, tuple(values))


def _ratio(
    what: str,
    values: Sequence[float | None],
    show: Callable[[float], str],
    more: bool = False,
    judged: bool = True,
) -> DiffRow:
    change, better = "", 0
    if len(values) == 2 and values[0] and values[1]:
        ratio = values[1] / values[0]
        change = f"{ratio:.2f}x"
        # Times of the same run differ by some percent from one day to the next.
        better = 0 if not judged or abs(ratio - 1) < 0.03 else 1 if (ratio > 1) == more else -1
    texts = tuple(NOTHING if value is None else show(value) for value in values)
    return DiffRow(what, texts, change, better, tuple(values))


def _stages(times: Sequence[Mapping[str, float]]) -> tuple[list[DiffRow], DiffRow | None]:
    """Rows with the times of all phases, and the row that differs most of two runs (None if steps
    cannot be compared).
    """
    names = dict.fromkeys(name for known in times for name in known)
    rows = {
        name: _ratio(words(name), [known.get(name) for known in times], short_seconds)
        for name in names
    }
    if not all(times):
        return list(rows.values()), None
    whole = _ratio("whole step, mean", [sum(known.values()) for known in times], short_seconds)
    a, b = times[0], times[-1]
    moved = max(rows, key=lambda name: abs(b.get(name, 0.0) - a.get(name, 0.0)))
    return [*rows.values(), whole], rows[moved]


def _classes(runs: Sequence[RunFolder]) -> list[DiffRow]:
    """IoU by class name, the largest change first. Classes that not all runs have come last."""
    tables = []
    for run in runs:
        values = classes.ious(run.best) if run.best else []
        tables.append(dict(zip(classes.names_of(run, len(values)), values)))
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [_points(name, [table.get(name) for table in tables], digits=1) for name in names]

    def order(row: DiffRow) -> float:
        known = [value for value in row.numbers if value is not None]
        return min(known) - max(known) if len(known) == len(runs) else 1.0

    return sorted(rows, key=order)


def sentences(comparison: Comparison) -> list[str]:
    best_by = comparison.runs[0].best_by
    best = f"best {best_by.words}"
    by_name = {row.what: row for row in comparison.figures}
    score, step = by_name.get(best), by_name.get("time of a step")
    two = len(comparison.runs) == 2
    order = ("lowest", 1) if best_by.lower else ("highest", -1)
    texts = _of_two(comparison, best, score) if two else _order(comparison, score, *order)
    protocol = [
        row.what.removeprefix("scored: ")
        for row in comparison.data
        if row.what.startswith("scored: ")
    ]
    if protocol and all(run.best for run in comparison.runs):
        texts.append(
            f"The evaluation protocols differ ({', '.join(protocol)}), so these scores cannot be "
            "compared."
        )
    texts += _speeds(comparison, step) if two else _order(comparison, step, "shortest", 1)
    counts = (
        (comparison.config, "setting", ""),
        (comparison.environment, "fact", " of the environment"),
        (comparison.data, "fact", " of the data"),
    )
    differing = [counted(len(rows), what) + suffix for rows, what, suffix in counts if rows]
    texts.append(
        f"They differ in {', '.join(differing)}."
        if differing
        else "Config, environment, and data are equal."
    )
    return texts


def _of_two(comparison: Comparison, best: str, score: DiffRow | None) -> list[str]:
    if score is None or not score.change:
        return []
    word = {1: "better than", -1: "worse than", 0: "the same as"}[score.better]
    a, b = score.texts
    texts = [f"B's {best} is {word} A's: {b} against {a} ({score.change})."]
    if _only_seeds(comparison):
        texts.append(
            "Only the seed differs: this is the noise between two runs, and one pair cannot show "
            "its size."
        )
    return texts


def _only_seeds(comparison: Comparison) -> bool:
    return [row.what for row in comparison.config if row.what != "name"] == ["train.seed"]


def _order(comparison: Comparison, row: DiffRow | None, first: str, sign: int) -> list[str]:
    """A sentence with a figure of all runs, in order, and their deviation if only seeds differ."""
    if row is None:
        return []
    known = [
        (sign * number, letter, text)
        for number, letter, text in zip(row.numbers, comparison.letters, row.texts)
        if number is not None
    ]
    texts = [f"{letter} {text}" for _, letter, text in sorted(known)]
    order = (
        [f"{row.what[0].upper()}{row.what[1:]}, {first} first: {', '.join(texts)}."]
        if known
        else []
    )
    if len(known) > 1 and sign < 0 and _only_seeds(comparison):
        numbers = [-number for number, *_ in known]
        order.append(
            f"Only the seed differs: the mean is {percent(mean(numbers), 2)}, the standard "
            f"deviation {100 * stdev(numbers):.2f} points."
        )
    return order


def _speeds(comparison: Comparison, step: DiffRow | None) -> list[str]:
    texts = []
    if step is not None and step.change:
        a, b = step.texts
        texts.append(f"A step of B takes {b}, of A {a} ({step.change}).")
        if (moved := comparison.moved) is not None and step.better:
            a, b = moved.texts
            texts.append(f"Most of the difference is in: {moved.what} ({a} in A, {b} in B).")
    if comparison.verification is not None:
        swapped = comparison.verification.swapped
        texts += verified(comparison.verification, *("BA" if swapped else "AB"))
    return texts


CLASSES = 24  # most classes in the table for the console


def names(runs: Sequence[RunFolder]) -> list[str]:
    """The names of the runs, of their folders if names are equal, or else their paths."""
    choices = (
        [run.name for run in runs],
        [run.folder.absolute().name for run in runs],
        [str(run.folder) for run in runs],
    )
    return next((some for some in choices if len({*some}) == len(runs)), choices[-1])


def console(comparison: Comparison) -> str:
    """A short table: figures, stages, what differs, the classes that changed most."""
    lines = [*sentences(comparison), ""]
    letters = list(comparison.letters)
    change = "B to A" * (len(letters) == 2)
    titles = [f"{letter} {name}" for letter, name in zip(letters, names(comparison.runs))]
    lines += _aligned(("", *titles, change), comparison.figures)
    for title, rows in (
        ("stage times", comparison.stages),
        ("config", comparison.config),
        ("environment", comparison.environment),
        ("data", comparison.data),
        ("IoU by class", comparison.classes[:CLASSES]),
    ):
        if rows:
            lines += ["", *_aligned((title, *letters, ""), rows)]
    if len(comparison.classes) > CLASSES:
        lines.append(
            f"and {len(comparison.classes) - CLASSES} more classes, which changed less: diff "
            "--page PAGE.html shows all"
        )
    return "\n".join(lines)


def _aligned(head: Sequence[str], rows: Sequence[DiffRow]) -> list[str]:
    return columns([head, *((row.what, *map(_clip, row.texts), row.change) for row in rows)])


def _clip(text: str, most: int = 44) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
