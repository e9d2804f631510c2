"""Text of a verified prediction: a page for `segtrain diagnose A --against B`, and sentences for `segtrain diff`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from segtrain.base.terminal import columns
from segtrain.base.units import rounded
from segtrain.insight.diagnose.differences import EXACT, MORE, OTHER, WORDS, shown
from segtrain.insight.diagnose.reasons import TimeShare, ms_text, short_runs
from segtrain.insight.diagnose.verdict import HEALTHY
from segtrain.insight.diagnose.verify import HELD, Verification
from segtrain.insight.diagnose.words import WIDTH, headline

NO_REASON = "the figures do not say why"


def page(found: Verification) -> str:
    """Text: whether the prediction held and if not why, the two runs, the fix, the gain, and the parts of a step."""
    before, after = found.before, found.after
    lines = [f"{after.shown} after {before.shown}: {outcome(found)}", ""]
    width = max(len(before.shown), len(after.shown))
    for word, side in (("before", before), ("after", after)):
        lines.append(f"  {word:<8} {side.shown:<{width}}  {rounded(side.rate, 4):>8} images/s  {headline(side.found)}")
    parts = [("fix", _fix(found)), ("changed", settings(found)), ("gain", gain(found))]
    parts += [("why", text) for text in why(found)]
    if found.swapped:
        reason = "it has the fix" if found.fit in (EXACT, MORE) else "it began later"
        parts.append(("order", f"{after.shown} was named first, but is taken as the run after the fix: {reason}"))
    parts += [("note", text) for text in notes(found)]
    for first in after.found.verdicts[:1]:
        more = f", about {first.gain:.2f}x faster again" if first.gain > 1.05 else ""
        parts.append(("next", f"{first.cause}: {first.fix.texts}{more}"))
    paragraph = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 11, break_on_hyphens=False, break_long_words=False)
    for word, text in parts:
        paragraph.initial_indent = f"  {word:<8} "
        lines += paragraph.wrap(text)
    lines += _table("ms of a step", found.phases) + _table("ms of a sample", found.stages)
    return "\n".join(lines)


def outcome(found: Verification) -> str:
    """The outcome of the prediction, in one clause."""
    if found.apart:
        return "not comparable"
    if found.before.first is None:
        return "nothing was proposed"
    if found.predicted is None:
        return "no gain was predicted"
    if found.fit == OTHER:
        return "this does not test the prediction"
    return "the prediction held" if found.held else "the prediction did not hold"


def sentences(found: Verification, before: str = "A", after: str = "B") -> list[str]:
    """Sentences for a page about more than speed, which calls the two runs ``before`` and ``after``."""
    if found.before.first is None and found.after.first is None and not found.apart:
        return ["Nothing but the device limits either of them."] if found.after.found.bound == HEALTHY else []
    said = [f"{before} was {headline(found.before.found)}; {after} is {headline(found.after.found)}."]
    if found.apart:
        return [*said, _sentence(f"their speeds cannot be compared: {'; '.join(found.apart)}")]
    if found.before.first is not None:
        known = found.before.evidence.config and found.after.evidence.config and found.fit != WORDS
        said.append(f"Proposed for {before}: {_fix(found)}; {after}{' has' if known else ':'} {settings(found)}.")
        said.append(f"In images/s of steady windows: {gain(found)}.")
    return said + [_sentence(text) for text in (*why(found), *notes(found))]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def gain(found: Verification) -> str:
    measured = f"measured {found.measured:.2f}x"
    if found.apart:
        return f"{measured}, but the work differs: {'; '.join(found.apart)}"
    if found.before.first is None:
        return f"{measured} the speed"
    if found.predicted is None:
        return f"no gain was predicted, {measured}"
    both = f"predicted {found.predicted:.2f}x, {measured}"
    if found.held is None or found.off is None:
        untried = "its cause did not become smaller" if found.fit == WORDS else "the prediction was for another change"
        return f"{both}; but {untried}"
    off = f"{abs(found.off):.0%} too {'high' if found.off > 0 else 'low'}"
    return f"{both}: {off}, the prediction {'held' if found.held else 'did not hold'} (within {HELD:.0%})"


def _fix(found: Verification) -> str:
    """The choice that was applied; all choices where none was."""
    first = found.before.first
    if first is None or found.fix is None:
        return "none was proposed"
    return found.fix.text if found.fit in (EXACT, MORE) else first.fix.texts


def settings(found: Verification) -> str:
    """What was changed, compared with what was proposed."""
    fix = [change for change in found.changes if change.cure]
    others = [change for change in found.changes if not change.cure]
    too = f": {', '.join(change.text for change in others)}" if others else ""
    fixed = ", ".join(change.text for change in fix)
    if not (found.before.evidence.config and found.after.evidence.config):
        return "not known: one of the runs has no config.yaml"
    if found.before.first is None or found.fit == WORDS:
        advice = "the fix is not a setting, so no config shows whether it was applied; " if found.before.first else ""
        return advice + (f"these settings differ{too}" if others else "no setting that matters for speed differs")
    if found.fit == EXACT:
        return f"the fix and nothing else that matters for speed: {fixed}"
    if found.fit == MORE:
        return f"the fix ({fixed}) and more{too}"
    kept = [f"{c.key} is {shown(c.after)} and not {shown(c.proposed)}" for c in fix if not c.as_proposed]
    return f"not the fix: {', '.join(kept) or 'nothing was changed'}" + (
        f"; these differ as well{too}" if others else ""
    )


def why(found: Verification) -> Sequence[str]:
    """The reasons, if the prediction did not hold, or if there was no prediction but the speeds differ; else empty."""
    alone = found.predicted is None and not found.apart and abs(found.measured - 1) > HELD
    return found.reasons or (NO_REASON,) if found.held is False or alone else ()


def notes(found: Verification) -> list[str]:
    """What to know about the figures even where the prediction held."""
    if why(found):  # The reasons already contain these notes.
        return []
    said = [f"{key} differs: {was} before, {now} after" for key, (was, now) in found.environment.items()]
    if "ranks" in found.environment:
        said.append("images/s are those of all ranks together")
    return said + short_runs(found.before.found, found.after.found)


def _table(title: str, terms: Sequence[TimeShare]) -> list[str]:
    if not terms:
        return []
    whole = TimeShare("all", sum(term.before for term in terms), sum(term.after for term in terms))
    rows = [[f"  {title:<16}", "   before", "    after"]]
    rows += [[f"    {term.name}", ms_text(term.before), ms_text(term.after)] for term in (*terms, whole)]
    return ["", *columns(rows, right=(1, 2))]
