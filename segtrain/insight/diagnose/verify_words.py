"""Text of a verified prediction: a page for `segtrain diagnose A --against B`, and sentences for
`segtrain diff`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from segtrain.base.terminal import columns
from segtrain.base.units import rounded
from segtrain.insight.diagnose.differences import EXACT, MORE, OTHER, WORDS, shown
from segtrain.insight.diagnose.reasons import TimeShare, differs, ms_text, short_runs
from segtrain.insight.diagnose.verdict import HEALTHY
from segtrain.insight.diagnose.verify import HELD, Verification
from segtrain.insight.diagnose.words import WIDTH, headline

NO_REASON = "the figures do not say why"


def page(pair: Verification) -> str:
    """Text: whether the prediction held and if not why, the two runs, the fix, the gain, and the
    parts of a step.
    """
    before, after = pair.before, pair.after
    lines = [f"{after.shown} after {before.shown}: {outcome(pair)}", ""]
    width = max(len(before.shown), len(after.shown))
    for word, run in (("before", before), ("after", after)):
        lines.append(
            f"  {word:<8} {run.shown:<{width}}  {rounded(run.rate, 4):>8} images/s  "
            f"{headline(run.diagnosis)}"
        )
    parts = [("fix", _fix(pair)), ("changed", settings(pair)), ("gain", gain(pair))]
    parts += [("why", text) for text in why(pair)]
    if pair.swapped:
        reason = "it has the fix" if pair.fit in (EXACT, MORE) else "it began later"
        parts.append(
            (
                "order",
                f"{after.shown} was named first, but is taken as the run after the fix: {reason}",
            )
        )
    parts += [("note", text) for text in notes(pair)]
    for first in after.diagnosis.verdicts[:1]:
        more = f", about {first.gain:.2f}x faster again" if first.gain > 1.05 else ""
        parts.append(("next", f"{first.cause}: {first.fix.texts}{more}"))
    paragraph = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * 11, break_on_hyphens=False, break_long_words=False
    )
    for word, text in parts:
        paragraph.initial_indent = f"  {word:<8} "
        lines += paragraph.wrap(text)
    lines += _table("ms of a step", pair.phases) + _table("ms of a sample", pair.stages)
    return "\n".join(lines)


def outcome(pair: Verification) -> str:
    """The outcome of the prediction, in one clause."""
    if pair.incomparable:
        return "not comparable"
    if pair.before.first is None:
        return "nothing was proposed"
    if pair.predicted is None:
        return "no gain was predicted"
    if pair.fit == OTHER:
        return "this does not test the prediction"
    return "the prediction held" if pair.held else "the prediction did not hold"


def sentences(pair: Verification, before: str = "A", after: str = "B") -> list[str]:
    """Sentences for a page about more than speed, which calls the two runs ``before`` and
    ``after``.
    """
    if pair.before.first is None and pair.after.first is None and not pair.incomparable:
        return (
            ["Nothing but the device limits either of them."]
            if pair.after.diagnosis.bound == HEALTHY
            else []
        )
    texts = [
        (
            f"{before} was {headline(pair.before.diagnosis)}; {after} is "
            f"{headline(pair.after.diagnosis)}."
        )
    ]
    if pair.incomparable:
        return [
            *texts,
            _sentence(f"their speeds cannot be compared: {'; '.join(pair.incomparable)}"),
        ]
    if pair.before.first is not None:
        has_configs = (
            pair.before.evidence.config and pair.after.evidence.config and pair.fit != WORDS
        )
        texts.append(
            f"Proposed for {before}: {_fix(pair)}; {after}{' has' if has_configs else ':'} "
            f"{settings(pair)}."
        )
        texts.append(f"In images/s of steady windows: {gain(pair)}.")
    return texts + [_sentence(text) for text in (*why(pair), *notes(pair))]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def gain(pair: Verification) -> str:
    measured = f"measured {pair.measured:.2f}x"
    if pair.incomparable:
        return f"{measured}, but the work differs: {'; '.join(pair.incomparable)}"
    if pair.before.first is None:
        return f"{measured} the speed"
    if pair.predicted is None:
        return f"no gain was predicted, {measured}"
    both = f"predicted {pair.predicted:.2f}x, {measured}"
    if pair.held is None or pair.off is None:
        untried = (
            "its cause did not become smaller"
            if pair.fit == WORDS
            else "the prediction was for another change"
        )
        return f"{both}; but {untried}"
    off = f"{abs(pair.off):.0%} too {'high' if pair.off > 0 else 'low'}"
    return (
        f"{both}: {off}, the prediction {'held' if pair.held else 'did not hold'} (within "
        f"{HELD:.0%})"
    )


def _fix(pair: Verification) -> str:
    """The choice that was applied; all choices where none was."""
    first = pair.before.first
    if first is None or pair.fix is None:
        return "none was proposed"
    return pair.fix.text if pair.fit in (EXACT, MORE) else first.fix.texts


def settings(pair: Verification) -> str:
    """What was changed, compared with what was proposed."""
    fix = [change for change in pair.changes if change.cure]
    others = [change for change in pair.changes if not change.cure]
    too = f": {', '.join(change.text for change in others)}" if others else ""
    fixed = ", ".join(change.text for change in fix)
    if not (pair.before.evidence.config and pair.after.evidence.config):
        return "not known: one of the runs has no config.yaml"
    if pair.before.first is None or pair.fit == WORDS:
        advice = (
            "the fix is not a setting, so no config shows whether it was applied; "
            if pair.before.first
            else ""
        )
        return advice + (
            f"these settings differ{too}" if others else "no setting that matters for speed differs"
        )
    if pair.fit == EXACT:
        return f"the fix and nothing else that matters for speed: {fixed}"
    if pair.fit == MORE:
        return f"the fix ({fixed}) and more{too}"
    differing = [
        f"{c.key} is {shown(c.after)} and not {shown(c.proposed)}" for c in fix if not c.as_proposed
    ]
    return f"not the fix: {', '.join(differing) or 'nothing was changed'}" + (
        f"; these differ as well{too}" if others else ""
    )


def why(pair: Verification) -> Sequence[str]:
    """The reasons, if the prediction did not hold, or if there was no prediction but the speeds
    differ; else empty.
    """
    alone = pair.predicted is None and not pair.incomparable and abs(pair.measured - 1) > HELD
    return pair.reasons or (NO_REASON,) if pair.held is False or alone else ()


def notes(pair: Verification) -> list[str]:
    """What to know about the figures even where the prediction held."""
    if why(pair):  # The reasons already contain these notes.
        return []
    texts = differs(pair.environment)
    if "ranks" in pair.environment:
        texts.append("images/s are those of all ranks together")
    return texts + short_runs(pair.before.diagnosis, pair.after.diagnosis)


def _table(title: str, terms: Sequence[TimeShare]) -> list[str]:
    if not terms:
        return []
    whole = TimeShare("all", sum(term.before for term in terms), sum(term.after for term in terms))
    rows = [[f"  {title:<16}", "   before", "    after"]]
    rows += [
        [f"    {term.name}", ms_text(term.before), ms_text(term.after)] for term in (*terms, whole)
    ]
    return ["", *columns(rows, right=(1, 2))]
