"""Checks of requirements.txt, whose packages pip installs in the containers. Used by all platforms
with images.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator

from launch.core.findings import Finding, error, warning
from launch.core.preflight import SECRET_VALUE

COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "~=": operator.ge,
}
_LINE = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^]]*\])?\s*([^;#@]*)")


def requirements(text: str, image: str, torch: str) -> Iterator[Finding]:
    """Findings for the lines of requirements.txt, which pip installs in the container. ``torch``:
    the version in the image; "" if unknown.
    """
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        yield from _requirement(line, image, torch)


def _requirement(line: str, image: str, torch: str) -> Iterator[Finding]:
    if (
        re.match(r"(-[erc]\b|--editable|--requirement|--constraint|\.{0,2}/|file:)", line)
        or "@ file:" in line
    ):
        yield error(
            "requirement-path",
            f"requirements: {line!r} is a place on this machine, not in the container",
            "a package's name",
        )
        return
    if SECRET_VALUE.search(line):
        place = re.sub(r"://[^/\s@]*@", "://(hidden)@", line)
        yield warning(
            "requirement-secret",
            f"requirements: {place if place != line else '(hidden)'} holds a password or token, "
            "which would be in the bundle, in S3",
            "let pip take it from a mirror that the job's account may read",
        )
        return
    if "git+" in line:
        yield warning(
            "requirement-git",
            f"requirements: {line!r} needs git in the image and network access to that server",
            "a released version",
        )
        return
    match = _LINE.match(line)
    if match is None or line.startswith("-"):
        return
    name, wanted = match[1].lower().replace("_", "-").replace(".", "-"), match[3].strip()
    if name.startswith("smdistributed"):
        yield error(
            "requirement-smddp",
            f"requirements: {line!r} is not on the package index: the install would fail on "
            "every host",
            "leave it out: images for smddp carry it",
            "pip index, 2026-11-21",
        )
    elif name in ("torch", "torchvision", "torchaudio") and wanted:
        yield from _torch(line, name, wanted, image, torch)


def _torch(line: str, name: str, wanted: str, image: str, torch: str) -> Iterator[Finding]:
    if torch and name == "torch" and admits(wanted, torch):
        return
    has = f"image {image} has torch {torch}" if torch else f"what image {image} has is not known"
    level = error if torch and name == "torch" else warning
    yield level(
        "requirement-torch",
        f"requirements: {line!r} may replace the image's torch, built for its GPUs and "
        f"network ({has})",
        f"leave {name} out, or choose the image by --image",
    )


def admits(wanted: str, have: str) -> bool:
    """Does ``>=2.0,<3`` admit ``2.8.0``? A requirement with anything but numeric versions admits
    nothing.
    """
    mine = _version(have)
    for part in wanted.split(","):
        match = re.fullmatch(r"\s*(==|>=|<=|!=|~=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?\s*", part)
        if match is None:
            return False
        theirs = _version(match[2])
        size = len(theirs) if match[3] else max(len(mine), len(theirs))
        left, right = ((*numbers, *[0] * size)[:size] for numbers in (mine, theirs))
        if not COMPARE[match[1]](left, right):
            return False
        if match[1] == "~=" and mine[: len(theirs) - 1] != theirs[:-1]:
            return False
    return True


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
