"""ParallelCluster's own schema, asked in its own environment: its packages do not fit beside those
of segtrain.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from launch.core.findings import Finding, error, note
from launch.platforms.parallelcluster.recipe import VERSION
from segtrain.errors import ConfigError

VARIABLE = "SEGTRAIN_PCLUSTER"
PATIENCE_S = 120
INSTALL = (
    "python3 -m venv .venv-pcluster && .venv-pcluster/bin/pip install "
    f"aws-parallelcluster=={VERSION}"
)
# Reads the names of files, answers one JSON line: the version, and for each file what the schema
# says against it.
_ASK = """
import json, logging, sys
logging.disable(logging.CRITICAL)
import yaml
from importlib.metadata import version
from pcluster.schemas.cluster_schema import ClusterSchema
answers = []
for file in sys.argv[1:]:
    try:
        ClusterSchema(cluster_name="check").load(yaml.safe_load(open(file, encoding="utf-8")))
        answers.append(None)
    except Exception as error:
        answers.append(getattr(error, "messages", None) or f"{type(error).__name__}: {error}")
print(json.dumps({"version": version("aws-parallelcluster"), "answers": answers}, default=str))
"""


def python_of(given: str | None = None) -> Path | None:
    """The Python that has ParallelCluster: beside ``pcluster``, as given, as SEGTRAIN_PCLUSTER
    says, or on the path.

    Raises ConfigError where a given one is not there.
    """
    named = given or os.environ.get(VARIABLE)
    program = shutil.which(named or "pcluster")
    if named and program is None:
        raise ConfigError(
            f"{'--pcluster' if given else VARIABLE} {named} is not a program: {INSTALL}, and give "
            ".venv-pcluster/bin/pcluster",
            code="pcluster-missing",
            found=named,
        )
    # Not resolved: a link to the program of another environment would lead to a Python without its
    # packages.
    return Path(program).absolute().parent / "python" if program else None


def ask(python: Path, files: list[Path], region: str) -> list[list[Finding]]:
    """What ParallelCluster's schema says against each file. Asks AWS nothing. Raises
    ConfigError.
    """
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", "/"),
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        # No call leaves the machine: the schema asks EC2 for a capacity reservation, and does
        # without the answer.
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    command = [str(python), "-c", _ASK, *(str(file) for file in files)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ConfigError(
            f"ParallelCluster's schema could not be asked: {problem}", code="pcluster-failed"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ConfigError(
            f"ParallelCluster's schema could not be asked with {python}: {last}: {INSTALL}",
            code="pcluster-failed",
        )
    reply = json.loads(done.stdout.splitlines()[-1])
    other = [] if reply["version"] == VERSION else [_other(reply["version"])]
    return [[*_findings("", answer), *other] for answer in reply["answers"]]


def absent() -> Finding:
    return note(
        "schema-unasked",
        "ParallelCluster's own schema was not checked, because pcluster is not installed here",
        f"{INSTALL}, and --pcluster .venv-pcluster/bin/pcluster",
    )


def _other(version: str) -> Finding:
    return note(
        "schema-version",
        f"the schema is that of ParallelCluster {version}; the rules here know {VERSION}",
    )


def _findings(place: str, answer: object) -> list[Finding]:
    """One finding for each leaf of marshmallow's messages."""
    if answer is None:
        return []
    if isinstance(answer, dict):
        return [
            one
            for key, value in answer.items()
            for one in _findings(f"{place}/{key}".strip("/"), value)
        ]
    texts = [str(one) for one in answer] if isinstance(answer, list) else [str(answer)]
    return [
        error(
            "schema", f"{place}: {text}" if place else text, source=f"aws-parallelcluster {VERSION}"
        )
        for text in texts
    ]
