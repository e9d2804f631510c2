"""Text of foreign origin (file names, class names, warnings of libraries) in a form that cannot steer a terminal."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from typing import TextIO

# C0 and C1 control characters and DEL, but tab and line feed; and the characters that reverse the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""``text`` with each control character as its escape: ``"\x1b[2J"`` becomes the six characters ``\x1b[2J``.

    >>> printable("road\x1b[31m")
    'road\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: object) -> None:
    """Print for people, on standard output."""
    print(printable(str(text)))


def say_warnings() -> None:
    """From here on what a library warns of is one line on standard error, without a place in its code.

    Pillow's warning of a large image is left out: how large an image may be is decided where its header is read.
    """
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")
    warnings.showwarning = _warned


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    library = re.search(r"(?:site|dist)-packages[/\\](\w+)", filename)
    text = printable(" ".join(str(message).split()))
    with contextlib.suppress(OSError, ValueError):  # standard error is closed: nobody is there to be warned
        print(f"warning: {library[1] + ': ' if library else ''}{text}", file=sys.stderr, flush=True)
