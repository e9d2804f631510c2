"""`segtrain prove`: are the five promises kept on this machine, with this config and this data?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from segtrain.config import Config, load_config
from segtrain.data.audit.audit import class_weights
from segtrain.errors import ConfigError, SegtrainError
from segtrain.prove import counts, gradient, plant, resume
from segtrain.prove.ranks import RankFailed, on_ranks
from segtrain.prove.short import changed, shortened, smaller_images, survey
from segtrain.prove.table import FAIL, ProofRow, failed, live, row, table

PROMISES = (gradient.NAME, resume.NAME, counts.SCORES, counts.WORKERS, plant.NAME)


def parse_ranks(text: str) -> list[int]:
    """``1,2,4`` as numbers. Raises ConfigError."""
    try:
        ranks = [int(part) for part in text.split(",")]
    except ValueError:
        ranks = [0]
    if min(ranks) < 1:
        raise ConfigError(f"--ranks {text}: give numbers of ranks from 1 on, as in --ranks 1,2,4")
    return ranks


def prove(
    config_path: str | Path | None, overrides: list[str], ranks: list[int], say: Callable[[str], None] = print
) -> int:
    """Run the five promises, print a line for each comparison and a table of all. Returns 1 if one fails, else 0.

    ``ranks``: world sizes to compare. Everything runs on CPU ranks that this process starts, in a folder that is removed.
    Raises SegtrainError where the config is wrong or the data set cannot be listed.
    """
    config = load_config(config_path, overrides)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="segtrain-prove-") as scratch:
        rows = [
            _told(found, seconds, say)
            for found, seconds in _timed(_rows(Path(scratch), config, sorted(set(ranks)), say))
        ]
    say(f"\n{table(rows)}   ({time.perf_counter() - begin:.0f} s)")
    return 1 if any(found.verdict == FAIL for found in rows) else 0


def _timed(rows: Iterator[ProofRow]) -> Iterator[tuple[ProofRow, float]]:
    last = time.perf_counter()
    for found in rows:
        now = time.perf_counter()
        yield found, now - last
        last = now


def _told(found: ProofRow, seconds: float, say: Callable[[str], None]) -> ProofRow:
    say(live(found, seconds) + (f"\n         {found.remark}" if found.verdict == FAIL else ""))
    return found


def _rows(folder: Path, config: Config, worlds: list[int], say: Callable[[str], None]) -> Iterator[ProofRow]:
    """Data first: nothing else can be judged on data with faults."""
    try:
        seen = on_ranks(folder, 1, survey, config)[0]
    except RankFailed as error:
        raise SegtrainError(str(error)) from None
    weights = [float(w) for w in class_weights(seen.pixels, config.loss.class_weight_power)]
    short, remarks = shortened(config, weights)
    short = smaller_images(short, seen.size)
    say(
        f"segtrain prove  {config.name or 'defaults'}  #{config.hash}: {config.model.arch} on {seen.name}, as the config says, but with"
    )
    say("\n".join(f"  {remark}" for remark in remarks))
    yield plant.prove_audit(seen)
    if seen.faults:
        for promise in PROMISES[:-1]:
            yield row(promise, "-", "the data set has faults: mend them first")
        return
    proofs: list[tuple[str, Callable[[], Iterator[ProofRow]]]] = [
        (plant.NAME, lambda: plant.prove_planted(folder, changed(short, data__limit=0))),
        (counts.WORKERS, lambda: counts.prove_workers(folder, short, config)),
        (gradient.NAME, lambda: gradient.prove_gradient(folder, short, worlds)),
        (resume.NAME, lambda: resume.prove_resume(folder, short, worlds)),
        (counts.SCORES, lambda: counts.prove_evaluation(folder, short, worlds)),
    ]
    for promise, proof in proofs:
        try:
            yield from proof()
        except (RankFailed, SegtrainError) as error:
            yield failed(promise, "could not be finished", error)
