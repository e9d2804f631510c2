"""Checks of the code bundle: entry point, syntax, requirements, native decoder, and that it has no data or secrets."""

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
from launch.findings import Finding, error, note, warning
from launch.requirements import requirements

Files = Mapping[str, "Path | bytes"]

DATA = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".npy", ".npz", ".tar", ".zip", ".gz", ".mp4", ".h5", ".parquet")
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".bin")
SECRETS = re.compile(r"(^|/)(\.env|\.netrc|credentials|id_rsa|id_ed25519|[^/]*\.pem|\.aws/.*|\.ssh/.*)$")
# Minor version of glibc 2 in AWS's images: Amazon Linux 2023 from torch 2.11 on; Ubuntu 22.04 from 2.4 on, else 20.04.
AL2023, UBUNTU_22, UBUNTU_20 = 34, 35, 31
LARGE = 50 << 20  # bytes; the code is less than one MiB


def decoder_checks(root: Path, choice: ImageChoice) -> Iterator[Finding]:
    """A note if the bundle has no native decoder that runs in the image. AWS's images contain none, and decoding
    without it takes several times the CPU time.
    """
    if choice.image is None:  # the user's own image may contain the decoder
        return
    files, problem = native.carried(root)
    needs, has = native.glibc(files), glibc_of(choice.image)
    if needs > has:
        problem = f"the decoder built on this machine needs glibc 2.{needs}, the image has 2.{has}"
    if problem:
        yield note(
            "native-decoder",
            f"the native decoder does not travel to image {choice.image.tag}: {problem}; reading an image takes "
            "several times the CPU",
            "launch from Linux on x86-64 where segtrain doctor finds the native decoder, or --image made with "
            "docker/sagemaker/Dockerfile",
        )


def glibc_of(image: Image) -> int:
    """The minor version of glibc 2 in one of AWS's images, as ``native.glibc`` returns it."""
    if "amzn2023" in image.tag:
        return AL2023
    return UBUNTU_22 if version(image.torch) >= (2, 4) else UBUNTU_20


def bundle_checks(job: SageMakerJob, files: Files, choice: ImageChoice) -> Iterator[Finding]:
    yield from _nothing_more(files)
    yield from _syntax(job, files, choice)
    text = _read(files.get("requirements.txt", b"")).decode("utf-8", "replace")
    yield from requirements(
        text, choice.image.tag if choice.image else choice.uri, choice.image.torch if choice.image else ""
    )


def _nothing_more(files: Files) -> Iterator[Finding]:
    """Findings for files that do not belong in the bundle: one for each kind, with the first file and the count."""
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
    """Parse the Python files with the syntax of the image's Python. A file that this Python has compiled since its last
    change is skipped, unless it is the entry point.
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
    """Line and message of the first syntax error; "" if there is none.

    The syntax trees are not kept: Python's garbage collector would walk through all of them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, feature_version=(3, minor))
        return ""
    except (SyntaxError, ValueError) as problem:
        return f"line {getattr(problem, 'lineno', None) or '?'}: {getattr(problem, 'msg', problem)}"


def _compiled(path: Path) -> bool:
    """Whether up-to-date bytecode of the file exists. The bytecode's header has the time and the size of the source."""
    try:
        with open(importlib.util.cache_from_source(str(path)), "rb") as stream:
            head = stream.read(16)
        found = path.stat()
    except (OSError, NotImplementedError):  # no such file, or this Python caches no bytecode
        return False
    stamp = (int(found.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (found.st_size & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
    return head[:8] == importlib.util.MAGIC_NUMBER + bytes(4) and head[8:] == stamp


def _imports(name: str, tree: ast.AST, files: Files) -> Iterator[Finding]:
    """Findings for modules of segtrain that the entry point imports but that are not in the bundle."""
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            place = module.replace(".", "/")
            if module.split(".")[0] == "segtrain" and not {f"{place}.py", f"{place}/__init__.py"} & set(files):
                yield error("entry-import", f"{name} imports {module}, which is not in the bundle of code", "add it")


def _read(item: Path | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.read_bytes()
