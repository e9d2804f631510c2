"""Training images/s of segtrain and of other trainers on this machine, in one interleaved run.

    python bench/rivals_train.py --install all --envs /tmp/rivals            # once; see environments.py
    python bench/rivals_train.py --envs /tmp/rivals                          # rivals as their users start them: one process
    python bench/rivals_train.py --envs /tmp/rivals --ranks per-core         # rivals too with one process a core (torchrun)
    python bench/rivals_train.py --device cuda --amp                         # the loops alone, on a GPU; see loops/race.py

Same SMP model from scratch, global batch, crop, float32, pictures, cross-entropy with void; each rival with its own
loop, optimizer, logging and input pipeline at their defaults (rivals/*.py say which), in its own environment and
process. segtrain runs as
``segtrain train`` with its defaults but for scale and color jitter, which the others do not draw either.
Sides take turns: ours, A, B, ..., ours, A, ...; a ratio is formed within each round, and its median over rounds is
reported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import environments  # noqa: E402
import page  # noqa: E402
from environments import TRAINERS  # noqa: E402
from rivals import pictures, race  # noqa: E402

OURS = "segtrain"
SCRIPTS = {
    "torchvision": "torchvision_reference.py",
    "lightning": "lightning_smp.py",
    "mmengine": "mmengine_runner.py",
    "composer": "composer_trainer.py",
    "hf": "hf_trainer.py",
}


# Columns that have only the median of the rounds.
MEDIANS = {"cpu_s_per_image": ".3f", "first_step_s": ".1f", "start_cpu_s": ".1f", "foreign": ".2f"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--envs", type=Path, default=Path("/tmp/rivals"), help="folder of the rivals' environments"
    )
    parser.add_argument(
        "--install", default="", help="make environments, then stop: names, or 'all'"
    )
    parser.add_argument(
        "--base", default="", help="with --install: take torch and SMP from this interpreter"
    )
    parser.add_argument("--models", default="unet,deeplabv3plus")
    parser.add_argument("--rivals", default=",".join(TRAINERS), help="some of these; or 'none'")
    parser.add_argument(
        "--ranks",
        default="default",
        help="of a rival: default (one process), per-core, or a number",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=6, help="steps timed")
    parser.add_argument("--batch", type=int, default=8, help="global batch")
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument(
        "--workers", type=int, default=-1, help="loader processes of rivals; -1: their usual number"
    )
    parser.add_argument(
        "--data", default="", help="CamVid folder, or images/train + masks/train; empty: generated"
    )
    parser.add_argument(
        "--ours", default="", help="more settings for segtrain: 'key=value key=value'"
    )
    parser.add_argument(
        "--timeout", type=float, default=240.0, help="seconds that one start may take"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        help="the loops alone, on batches in the device's memory",
    )
    parser.add_argument("--amp", action="store_true", help="with --device: 16-bit arithmetic")
    parser.add_argument(
        "--tiny", action="store_true", help="with --device: a rehearsal, whose figures mean nothing"
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="with --device: start nothing after this time"
    )
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-rivals-train"
    )
    return parser.parse_args()


def command(
    side: str, args: argparse.Namespace, data: str, model: str, folder: Path
) -> tuple[list[str], Path]:
    """How a side is started, and the file in which its steps appear."""
    steps = args.warmup + args.steps
    if side == OURS:
        settings = {
            "out": folder / "run",
            "data.layout": "folders",
            "data.root": data,
            "data.classes": json.dumps([f"class{index}" for index in range(args.classes)]),
            "data.crop": json.dumps([args.crop, args.crop]),
            "data.scale": "[1.0, 1.0]",
            "data.jitter": "[0.0, 0.0, 0.0]",
            "model.arch": model,
            "model.encoder": "resnet18",
            "train.batch_size": args.batch,
            "train.duration": f"{steps}st",
            "train.device": "cpu",
            "log.every": 1,
        }
        items = [f"{key}={value}" for key, value in settings.items()] + args.ours.split()
        return [sys.executable, "-m", "segtrain", "train", *items], folder / "run" / "journal.jsonl"
    python, ranks = str(environments.python_of(args.envs, side)), rival_ranks(args)
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        if ranks > 1
        else []
    )
    marks = folder / "marks.jsonl"
    options = {
        "--data": data,
        "--model": model,
        "--batch": args.batch,
        "--crop": args.crop,
        "--classes": args.classes,
        "--steps": steps,
        "--workers": args.workers,
        "--marks": marks,
    }
    script = str(HERE / "rivals" / SCRIPTS[side])
    return [
        python,
        *launcher,
        script,
        *(str(part) for item in options.items() for part in item),
    ], marks


def rival_ranks(args: argparse.Namespace) -> int:
    if args.ranks == "default":
        return 1
    return len(os.sched_getaffinity(0)) if args.ranks == "per-core" else int(args.ranks)


def compete(args: argparse.Namespace, sides: list[str], data: str, work: Path) -> list[race.Result]:
    """All models, all rounds, sides in turns."""
    results: list[race.Result] = []
    for model in args.models.split(","):
        for number in range(1, args.rounds + 1):
            for side in sides:
                folder = work / f"{model}-{number}-{side}"
                line, marks = command(side, args, data, model, folder)
                result = race.run(
                    line,
                    folder,
                    marks,
                    side=side,
                    model=model,
                    number=number,
                    batch=args.batch,
                    warmup=args.warmup,
                    steps=args.steps,
                    timeout=args.timeout,
                )
                results.append(result)
                if result.ok:
                    shutil.rmtree(folder, ignore_errors=True)
                print(
                    f"{model:14} round {number}  {side:12} "
                    + (
                        f"{result.images_per_s:6.2f} img/s  {result.cpu_s_per_image:6.3f} CPU-s/img  "
                        f"first step {result.first_step_s:5.1f} s ({result.start_cpu_s:.1f} CPU-s)  others {result.foreign:.2f} cores"
                        if result.ok
                        else f"FAILED: {result.error} (output: {folder}/output.txt)"
                    ),
                    flush=True,
                )
    return results


def ratios(results: list[race.Result], model: str, value: str) -> dict[str, list[float]]:
    """{rival or 'best rival': ours / theirs, one for each round in which both ended well}.

    The best rival of a round has the most images a second, or the shortest start.
    """
    rounds: dict[int, dict[str, float]] = {}
    for r in results:
        if r.model == model and r.ok:
            rounds.setdefault(r.round, {})[r.side] = getattr(r, value)
    found: dict[str, list[float]] = {}
    for row in rounds.values():
        ours = row.pop(OURS, None)
        if ours is None or not row:
            continue
        best = max(row.values()) if value == "images_per_s" else min(row.values())
        for side, theirs in [*row.items(), ("best rival", best)]:
            found.setdefault(side, []).append(ours / theirs)
    return found


def table(results: list[race.Result], model: str, sides: list[str]) -> list[str]:
    speed, start = ratios(results, model, "images_per_s"), ratios(results, model, "first_step_s")
    lines = [
        f"## {model}, resnet18",
        "",
        "| side | img/s, median (each round) | segtrain / side, median (each round) | CPU-s an image | "
        "to the first step, s | segtrain / side | CPU-s to it | others, cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for side in [*sides, "best rival"]:
        rows = [r for r in results if r.model == model and r.side == side and r.ok]
        cost, first, start_cost, foreign = (
            page.middle((getattr(r, name) for r in rows), form) for name, form in MEDIANS.items()
        )
        rates = page.each_round((r.images_per_s for r in rows), ".2f")
        faster, sooner = (page.each_round(ratio.get(side, ()), ".2f") for ratio in (speed, start))
        lines.append(
            f"| {side} | {rates} | {faster} | {cost} | {first} | {sooner} | {start_cost} | {foreign} |"
        )
    failed = [
        f"- {r.side}, round {r.round}: {r.error}" for r in results if r.model == model and not r.ok
    ]
    return [*lines, "", *failed, *([""] if failed else [])]


def loops_alone(args: argparse.Namespace) -> int:
    """In this process: every library that this Python has. Writes the rows as they come."""
    from loops.race import race

    rows = ["| | |", "|---|---|"]
    facts = page.facts()

    def note(what: str, result: str) -> None:
        print(f"{what:70} {result}", flush=True)
        rows.append(f"| {what} | {result} |")
        page.save(
            f"rivals-{args.device}", args.out, f"Training loops on {args.device}", facts, rows
        )

    race(args.device, args.amp, args.tiny, args.rounds, time.monotonic() + 60 * args.minutes, note)
    return 0


def main() -> int:
    args = arguments()
    if args.install:
        for name in TRAINERS if args.install == "all" else args.install.split(","):
            environments.install(name, TRAINERS[name], args.envs, args.base)
        return 0
    if args.device:
        return loops_alone(args)
    rivals = [] if args.rivals == "none" else args.rivals.split(",")
    missing = [
        r for r in rivals if r not in TRAINERS or not environments.python_of(args.envs, r).exists()
    ]
    if missing:
        sys.exit(
            f"no environment for {', '.join(missing)}: run with --install {','.join(missing)} --envs {args.envs}"
        )
    sides = [OURS, *rivals]
    ranks = rival_ranks(args)
    kind = "" if args.ranks == "default" else f"-{ranks}-ranks"
    work = Path(tempfile.mkdtemp(prefix="rivals-"))
    what = pictures.make(work / "data", args.data, args.classes)
    data = str(work / "data") if (work / "data").exists() else str(Path(args.data).absolute())
    facts = page.facts(
        data=what,
        setting=f"global batch {args.batch}, crop {args.crop}x{args.crop}, float32, {args.rounds} rounds, "
        f"{args.steps} steps timed after {args.warmup}",
        rivals="one process, torch's default threads"
        if ranks == 1
        else f"torchrun, {ranks} ranks, 1 thread each",
        versions="; ".join(
            f"{name}: {environments.versions(environments.python_of(args.envs, name), TRAINERS[name].shown)}"
            for name in rivals
        ),
    )
    results = compete(args, sides, data, work)
    lines = [
        line
        for model in dict.fromkeys(r.model for r in results)
        for line in table(results, model, sides)
    ]
    rows = [asdict(result) for result in results]
    print(
        page.save(
            f"rivals-train{kind}",
            args.out,
            "Training speed next to other trainers",
            facts,
            lines,
            rows,
        )
    )
    if all(r.ok for r in results):
        shutil.rmtree(work)
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
