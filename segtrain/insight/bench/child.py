"""Measurements in a separate process: the parent sends a request as JSON, and the child answers as
JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cv2

from segtrain.config import Config, make_config
from segtrain.data.audit.audit import audit, check_before_training
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.subset import without
from segtrain.data.pixels import native
from segtrain.errors import SegtrainError


def child(module: str, request: dict[str, Any], **environment: str) -> dict[str, Any]:
    """Run ``python -m segtrain.insight.bench.MODULE``, which calls ``answer_with``, and return its
    answer.

    The child uses one compute thread. It gets the environment variables of this process, and
    ``environment``. Raises SegtrainError with the child's error message, or with the last line of
    its stderr if it crashed.
    """
    command = [sys.executable, "-m", f"segtrain.insight.bench.{module}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        command, input=json.dumps(request), env=env, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SegtrainError(
            f"segtrain.insight.bench.{module} ended with exit code {done.returncode}: {last}",
            code="bench-process-failed",
            found=done.returncode,
        )
    answer = dict(json.loads(done.stdout.splitlines()[-1]))
    if "error" in answer:
        raise SegtrainError(answer["error"], code=answer["code"], **answer["values"])
    return answer


def answer_with(work: Callable[[Config, dict[str, Any]], dict[str, Any]]) -> None:
    """The child's side: read the request, do the ``work``, and write its result or its error."""
    request = json.load(sys.stdin)
    cv2.setNumThreads(1)
    try:
        answer = work(make_config(request.get("config", {})), request)
    except SegtrainError as error:
        answer = {"error": str(error), "code": error.code, "values": error.values}
    json.dump(answer, sys.stdout, default=str)


def decoder() -> dict[str, str]:
    """Which image decoder this process uses, and why.

    ``path``: "native" (segtrain's own library) or "packages" (Python packages). ``path_says``: one
    line with the reason.
    """
    return {"path": "native" if native.available() else "packages", "path_says": native.describe()}


def few(config: Config, request: dict[str, Any]) -> Dataset:
    """The samples to measure: ``request["samples"]`` of the training split, evenly spread.

    With data.faults=skip, faulty samples are left out. This function also makes
    ``request["scratch"]`` the cache folder of the process, because nothing that is cached during
    the measurement is useful later.
    """
    dataset = open_dataset(
        config.data.model_copy(update={"limit": request["samples"]}), config.data.train_split
    )
    os.environ["SEGTRAIN_CACHE"] = request["scratch"]
    if config.data.faults == "skip":
        dataset = without(dataset, check_before_training(dataset, "skip", audit(dataset, 1)).bad)
    return dataset
