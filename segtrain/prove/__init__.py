"""`segtrain prove`: verifies the five guarantees on this machine, with the user's config and
data.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from segtrain.base.terminal import Say
from segtrain.config import Config, load_config
from segtrain.data.audit.audit import class_weights
from segtrain.errors import ConfigError, SegtrainError, one_line
from segtrain.parallel.spawn import visible_gpus
from segtrain.prove import counts, gradient, plant, resume
from segtrain.prove import exact as exactly
from segtrain.prove.ranks import on_ranks
from segtrain.prove.short import changed, shortened, smaller_images, survey
from segtrain.prove.table import FAIL, ProofRow, live, row, table
from segtrain.training.start.automatic import settled

PROMISES = (gradient.NAME, resume.NAME, counts.SCORES, counts.WORKERS, plant.NAME)


def parse_ranks(text: str) -> list[int]:
    """The world sizes in ``1,2,4``. Raises ConfigError."""
    try:
        ranks = [int(part) for part in text.split(",")]
    except ValueError:
        ranks = [0]
    if min(ranks) < 1:
        message = f"--ranks={text}: name numbers of ranks of at least 1, such as --ranks=1,2,4"
        raise ConfigError(message, code="invalid-ranks", found=text)
    return ranks


def prove(
    config_path: str | Path | None,
    overrides: list[str],
    ranks: list[int],
    device: str = "cpu",
    say: Say = print,
    exact: bool = False,
) -> int:
    """Verify the five guarantees. Print a line per comparison, then a table. Returns 1 if a
    comparison fails, else 0.

    ``ranks``: world sizes to compare. ``device``: cpu or cuda. ``exact``: also compare the
    weights of runs with parallel.exact. Everything runs in processes that this process starts, in a
    temporary folder. Raises SegtrainError if the config is invalid, the data set cannot be listed,
    or there is no such device.
    """
    config = load_config(config_path, overrides)
    here = config.model_copy(update={"train": config.train.model_copy(update={"device": device})})
    config = settled(here, download=False, quiet=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="segtrain-prove-") as scratch:
        rows, last = [], begin
        for proof_row in proofs(Path(scratch), config, sorted(set(ranks)), device, say, exact):
            now = time.perf_counter()
            say(live(proof_row, now - last))
            rows.append(proof_row)
            last = now
    say(f"\n{table(rows)}   ({time.perf_counter() - begin:.0f} s)")
    return 1 if any(proof_row.verdict == FAIL for proof_row in rows) else 0


def proofs(
    folder: Path,
    config: Config,
    worlds: list[int],
    device: str,
    say: Say,
    exact: bool = False,
) -> Iterator[ProofRow]:
    """The rows of all proofs. The data set is checked first: if it has faults, nothing else can be
    verified.

    Guarantees 4 and 5 concern the CPU's part of the work, so their proofs run on the CPU on any
    ``device``.
    """
    seen = on_ranks(folder, 1, survey, config, device)[0]
    weights = [float(w) for w in class_weights(seen.pixels, config.loss.class_weight_power)]
    gpus = 0 if device == "cpu" else max(1, visible_gpus())
    on_cpu = smaller_images(shortened(config, weights)[0], seen.size)
    short, remarks = shortened(config, weights, gpus, max(worlds))
    short = smaller_images(short, seen.size)
    sliced = exactly.exact_config(short, worlds) if exact else short
    say(
        f"segtrain prove  {config.name or 'defaults'}  #{config.hash}: {config.model.arch} on "
        f"{seen.name}, changed to"
    )
    say("\n".join(f"  {remark}" for remark in remarks))
    yield plant.prove_audit(seen)
    if seen.faults:
        for promise in PROMISES[:-1]:
            yield row(promise, "-", "the data set has faults: fix them first")
        return
    todo: list[tuple[str, Callable[[], Iterator[ProofRow]]]] = [
        (plant.NAME, lambda: plant.prove_planted(folder, changed(on_cpu, data__limit=0))),
        (counts.WORKERS, lambda: counts.prove_workers(folder, on_cpu, config)),
        (gradient.NAME, lambda: gradient.prove_gradient(folder, short, worlds)),
        *([(exactly.NAME, lambda: exactly.prove_exact(folder, sliced, worlds))] if exact else []),
        (resume.NAME, lambda: resume.prove_resume(folder, sliced, worlds)),
        (resume.NAME, lambda: resume.prove_extension(folder, short)),
        (counts.SCORES, lambda: counts.prove_evaluation(folder, short, worlds)),
        (counts.SCORES, lambda: counts.prove_patience(folder, short, worlds)),
    ]
    for promise, proof in todo:
        try:
            yield from proof()
        except SegtrainError as error:
            yield row(promise, "did not finish", one_line(error), holds=False)
