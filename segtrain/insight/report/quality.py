"""What the best evaluation of a run shows about its classes, in words: never predicted, often wrong
and taken for what, with few pixels, and what usually helps.
"""

from __future__ import annotations

from segtrain.base.units import percent
from segtrain.config import FEW_STEPS, read_parts
from segtrain.insight.report.classes import ious, matrix, names_of
from segtrain.insight.runs.folder import RunFolder

WEAK = 0.5  # IoU below which a class counts as often wrong
FEW = 0.01  # share of the pixels below which a class counts as small
MIXED = 0.1  # share of a class from which on it is taken for another
_SHOWN = 5


def judged(run: RunFolder) -> list[tuple[str, str]]:
    """(what, text) for the console and the report; empty without scores of classes."""
    scored = run.best
    values = ious(scored) if scored else []
    pixels = scored["scores"].get("pixels") if values else None
    if not isinstance(pixels, list) or len(pixels) != len(values):
        return []
    counts = matrix(scored)
    if counts and len(counts) != len(values):
        counts = None
    names, total = names_of(run, len(values)), sum(pixels) or 1
    lowest = sorted((iou, c) for c, iou in enumerate(values) if iou is not None and iou < WEAK)
    weak = [c for _, c in lowest if pixels[c]]
    never = [c for c in weak if not (sum(row[c] for row in counts) if counts else values[c])]
    small = [c for c in weak if pixels[c] < FEW * total]

    def listed(some: list[int], figures: list[str]) -> str:
        texts = [f"{names[c]} {figures[c]}".rstrip() for c in some[:_SHOWN]]
        return ", ".join(texts) + f", {len(some) - _SHOWN} more" * (len(some) > _SHOWN)

    taken = ["" if counts is None else _taken(c, counts[c], names) for c in range(len(values))]
    wrong = [f"{percent(iou)} {text}" for iou, text in zip(values, taken)]
    rows = [
        ("never predicted", listed(never, taken)),
        ("often wrong", listed([c for c in weak if c not in never], wrong)),
        ("few pixels", listed(small, [percent(count / total, 2) for count in pixels])),
        ("usually helps", "; ".join(_remedies(run, bool(never), bool(weak), bool(small)))),
    ]
    return [(what, text) for what, text in rows if text]


def _taken(c: int, row: list[int], names: list[str]) -> str:
    """``(61 % taken for building)``, if that is much."""
    most, other = max(((n, o) for o, n in enumerate(row) if o != c), default=(0, 0))
    share = most / max(1, sum(row))
    return f"({percent(share, 0)} taken for {names[other]})" * (share >= MIXED)


def _remedies(run: RunFolder, never: bool, weak: bool, small: bool) -> list[str]:
    """What usually helps, the first thing first, with settings that can be pasted."""
    texts = []
    own_loss = "criterion" in read_parts(run.folder)
    if never and not own_loss and run.setting("loss.class_weights") == "none":
        texts.append("weights for rare classes: loss.class_weights=auto")
    done, last = run.end.get("status") == "done", run.evals[-1]
    if few := done and never and last["step"] < FEW_STEPS:
        texts.append(
            f"longer training, as {last['step']} steps are few: "
            f"train.extend={FEW_STEPS - last['step']}st"
        )
    if weak:
        texts.append("a look at the worst images, whose labels are often wrong")
    if done and not few and len(run.evals) > 1 and run.best["step"] == last["step"]:
        epochs = max(1, round(last.get("epoch") or 1))
        texts.append(f"longer training, as the last score is the best: train.extend={epochs}ep")
    if small and not run.setting("data.class_balanced_crop_prob"):
        texts.append("crops around rare classes: data.class_balanced_crop_prob=0.3")
    terms = [] if own_loss else run.setting("loss.terms", [])
    if weak and [isinstance(term, dict) and term.get("name") for term in terms] == ["ce"]:
        texts.append("a loss that counts classes alike: 'loss.terms=[ce, dice]'")
    return texts
