"""Text for the terminal: aligned columns, and printing without the control characters that could
change it.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Container, Sequence
from typing import Any

Say = Callable[[str], None]  # prints a line
# C0 and C1 control characters and DEL, except tab and line feed; characters that change the writing
# direction; and bytes of file names that are not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""``text`` with each control character escaped: ``"\x1b[2J"`` becomes the six characters
    ``\x1b[2J``.

    >>> printable("road\x1b[31m")
    'road\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def counted(count: int, noun: str) -> str:
    """``1 fault``, ``1,200 faults``, ``2 processes``."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'}"


def columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The rows as lines with aligned columns; columns whose number is in ``right`` are aligned to
    the right.

    >>> columns([("class", "IoU"), ("road", "9")], right={1})
    ['class  IoU', 'road     9']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            f"{cell:{'><'[k not in right]}{width}}"
            for k, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def say(text: object) -> None:
    """Print ``text`` to standard output without control characters."""
    print(printable(str(text)))


def say_warnings() -> None:
    """From now on, print each warning of a library as one line on standard error, without file and
    line number.

    Pillow's warning about large images is dropped. The code that reads image headers checks sizes
    itself.
    """
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")
    warnings.showwarning = _warned


def _warned(
    message: Warning | str, category: type[Warning], filename: str, *_: Any, **more: Any
) -> None:
    library = re.search(r"(?:site|dist)-packages[/\\](\w+)", filename)
    text = printable(" ".join(str(message).split()))
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        print(f"warning: {library[1] + ': ' if library else ''}{text}", file=sys.stderr, flush=True)
