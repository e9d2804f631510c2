"""`segtrain prove` on this device, with the small network on generated scenes."""

from __future__ import annotations

import itertools

from gpu_stages.rig import Rig, config
from segtrain.prove import proofs
from segtrain.prove.table import FAIL, SKIPPED


def run(rig: Rig) -> None:
    # The small network of a rehearsal is too fast to be stopped within its steps, so the rehearsal
    # ends before that.
    settings = config(rig, "prove", "train.precision=auto", "data.check=full")
    found = proofs(rig.folder, settings, [1, 2], rig.device, print)
    for row in itertools.islice(found, 5 if rig.tiny else None):
        ok = None if row.verdict == SKIPPED else row.verdict != FAIL
        rig.note(
            f"{row.promise}: {row.compared}",
            f"{row.measured} {row.remark}".strip("- "),
            ok,
            row.bound,
        )
