"""Ten blurs for each sample on a small GPU host: helpers on Ray beside Ray Data, a larger host, and cheaper transforms.

    python bench/accounts_ray.py --rounds 2           # 6 minutes; writes bench/results/DATE-accounts-ray.md
    python bench/accounts_ray.py --sides alone,helpers --seconds 5

The model is an account of a job with a GPU host of 4 vCPUs and a host of 16 vCPUs that only preprocesses: ten Gaussian
blurs of 11x11 on images of 224x224, batches of 64, a ViT. Here both hosts are network namespaces of this machine, each
with one core, and the device is one that takes a fixed time for each step: the model sleeps, all the rest is real. The
sides take turns. It needs root, two cores, and an environment with the extra `ray`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402
from buckets import photos  # noqa: E402
from two_hosts import CORE, PYTHONPATH, TRAINS, TwoHosts, soon  # noqa: E402

from segtrain.base.cores import cores  # noqa: E402
from segtrain.insight.diagnose.judge import diagnose  # noqa: E402

BATCH, CROP = 64, (224, 224)
LEAST_STEPS = 3  # of a measurement
START_S = 120.0  # until the measurement of a side begins
BOTH = ",".join(CORE.values())


@dataclass(frozen=True)
class Side:
    """``transform``: of blurs.py. ``helps``: '' for one host, else who uses the core of the other
    one.
    """

    name: str
    title: str
    transform: str = "ten"
    cores: str = CORE[TRAINS]
    helps: str = ""


SIDES = [
    Side("alone", "one core"),
    Side("helpers", "one core, and a helper of `data.helpers=ray` on the other", helps="ours"),
    Side("larger", "two cores of one host", cores=BOTH),
    Side("ray data", "one core, and Ray Data on both", helps="ray data"),
    Side("opencv", "one core, the same ten blurs with OpenCV", "ten_by_opencv"),
    Side("one blur", "one core, one blur of the same sigma with OpenCV", "one"),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="least seconds of a measurement"
    )
    parser.add_argument(
        "--device-s", type=float, default=0.5, help="seconds of a step of the device"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="images of a step")
    parser.add_argument("--sides", default="", help="only these, such as 'alone,helpers'")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="without ending; default: bench/results/DATE-accounts-ray",
    )
    return parser.parse_args()


def command(
    side: Side, args: argparse.Namespace, data: Path, folder: Path
) -> tuple[list[str], Path]:
    """What feeds the device on the first host, and the file in which each step leaves a line."""
    if side.helps == "ray data":
        marks = folder / "marks.jsonl"
        return [
            str(HERE / "streamed.py"),
            str(data),
            str(marks),
            str(args.device_s),
            str(args.batch),
        ], marks
    request = {
        "root": str(data),
        "layout": "folders",
        "out": str(folder / "out"),
        "strategy": "single",
        "ranks": 1,
        "device": "cpu",
        "device_s": args.device_s,
        "batch": args.batch,
        "crop": CROP,
        "scale": (1, 1),
        "workers": len(side.cores.split(",")),
        "settings": [
            f"data.transforms={HERE / 'blurs.py'}:{side.transform}",
            *(["data.helpers=ray"] if side.helps else []),
        ],
    }
    return [str(HERE / "buckets/trained.py"), json.dumps(request)], folder / "out/journal.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    """The events so far; the last line may not be whole yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def steps(marks: Path, helped: bool) -> list[dict[str, Any]]:
    """The steps that count: with helpers, those after the first one while they work; without the
    first two.
    """
    events = lines(marks)
    since = min(
        (
            event["ts"]
            for event in events
            if event["event"] == "helpers" and event.get("what") == "working"
        ),
        default=None,
    )
    if helped and since is None:
        return []
    counted = [event for event in events if event["event"] == "step" and event["ts"] > (since or 0)]
    return counted[1:] if helped else counted[2:]


