"""Tests on a simulated GPU (fake_cuda.py): a run fits on it, and waits for it only in known
places.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fake_cuda
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
Place = tuple[str, str]  # function, file


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What fake_cuda_cases.py printed, by case. Of several workers of pytest the first one runs
    it.
    """
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("the stand-in for the CUDA runtime is compiled with g++ on Linux")
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    printed = folder / "fake-cuda.jsonl"
    with open(folder / "fake-cuda.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            printed.write_text(run_cases(tmp_path_factory.mktemp("fake-cuda")))
    lines = [json.loads(line) for line in printed.read_text().splitlines() if line.startswith("{")]
    if "skip" in lines[0]:
        pytest.skip(lines[0]["skip"])
    return {line["case"]: line for line in lines}


def run_cases(folder: Path) -> str:
    environment = fake_cuda.libraries(folder)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/kit/fake_cuda_cases.py")],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def places(waits: Iterable[Any]) -> set[Place]:
    return {(function, file) for _, file, function, _, _ in waits}


def on_the_page(*when: str) -> set[Place]:
    """The places that docs/gpu.md names for any of these times (for none: all)."""
    rows = re.findall(r"^\| `(\w+)` in `([\w/.]+)` \| (.+?) \|", PAGE, re.MULTILINE)
    assert len(rows) > 10
    return {
        (function, file)
        for function, file, times in rows
        if not when or {*when} & {*times.split(", ")} == {*when}
    }


def shown(case: dict[str, Any]) -> str:
    """Each wait with its line, for whoever must find it."""
    waits = case["waits"] or [wait for step in case["found"].values() for wait in step]
    return "\n".join(
        f"{file}:{line} {function}: {kind} ({count} x)"
        for kind, file, function, line, count in waits
    )


def test_everything_runs_on_tensors_of_a_gpu(cases):
    """Each model family, loss, optimizer, resume, evaluation and the loop: no tensor on a wrong
    device, no type that does not fit.
    """
    wrong = {name: case["error"] for name, case in cases.items() if case["error"]}
    assert not wrong
    assert {name.split()[0] for name in cases} >= {
        "model",
        "loss",
        "optimizer",
        "resume",
        "digest",
        "evaluate",
        "loop",
        "graphs",
        "predict",
    }
    odd = {
        name: case["found"]
        for name, case in cases.items()
        if isinstance(case["found"], list) and case["found"]
    }
    # gradients that are absent or of another kind; moments that a resume has laid elsewhere
    assert not odd


def test_every_loss_optimizer_and_network_is_among_the_cases(cases):
    from segtrain.config import loss, optim
    from segtrain.models.factory import SMP

    def names(module: Any) -> set[str]:
        blocks = [
            value for value in vars(module).values() if "name" in getattr(value, "model_fields", {})
        ]
        return {str(block.model_fields["name"].default) for block in blocks} - {""}

    assert len(names(loss)) >= 7
    assert len(names(optim)) >= 3
    expected = {f"model {arch}" for arch in (*SMP, "pico")} | {
        f"loss {name}" for name in names(loss)
    }
    expected |= {f"{what} {name}" for name in names(optim) for what in ("optimizer", "resume")}
    assert expected <= {" ".join(name.split()[:2]) for name in cases}


def test_a_step_waits_for_the_gpu_where_the_page_says_and_nowhere_else(cases):
    steps = {int(number): places(waits) for number, waits in cases["loop bf16"]["found"].items()}
    every, text = on_the_page("every step"), shown(cases["loop bf16"])
    every -= on_the_page("every step", "fp16 without fused kernels") | on_the_page(
        "every step", "own loss"
    )
    assert steps[3] == steps[5] == every, text
    assert steps[1] - on_the_page("once") == on_the_page("a logged step"), text
    assert steps[4] - every == on_the_page("a logged step"), text
    assert steps[6] - every == on_the_page("sentinel"), text
    assert steps[7] == every, text  # a checkpoint
    # Evaluation, with a checkpoint, as it is the best so far. The log comes with it.
    expected = (
        on_the_page("evaluation") | on_the_page("a logged step") | on_the_page("after a checkpoint")
    )
    assert steps[8] - every == expected, text
    assert places(cases["loop fp16"]["found"]["3"]) == every, shown(cases["loop fp16"])


def test_no_loss_waits_with_color_jitter_micro_batches_muon_and_ema(cases):
    every = on_the_page("every step") - on_the_page("every step", "fp16 without fused kernels")
    every -= on_the_page("every step", "own loss")
    case = cases["loop of every loss"]
    assert places(case["found"]["3"]) == every, shown(case)


def test_a_step_of_cuda_graphs_waits_for_nothing_else(cases):
    """Nothing in a capture waits, with every loss in fp16 and two crop sizes."""
    case = cases["graphs of every loss"]
    every = on_the_page("every step") - on_the_page("every step", "fp16 without fused kernels")
    assert places(case["found"]["3"]) == every - on_the_page("every step", "own loss"), shown(case)
    assert "graph" in case["ops"]


def test_the_losses_are_fused_where_they_can_be(cases):
    """Of three ways that take equally long here, fused is the first. Its kernels are stand-ins that
    do nothing.
    """
    for name, case in cases.items():
        fused = "triton::loss.gradient" in case["ops"]
        if name.startswith("loss ") and name not in (
            "loss lovasz",
            "loss own",
            "loss of full logits",
        ):
            assert fused, name
        elif name.startswith("loss"):
            assert not fused, name
    assert "triton::loss.class_sums" in cases["loss dice"]["ops"]
    assert "triton::loss.gradient" in cases["deterministic pico"]["ops"]


def test_an_evaluation_waits_once_in_64_batches(cases):
    waits = {function: count for _, _, function, _, count in cases["evaluate 130 batches"]["waits"]}
    assert waits == {"settle": 2, "refuse_unknown": 2}, shown(cases["evaluate 130 batches"])


def test_a_prediction_waits_once_in_16_images(cases):
    case = cases["predict 64 images"]
    once = on_the_page("once")
    waits = {
        function: count
        for _, file, function, _, count in case["waits"]
        if (function, file) not in once
    }
    assert (case["found"], waits) == (64, {"_results": 4}), shown(case)


def test_votes_are_waited_for_from_the_third_step_on(cases):
    """Those of two steps before: nobody waits for the step that has just been launched."""
    vote = ("stop", "segtrain/training/step.py")
    steps = {int(number): places(waits) for number, waits in cases["loop bf16"]["found"].items()}
    assert [number for number in sorted(steps) if vote in steps[number]] == list(range(3, 10))


def test_networks_losses_and_optimizers_wait_for_nothing_that_the_page_does_not_name(cases):
    for name, case in cases.items():
        kind = name.split()[0]
        if kind in ("model", "loss", "optimizer"):
            # Fake tensors have no fused SGD.
            special = {"loss own": "own loss", "optimizer sgd": "fp16 without fused kernels"}.get(
                name
            )
            allowed = on_the_page("once") | (
                on_the_page("every step", special) if special else set()
            )
            assert places(case["waits"]) <= allowed, f"{name}\n{shown(case)}"
        if kind == "evaluate":
            assert places(case["waits"]) <= on_the_page("evaluation") | on_the_page("once"), (
                f"{name}\n{shown(case)}"
            )
    assert places(cases["loss own"]["waits"]) - on_the_page("once") == on_the_page(
        "every step", "own loss"
    )


def test_no_row_of_the_page_is_out_of_date(cases):
    found: set[Place] = set()
    for case in cases.values():
        found |= places(case["waits"])
        if isinstance(case["found"], dict):
            found |= {place for waits in case["found"].values() for place in places(waits)}
    assert on_the_page() == found


def test_deterministic_training_of_our_networks_runs_no_operator_that_torch_refuses(cases):
    """Fake tensors cannot show the refusal.

    These have no deterministic form on CUDA (torch.use_deterministic_algorithms).
    """
    refused = re.compile(
        r"aten::(_?adaptive_(avg|max)_pool[23]d|(fractional_)?max_(un)?pool3d|avg_pool3d|max_unpool|fractional_max_pool"
        r"|reflection_pad|replication_pad|grid_sampler|nll_loss2d|ctc_loss|histc|kthvalue|median|put_|bincount"
        r"|upsample_(linear|bilinear|bicubic|trilinear))"
    )
    names = [name for name in cases if name.startswith("deterministic")]
    assert len(names) >= 3
    for name in names:
        assert [op for op in cases[name]["ops"] if refused.match(op)] == [], name
