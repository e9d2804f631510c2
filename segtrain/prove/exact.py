"""Guarantee 1 with parallel.exact: the same weights, to the bit, on any number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from segtrain.base.terminal import counted
from segtrain.config import Config
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.prove.ranks import RankFailed, on_ranks, train_here
from segtrain.prove.resume import final_tensors
from segtrain.prove.short import STEPS, changed
from segtrain.prove.table import ProofRow, row

NAME = "1 world size"


def exact_config(config: Config, worlds: list[int]) -> Config:
    """``config`` with a slice for each of the most ranks, of one image at least."""
    slices = 1 << (max(worlds) - 1).bit_length()
    images = max(config.train.batch_size, slices)
    return changed(config, parallel__exact=slices, train__batch_size=images)


def prove_exact(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare final weights, averages, moments, and scores of runs on each of ``worlds`` ranks."""
    first = ""
    for world in worlds:
        compared = f"run of {STEPS} steps with parallel.exact on {counted(world, 'rank')}"
        if config.parallel.exact % world:
            yield row(NAME, compared, "parallel.exact takes 1, 2, 4, 8, ... ranks")
            continue
        out = folder / f"exact-{world}"
        if code := max(on_ranks(folder, world, train_here, changed(config, out=str(out)))):
            raise RankFailed(f"a run with parallel.exact on {world} ranks exited with code {code}")
        digest = on_ranks(folder, 1, _digest, out)[0]
        first = first or digest
        yield row(NAME, compared, "", digest == first, f"weights and scores {digest}", first)


def _digest(cluster: Cluster, run: Path) -> str:
    """Hash of all tensors of the newest checkpoint, and of the last scores."""
    content = hashlib.sha256()
    for name, value in sorted(final_tensors(run).items()):
        raw = torch.as_tensor(value).contiguous().reshape(-1).view(torch.uint8)
        content.update(name.encode() + raw.numpy().tobytes())
    scores = [event["scores"] for event in read_journal(run) if event["event"] == "eval"]
    content.update(repr(scores[-1]).encode())
    return content.hexdigest()[:12]
