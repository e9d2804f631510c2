"""The epoch of a research cluster in small: 1, 2, and 4 ranks of one job under a real Slurm on this machine.

    python bench/accounts_slurm.py --rounds 3      # writes bench/results/DATE-accounts-slurm.md

The model is an account of a cluster whose epoch took 60 s on one GPU and 15 to 20 s on four. Two cases: *device*, where
each rank has a device that takes a fixed time per step (it sleeps, so that it needs no core), and *cores*, where the
network runs on the cores of this machine. Each rank gets the same number of images per step. It needs root and the
Debian packages slurmctld, slurmd, slurm-client, and munge.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]

import page  # noqa: E402
from cluster_slurm import Cluster, slurm_cluster  # noqa: E402
from plants import pictures  # noqa: E402

from segtrain.insight.diagnose import diagnose  # noqa: E402

ACCOUNT = {1: "60 s", 2: "", 4: "15 to 20 s"}
IMAGES, BATCH, DEVICE_S = 512, 8, 0.2  # images of an epoch; images of each rank's step; seconds of a device's step
RANK = """
import plants
if {device}:
    plants.DEVICE_S = {device}
    plants.fixed_time_device()
from segtrain.cli import main
raise SystemExit(main({words!r}))
"""


def run(cluster: Cluster, data: Path, out: Path, ranks: int, device_s: float, steps: int) -> tuple[float, str]:
    """Seconds of an epoch of IMAGES, and what bounds the run."""
    net = "{stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}" if device_s else "{}"
    words = [
        "train", f"out={out}", "data.layout=folders", f"data.root={data}", "data.crop=[128,128]", "data.scale=[0.75,1.5]",
        f"train.batch_size={BATCH * ranks}", "train.device=cpu", f"train.duration={steps}st", "parallel.threads=1",
        f"model.options={net}", "data.workers=1", "eval.every=100000st", "checkpoint.every=100000st", "log.every=5",
        "log.tensorboard=false", "log.pictures=0",
    ]  # fmt: skip
    code = RANK.format(device=device_s, words=words)
    nodes = min(ranks, len(cluster.nodes))
    cluster.run(
        "srun", f"--nodes={nodes}", f"--ntasks={ranks}", "--overcommit", sys.executable, "-c", code,
        timeout=600, PYTHONPATH=f"{HERE}:{HERE.parent}", OMP_NUM_THREADS="1",
    )  # fmt: skip
    found = diagnose(out)
    return IMAGES / found.facts["images_per_s"], found.bound


def table(results: list[tuple[str, int, float, str]]) -> list[str]:
    """One row for each case and number of ranks. Ratios are formed within a round."""
    rows = ["| case | ranks | epoch, s | of one rank | bound by | account |", "|---" * 6 + "|"]
    for case in ("device", "cores"):
        ones = [seconds for found, ranks, seconds, _ in results if (found, ranks) == (case, 1)]
        for ranks in (1, 2, 4):
            own = [(seconds, bound) for found, count, seconds, bound in results if (found, count) == (case, ranks)]
            times, ratios = [one[0] for one in own], [one[0] / first for one, first in zip(own, ones)]
            spread = f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
            bounds = ", ".join(sorted({bound for _, bound in own}))
            rows.append(
                f"| {case} | {ranks} | {spread} | {statistics.median(ratios):.0%} | {bounds} | {ACCOUNT[ranks]} |"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    args = parser.parse_args()
    setting = (
        f"two nodes of a private Slurm on this machine, {BATCH} images per rank and step, {IMAGES} images in an epoch, "
        f"a device step of {DEVICE_S} s, {args.steps} steps for each run"
    )
    facts = page.facts(setting=setting)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        pictures(work / "data", 64)
        with slurm_cluster(work / "slurm") as cluster:
            for number in range(args.rounds):
                for case, device_s in (("device", DEVICE_S), ("cores", 0.0)):
                    for ranks in (1, 2, 4):
                        seconds, bound = run(
                            cluster, work / "data", work / f"{case}-{ranks}-{number}", ranks, device_s, args.steps
                        )
                        results.append((case, ranks, seconds, bound))
                        print(f"round {number + 1}  {case}  {ranks} ranks  {seconds:.1f} s  {bound}", flush=True)
    note = "Medians of the rounds, with the least and the most. The account had one and four GPUs.\n"
    print(
        page.save("accounts-slurm", None, "An epoch on 1, 2, and 4 ranks under Slurm", facts, [note, *table(results)])
    )


if __name__ == "__main__":
    main()
