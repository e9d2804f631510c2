"""The page of `segtrain data check`, one HTML file: samples with their masks, class balance, sizes,
faults, and warnings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image

from segtrain.base.terminal import counted
from segtrain.base.units import percent
from segtrain.bucket.faults import RequestError
from segtrain.config.paste import command
from segtrain.data.audit.check import Checked
from segtrain.data.audit.statistics import AuditReport, kinds_of
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import relative
from segtrain.data.labels.space import LabelSpace, is_background
from segtrain.errors import DataError
from segtrain.insight.report import gallery, html
from segtrain.insight.report.html import bars, copied, details, esc, thinned
from segtrain.observe.pictures import WRONG, fit

_PICTURES = 24  # of all splits together
_SIDE = 480  # pixels of the longer side of a picture
_MOST_BYTES = 40_000  # of a picture
# Width in pixels and JPEG quality, tried in this order until a picture is small enough.
_FORMS = ((480, 82), (400, 65), (240, 50), (120, 40))
_SIZES = 12
_FAULTS = 1000  # of a split, that are listed


def render(checked: Checked) -> str:
    """HTML of the page. It reads the images and masks that it shows, and nothing else."""
    reports = checked.reports
    count = max(1, _PICTURES // len(reports))
    audited = [checked.audited[report.split] for report in reports]
    samples = "".join(_samples(report, part, count) for report, part in zip(reports, audited))
    sizes = "".join(map(_sizes, reports))
    sections = [
        ("", "", f"<h1>{esc(reports[0].name)}</h1>{_verdict(checked)}"),
        ("samples", "Samples", _legend(audited[0].labels) + samples),
        ("classes", "Class balance", "".join(map(_balance, reports))),
        ("sizes", "Sizes of images", f'<div class="side">{sizes}</div>'),
        ("faults", "Faults and warnings", "".join(map(_problems, reports)) or "<p>None.</p>"),
        ("shared", "Images in two splits", "".join(_shared(checked))),
    ]
    return html.page(f"{reports[0].name}: data check", sections, {})


def _verdict(checked: Checked) -> str:
    """Faults and warnings, the splits, and the settings to paste."""
    faults = counted(sum(report.fault_count for report in checked.reports), "fault")
    warnings = counted(sum(report.warning_count for report in checked.reports), "warning")
    mood, then = ("bad", "correct the faults") if checked.failed else ("good", "ready to train")
    tiles = [("layout", str(checked.data.layout), "detected" * checked.detected)]
    notes: list[str] = []
    for report in checked.reports:
        drawn = report.sample
        remark = f"a sample of {drawn.total:,} images" if drawn else "images"
        tiles.append((report.split, f"{report.images:,}", remark))
        notes += [*report.notes, *([f"{report.split}: {drawn.text()}"] if drawn else [])]
    return (
        f'<p class="headline {mood}">{faults}, {warnings}: {then}</p>{html.tiles(tiles)}'
        f'<pre class="words wrapped">{esc(checked.config())}</pre>'
        f"{copied(checked.command) if checked.command else ''}"
        f"{''.join(f'<p class=quiet>{esc(note)}</p>' for note in notes)}"
        + details("as text", f'<pre class="words">{esc(checked.text())}</pre>')
    )


def _legend(labels: LabelSpace) -> str:
    """The colors of the classes; a background has none, see ``LabelSpace.overlay``."""
    colors = [
        *zip(labels.names, labels.palette),
        ("void, or no image", (0, 0, 0)),
        ("unknown id or color", WRONG),
    ]
    tinted = colors[is_background(labels.names, 0) :]
    return html.key([(name, f"#{bytes(color).hex()}") for name, color in tinted])


def _samples(report: AuditReport, dataset: Dataset, count: int) -> str:
    """At most ``count`` samples: faulty ones, those of warnings and rare classes, then others."""
    captions: dict[int, list[str]] = defaultdict(list)
    faulty = [("fault", index) for index in thinned(report.bad.tolist(), max(1, count // 2))]
    others = [("", index) for index in thinned(range(len(dataset)), count)]
    for text, index in (*faulty, *report.examples, *others):
        if index in captions or len(captions) < count:
            captions[index].append(text)
    figures = "".join(_figure(dataset, index, texts) for index, texts in captions.items())
    return f'<h3>{esc(report.split)}</h3><div class="grid">{figures}</div>'


def _figure(dataset: Dataset, index: int, texts: Sequence[str]) -> str:
    """A picture of an image with the classes of its mask over it, and what is wrong with them."""
    problems: list[str] = []
    picture = _drawn(dataset, index, problems)
    name = relative(dataset.entries[index].image, dataset.root)
    content = "<p class=blank>cannot be read</p>"
    if picture and (form := gallery.fitted(picture, _FORMS, _MOST_BYTES)):
        content = gallery.image(*form, name)
    remarks = [f"<div>{esc(text)}</div>" for text in texts if text]
    remarks += [f"<div class=bad>{esc(problem)}</div>" for problem in dict.fromkeys(problems)]
    caption = f"<figcaption><b>{esc(name)}</b>{''.join(remarks)}</figcaption>"
    return f'<figure class="picture">{content}{caption}</figure>'


def _drawn(dataset: Dataset, index: int, problems: list[str]) -> Image.Image | None:
    """A small picture of an image with the classes of its mask over it, or of one of both if the
    other cannot be read. Adds what is wrong with them to ``problems``.
    """

    def read(make: Callable[[], np.ndarray]) -> np.ndarray | None:
        try:
            return make()
        except RequestError:
            raise
        except DataError as error:
            problems.append(str(error))
            return None

    labels = dataset.labels
    image = read(lambda: dataset.read_image(index))
    mask = read(lambda: dataset.read_mask(index))
    if mask is None:
        mask = read(lambda: dataset.read_mask(index, strict=False))
    if image is None:
        if mask is None:
            return None
        image = np.zeros((*mask.shape, 3), np.uint8)
    scale = _SIDE / max(image.shape)
    height, width = (max(1, round(scale * side)) for side in image.shape[:2])
    picture = fit(image, width, height)
    if mask is not None and mask.shape != image.shape[:2]:
        problems.append(str(dataset.other_size(index, image.shape[:2], mask.shape)))
    elif mask is not None:
        ids = fit(mask, width, height, labels=True)
        picture = labels.overlay(picture, ids)
        picture[ids == labels.unknown] = WRONG
    return Image.fromarray(picture)


def _bars(
    caption: str, head: tuple[str, str, str], counts: Sequence[tuple[str, int]], whole: int
) -> str:
    longest = max((count for _, count in counts), default=0) or 1
    rows = [
        (name, percent(count / whole, 2), [(count / longest, "")], f"{count:,}", "")
        for name, count in counts
    ]
    return bars(caption, head, rows)


def _balance(report: AuditReport) -> str:
    order = np.argsort(-report.pixels, kind="stable")
    total = max(1, int(report.pixels.sum()) + report.void)
    valid = report.images - len(report.bad) or report.images
    charts = ""
    for what, counts, whole, note in (
        ("pixels", report.pixels, total, f"; {percent(report.void / total)} are void"),
        ("images", report.images_with, valid, ""),
    ):
        caption = f"<b>{esc(report.split)}</b> share of {what}{note}"
        rows = [(report.classes[index], int(counts[index])) for index in order]
        charts += _bars(caption, ("class", "share", what), rows, whole)
    return f'<div class="side">{charts}</div>'


def _sizes(report: AuditReport) -> str:
    # Spaces at which a browser does not break the line.
    sizes = [(f"{h}\u00a0x\u00a0{w}", count) for (h, w), count in report.sizes.items()]
    shown, others = sizes[:_SIZES], sizes[_SIZES:]
    if others:
        shown.append((counted(len(others), "other size"), sum(count for _, count in others)))
    forms = ", ".join(f"{form} ({count:,})" for form, count in report.forms.items())
    caption = f"<b>{esc(report.split)}</b> height x width; {esc(forms or 'no valid image')}"
    return _bars(caption, ("size", "share", "images"), shown, sum(report.sizes.values()))


def _problems(report: AuditReport) -> str:
    cards = {True: "", False: ""}
    for finding in report.findings:
        fixes = [("", finding.settings)] if finding.settings else []
        lines = "".join(
            f"<p>{esc(when)} {copied(command(settings))}</p>"
            for when, settings in (*fixes, *finding.others)
        )
        kind = "Fault" if finding.fatal else "Warning"
        cards[finding.fatal] += _card(report, kind, finding.message, lines)
    warnings = "".join(_card(report, "Warning", text) for text in report.warnings)
    return cards[True] + _faults(report) + warnings + cards[False]


def _faults(report: AuditReport) -> str:
    """A card for each kind of fault, with its files."""
    cards = ""
    for faults in kinds_of(report.faults[:_FAULTS]):
        items = "".join(f"<li>{esc(message)}</li>" for _, message in faults)
        more = details(counted(len(faults), "fault"), f"<ul>{items}</ul>") if faults[1:] else ""
        cards += _card(report, "Fault", faults[0][1], more)
    left = len(report.faults) - _FAULTS
    lost = f"{left:,} more faults: `segtrain data check --json` lists them all"
    return cards + (_card(report, "Fault", lost) if left > 0 else "")


def _card(report: AuditReport, kind: str, text: str, more: str = "") -> str:
    return (
        f'<div class="card {kind.lower()}"><h3>{kind} <code>{esc(report.split)}</code></h3>'
        f'<p class="wrapped">{esc(text)}</p>{more}</div>'
    )


def _shared(checked: Checked) -> Iterator[str]:
    """Both pictures of the images that are in two splits."""
    for report in checked.reports:
        for pair in (pair for finding in report.findings for pair in finding.pairs):
            figures = ""
            for split, image in zip((checked.data.train_split, report.split), pair):
                dataset = checked.datasets[split]
                names = [relative(entry.image, dataset.root) for entry in dataset.entries]
                figures += _figure(dataset, names.index(image), [split])
            yield f'<div class="twins">{figures}</div>'
