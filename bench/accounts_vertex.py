"""Training from a bucket beside training from a local disk, with a delay of 30 ms for each request, and the usual ways.

    python bench/accounts_vertex.py --quick                                      # one short round
    python bench/accounts_vertex.py --install --envs ENVS                        # once: webdataset, litdata, s3torchconnector
    python bench/accounts_vertex.py --envs ENVS --data /dev/shm/buckets --rounds 3

The model is an account of ResNet-50 on Vertex AI: 50,000 images, batches of 32 per GPU, 489 s per epoch on one GPU from
a local disk, 804 s from a mounted bucket, 133 s (DDP, 4 GPUs) from shards in a bucket.

*Cores to spare*: a device whose step takes as long as the account's GPU; the model sleeps, all the rest is the real
trainer. The seconds of an epoch follow from the time of a step. *Core-bound*: the loader alone, as fast as the cores
make samples, and its CPU time, without that of the server. Every side is a process of its own, and sides take turns.
Results go to bench/results; with --add, to an earlier file, as more rounds of it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402
from buckets import photos, sides, tables  # noqa: E402
from buckets.server import SlowStore, mounted, serving, why_not_mounted  # noqa: E402
from environments import PIPELINES, install  # noqa: E402

from segtrain.base.cores import cores  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    temporary = Path(tempfile.gettempdir())
    parser.add_argument(
        "--data", type=Path, default=temporary / "buckets", help="folder where data sets are made"
    )
    parser.add_argument(
        "--envs", type=Path, default=temporary / "rivals_data", help="folder of environments"
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="make the environments of the other libraries, then stop",
    )
    parser.add_argument(
        "--base", default="", help="with --install: take torch and the like from this interpreter"
    )
    parser.add_argument("--quick", action="store_true", help="one short round with few images")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--images", type=int, default=1024, help="photos in the data set")
    parser.add_argument("--steps", type=int, default=24, help="measured steps of a training run")
    parser.add_argument("--ranks", type=int, default=min(4, cores()), help="of ddp and fsdp")
    parser.add_argument(
        "--delay-ms", type=float, default=30.0, help="before each answer of the server"
    )
    parser.add_argument(
        "--late", type=float, default=0.0, help="share of the answers that come a second later"
    )
    parser.add_argument("--cases", default="spare,naive,bound", help="which parts to measure")
    parser.add_argument(
        "--names", default="", help="only these strategies, libraries, and kinds of images"
    )
    parser.add_argument(
        "--sources", default="", help="only these data, such as 'local;shards;shards, cold cache'"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="without ending; empty: bench/results/DATE-accounts-vertex",
    )
    parser.add_argument("--add", action="store_true", help="add the rounds to those of the file")
    args = parser.parse_args()
    if args.quick:
        args.images, args.steps = 512, 8
    return args


@contextlib.contextmanager
def _mount(store: SlowStore, work: Path) -> Iterator[tuple[str, str]]:
    """The mounted bucket, and why there is none. A new mount has nothing of an earlier side in its
    memory.
    """
    why = why_not_mounted()
    if why:
        yield "", why
        return
    with mounted(store, photos.BUCKET, work / "mount") as place:
        yield str(place), ""


def measure(args: argparse.Namespace, number: int, work: Path) -> Iterator[dict[str, Any]]:
    """The results of one round, side by side."""
    groups: dict[tuple[str, str], list[sides.Side]] = {}
    for side in sides.all_sides(args):
        named = side.name in (args.names or side.name).split(",") and side.source in (
            args.sources or side.source
        ).split(";")
        if side.case in args.cases.split(",") and named:
            groups.setdefault((side.case, side.name), []).append(side)
    # Sides that are compared run one after the other. Another one of them comes first in each
    # round.
    turns = [
        group[(number + k) % len(group)] for group in groups.values() for k in range(len(group))
    ]
    with serving(args.data, args.delay_ms / 1000, late=args.late) as store:
        os.environ.update(store.environment())
        for side in turns:
            with (
                _mount(store, work) if side.mounts else contextlib.nullcontext(("", "")) as (
                    place,
                    why,
                )
            ):
                before = store.stats()
                result = (
                    {"error": why} if why else sides.run(side, args, store.url, place, work / "run")
                )
                after = store.stats()
            result["server_cpu_s"] = after["cpu_s"] - before["cpu_s"]
            result["requests"] = after["requests"] - before["requests"]
            yield {
                "case": side.case,
                "name": side.name,
                "source": side.source,
                "round": number,
                **result,
            }


def main() -> int:
    args = arguments()
    if args.install:
        for name in sides.ENVIRONMENTS:
            install(name, PIPELINES[name], args.envs, args.base)
        return 0
    args.data.mkdir(parents=True, exist_ok=True)
    out = args.out or page.RESULTS / f"{datetime.date.today()}-accounts-vertex"
    saved = out.with_name(out.name + ".json")
    results = json.loads(saved.read_text())["results"] if args.add and saved.exists() else []
    done = max((result["round"] for result in results), default=0)
    data = [
        photos.make(args.data, "photos", args.images),
        photos.make(args.data, "streets", args.images // 16),
    ]
    late = f", {args.late:.1%} a second later" if args.late else ""
    facts = page.facts(
        data="; ".join(data),
        setting=f"{args.delay_ms:g} ms before each answer{late}, {args.ranks} ranks in ddp and fsdp, batches of "
        f"{sides.BATCH} per rank, 2 workers per rank, {args.steps} steps measured",
        versions=sides.versions(args.envs),
    )
    text = ""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        os.environ["SEGTRAIN_CACHE"] = str(work / "cache")
        for number in range(done + 1, done + args.rounds + 1):
            for result in measure(args, number, work):
                results.append(result)
                print(tables.line(result), flush=True)
                rows = tables.lines(results, args.ranks)
                text = page.save(
                    "accounts-vertex",
                    out,
                    "Training from a bucket beside a local disk",
                    facts,
                    rows,
                    results,
                )
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