def measure(side: Side, args: argparse.Namespace, data: Path, folder: Path) -> dict[str, Any]:
    """One start of one side: images per second, and what it took."""
    folder.mkdir(parents=True)
    words, marks = command(side, args, data, folder)
    with TwoHosts() as hosts:
        if side.helps:
            hosts.start_ray(head_cores=int(side.helps == "ray data"))
        process = hosts.start(
            TRAINS, sys.executable, *words, log="run", cores=side.cores, RAY_ADDRESS=hosts.address
        )
        try:
            result = _window(hosts, process, marks, side, args)
        except (TimeoutError, RuntimeError) as error:
            output = (hosts.folder / "run.log").read_text(errors="replace")[-2000:]
            return {"error": f"{error}", "output": output}
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    result["idle"] = max(0.0, 1 - args.device_s * result["rate"] / args.batch)
    if side.helps == "ours":
        result["share"] = _share(lines(marks))
    elif not side.helps and side.name == "alone":
        result["diagnosis"] = _diagnosis(folder / "out")
    return result


def _window(
    hosts: TwoHosts,
    process: subprocess.Popen[bytes],
    marks: Path,
    side: Side,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Wait for the first step that counts, and then for enough of them."""

    def count() -> int:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}")
        return len(steps(marks, side.helps == "ours"))

    soon(lambda: count() > 0, START_S, "step")
    first, cpu, wire, begin = count(), hosts.cpu_s(), hosts.wire(), time.monotonic()
    enough = first + LEAST_STEPS
    soon(
        lambda: time.monotonic() - begin >= args.seconds and count() >= enough,
        START_S + args.seconds,
        "enough steps",
    )
    last = count()
    cpu, wire = hosts.cpu_s() - cpu, hosts.wire() - wire
    own = steps(marks, side.helps == "ours")
    images = (last - first) * args.batch
    return {
        "rate": images / (own[last - 1]["ts"] - own[first - 1]["ts"]),
        "images": images,
        "cpu_ms": 1000 * cpu / images,
        "wire_kb": wire / images / 1000,
    }


def _share(events: list[dict[str, Any]]) -> float:
    """The share of all samples of a run that helpers have made."""
    samples = next(event["samples"] for event in reversed(events) if event["event"] == "run_end")
    there = sum(samples["helpers"].values())
    return there / max(1, there + samples["local"])


def _diagnosis(run: Path) -> str:
    """What bounds a run, and what is proposed."""
    diagnosis = diagnose(run)
    first = diagnosis.proposed
    return f"bound by {diagnosis.bound}" + (
        f"; do: {'; or: '.join(choice.text for choice in first.fix.choices)}" if first else ""
    )


def rounds(args: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    data = work / photos.BUCKET / "photos"
    wanted = args.sides.split(",") if args.sides else [side.name for side in SIDES]
    sides = [side for side in SIDES if side.name in wanted]
    for number in range(args.rounds):
        # Another side comes first in each round.
        for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
            result = measure(side, args, data, work / f"{side.name.replace(' ', '-')}-{number}")
            yield {"side": side.name, "round": number + 1, **result}


def table(results: list[dict[str, Any]]) -> list[str]:
    """Medians of the rounds by side, and the diagnosis of the side ``alone``."""
    lines = [
        "| side | images/s | device idle | CPU ms per image | link, kB per image | made by helpers |",
        "|---" * 6 + "|",
    ]
    keys = {"rate": ".1f", "idle": ".0%", "cpu_ms": ".1f", "wire_kb": ".1f", "share": ".0%"}
    for side in SIDES:
        rows = [result for result in results if result["side"] == side.name]
        errors = [f"failed: {result['error']}" for result in rows if "error" in result]
        cells = [
            page.spread((row[key] for row in rows if key in row), form)
            for key, form in keys.items()
        ]
        if rows:
            lines.append(f"| {side.title} | {' | '.join([errors[0]] if errors else cells)} |")
    diagnoses = sorted({result["diagnosis"] for result in results if "diagnosis" in result})
    return [*lines, "", *(f"`segtrain diagnose` of `one core`: {text}." for text in diagnoses)]


def main() -> int:
    args = arguments()
    if cores() < 2 or os.geteuid():
        sys.exit("it needs root and two cores")
    setting = (
        f"crops of 224x224, batches of {args.batch}, a device of {args.device_s:g} s per step, {args.rounds} rounds of "
        f"at least {args.seconds:g} s for each side"
    )
    facts = page.facts(setting=setting)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["PYTHONPATH"] = PYTHONPATH
        facts["data"] = photos.make(Path(temporary), "photos", 128)
        for result in rounds(args, Path(temporary)):
            results.append(result)
            print(result, flush=True)
    title = "Ten blurs for each sample on a small GPU host"
    print(page.save("accounts-ray", args.out, title, facts, table(results), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
