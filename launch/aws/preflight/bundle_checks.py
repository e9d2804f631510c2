"""Checks of the code that travels: entry point, syntax, requirements, the native decoder; no data, no secrets."""

from __future__ import annotations

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from launch import native
from launch.aws.images import Image, ImageChoice, version
from launch.aws.job import SageMakerJob
from launch.aws.preflight.limits import SECRET_VALUE
from launch.findings import Finding, error, note, warning

Files = Mapping[str, "Path | bytes"]

DATA = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy", ".npz", ".tar", ".zip", ".gz", ".mp4", ".h5", ".parquet")
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".bin")
SECRETS = re.compile(r"(^|/)(\.env|\.netrc|credentials|id_rsa|id_ed25519|[^/]*\.pem|\.aws/.*|\.ssh/.*)$")
# The glibc of AWS's images: Amazon Linux 2023 from torch 2.11 on; Ubuntu 22.04 from 2.4 on, 20.04 before.
AL2023, UBUNTU_22, UBUNTU_20 = 34, 35, 31
LARGE = 50 << 20  # bytes; the code is less than one MiB
_LINE = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^]]*\])?\s*([^;#@]*)")


def decoder_checks(root: Path, choice: ImageChoice) -> Iterator[Finding]:
    """AWS's images contain no native decoder. Without one in the bundle, decoding takes several times the CPU time."""
    if choice.image is None:  # an image of the user's may hold it
        return
    files, problem = native.carried(root)
    needs, has = native.glibc(files), glibc_of(choice.image)
    if needs > has:
        problem = f"the one of this machine needs glibc 2.{needs}, the image has 2.{has}"
    if problem:
        yield note(
            "native-decoder",
            f"the native decoder does not travel to image {choice.image.tag}: {problem}; reading an image takes "
            "several times the CPU",
            "launch from Linux on x86-64 where segtrain doctor finds the native decoder, or --image made with "
            "docker/sagemaker/Dockerfile",
        )


def glibc_of(image: Image) -> int:
    """The glibc of one of AWS's images, as ``native.glibc`` counts."""
    if "amzn2023" in image.tag:
        return AL2023
    return UBUNTU_22 if version(image.torch) >= (2, 4) else UBUNTU_20


def bundle_checks(job: SageMakerJob, files: Files, choice: ImageChoice) -> Iterator[Finding]:
    yield from _nothing_more(files)
    yield from _syntax(job, files, choice)
    text = files.get("requirements.txt", b"")
    yield from requirements(_read(text).decode("utf-8", "replace"), choice)


def _nothing_more(files: Files) -> Iterator[Finding]:
    """One finding for each kind, with the first file and the count."""
    kinds: dict[str, list[str]] = {}
    for name in files:
        parts, lower = name.split("/"), name.lower()
        if ".git" in parts:
            kinds.setdefault("bundle-git", []).append(name)
        elif SECRETS.search(lower):
            kinds.setdefault("bundle-secret", []).append(name)
        elif lower.endswith((*DATA, *WEIGHTS)) or parts[0] in ("runs", "data"):
            kinds.setdefault("bundle-data", []).append(name)
    what = {
        "bundle-git": "the repository's history",
        "bundle-secret": "a secret",
        "bundle-data": "data, weights or results, which belong on S3",
    }
    for code, names in kinds.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield error(code, f"the bundle of code would hold {names[0]}{more}: {what[code]}", "move it out of the code")
    size = sum(len(item) if isinstance(item, bytes) else item.stat().st_size for item in files.values())
    if size > LARGE and not kinds:
        largest = max(files, key=lambda name: len(_read(files[name])))
        yield warning(
            "bundle-large",
            f"the bundle of code has {size >> 20} MiB (largest: {largest}); every host downloads it",
            "move files that are not code to S3",
        )


def _syntax(job: SageMakerJob, files: Files, choice: ImageChoice) -> Iterator[Finding]:
    """Every Python file is read as the image's Python reads it, but those that this Python has compiled since they were
    changed.
    """
    minor = int(choice.image.python.split(".")[1]) if choice.image else 10
    for name, item in files.items():
        if not name.endswith(".py") or (name != job.program and isinstance(item, Path) and _compiled(item)):
            continue
        source = _read(item)
        problem = _problem(source, minor)
        if problem:
            yield error("code-syntax", f"{name}, {problem} (read as Python 3.{minor})", "fix it")
        elif name == job.program:
            yield from _imports(name, ast.parse(source), files)


@cache
def _problem(source: bytes, minor: int) -> str:
    """Line and message of what cannot be read.

    The tree is not kept: Python's collector would walk through all of them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, feature_version=(3, minor))
        return ""
    except (SyntaxError, ValueError) as problem:
        return f"line {getattr(problem, 'lineno', None) or '?'}: {getattr(problem, 'msg', problem)}"


def _compiled(path: Path) -> bool:
    """Is there byte code of this very file? Its head holds the time and the size of its source."""
    try:
        with open(importlib.util.cache_from_source(str(path)), "rb") as stream:
            head = stream.read(16)
        found = path.stat()
    except (OSError, NotImplementedError):
        return False
    stamp = (int(found.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (found.st_size & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
    return head[:8] == importlib.util.MAGIC_NUMBER + bytes(4) and head[8:] == stamp


def _imports(name: str, tree: ast.AST, files: Files) -> Iterator[Finding]:
    """What the entry point imports of segtrain must travel with it."""
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            place = module.replace(".", "/")
            if module.split(".")[0] == "segtrain" and not {f"{place}.py", f"{place}/__init__.py"} & set(files):
                yield error("entry-import", f"{name} imports {module}, which is not in the bundle of code", "add it")


def requirements(text: str, choice: ImageChoice) -> Iterator[Finding]:
    """What pip would be told in the container, line by line."""
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        yield from _requirement(line, choice)


def _requirement(line: str, choice: ImageChoice) -> Iterator[Finding]:
    if re.match(r"(-e\b|--editable|-r\b|-c\b|\.{0,2}/|file:)", line) or "@ file:" in line:
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
            f"requirements: {place if place != line else '(hidden)'} holds a password or token, which would be "
            "in the bundle, in S3",
            "let pip take it from a mirror that the role may read (AWS CodeArtifact)",
        )
        return
    if "git+" in line:
        yield warning(
            "requirement-git",
            f"requirements: {line!r} needs git in the image and a way to that server",
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
            f"requirements: {line!r} is not on the package index: the install would fail on every host",
            "leave it out: images for smddp carry it",
            "pip index, 2026-11-21",
        )
    elif name == "smdebug":
        yield warning(
            "requirement-smdebug",
            f"requirements: {line!r} needs protobuf 3.20.3, with which newer packages break; it was given up in 2023",
            "leave it out: segtrain writes the same system profile itself",
        )
    elif name in ("torch", "torchvision", "torchaudio") and wanted:
        yield from _torch(line, name, wanted, choice)


def _torch(line: str, name: str, wanted: str, choice: ImageChoice) -> Iterator[Finding]:
    image = choice.image
    if image is not None and name == "torch" and admits(wanted, image.torch):
        return
    has = f"image {image.tag} has torch {image.torch}" if image else f"what image {choice.uri} has is not known"
    level = error if image is not None and name == "torch" else warning
    yield level(
        "requirement-torch",
        f"requirements: {line!r} may replace the image's torch, built for its CUDA, NCCL and EFA ({has})",
        f"leave {name} out, or choose the image by --image",
    )


def admits(wanted: str, have: str) -> bool:
    """Does ``>=2.0,<3`` admit ``2.8.0``? Numbers alone; what cannot be read is not admitted."""
    mine = version(have)
    for part in wanted.split(","):
        match = re.fullmatch(r"\s*(==|>=|<=|!=|~=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?\s*", part)
        if match is None:
            return False
        sign, theirs, star = match[1], version(match[2]), bool(match[3])
        size = len(theirs) if star else max(len(mine), len(theirs))
        left, right = ((*one, *[0] * size)[:size] for one in (mine, theirs))
        fits = {
            "==": left == right, "!=": left != right, ">=": left >= right, "<=": left <= right, "<": left < right,
            ">": left > right, "~=": left >= right and left[: len(theirs) - 1] == right[: len(theirs) - 1],
        }  # fmt: skip
        if not fits[sign]:
            return False
    return True


def _read(item: Path | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.read_bytes()
