"""bench/plan_exam.py: errors on open figures, what each input changes, and malformed files and
entries.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import refused

from bench.exam.answers import answer, answers
from segtrain.insight.plan.device import DENSE

EXAM = Path(__file__).parents[1] / "plan/exam_open.json"
INPUTS: dict[str, Any] = {
    "model": "resnet50",
    "params_M": 25.56,
    "flops_G_per_image_forward": 8.22,
    "activations_M_per_image": 11.11,
    "image_size": 224,
    "batch_per_gpu": 256,
    "precision": "amp fp16",
    "gpu": "V100-SXM-16",
    "gpus_per_host": 1,
    "hosts": 1,
    "interconnect": "-",
    "framework": "PyTorch, NVIDIA DeepLearningExamples",
    "year": 2021,
}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bench_plan_exam", Path(__file__).parents[2] / "bench/plan_exam.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_errors_on_open_figures_whose_source_the_fit_has_not_seen(bench):
    entries = bench.figures()
    rows = bench.judged(entries)
    bounds = {"a": 0.20, "b": 0.06, "x": 0.15, "d": 0.15, "i": 0.15}
    for kind, bound in bounds.items():
        errors = [row.error for row in rows if row.entry["kind"] == kind]
        assert len(errors) >= 5
        assert sum(map(abs, errors)) / len(errors) <= bound, kind
    assert 0.7 <= sum(row.held for row in rows) / len(rows) <= 0.95
    assert all(entry["source"] for entry in entries)


def test_a_source_does_not_tell_its_own_prediction(bench):
    """Figures of one source that are ten times as large change the predictions of other sources
    alone.
    """
    entries = bench.figures()
    scaled = [
        {**entry, "answer": 10 * entry["answer"]} if bench.source(entry) == "H200" else entry
        for entry in entries
    ]
    before, after = (
        {row.entry["id"]: row.error for row in bench.judged(rows)} for rows in (entries, scaled)
    )
    for name, error in before.items():
        if name.startswith("h200"):
            assert after[name] == pytest.approx((1 + error) / 10 - 1)
    assert after["MMSegmentation-PSPNet R101-D8"] > 1 + before["MMSegmentation-PSPNet R101-D8"]


def test_the_fitted_factor_is_that_of_the_figures(bench):
    assert bench.fitted(bench.figures()) == DENSE


def test_the_command_answers_each_entry(bench, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plan_exam.py", str(EXAM)])
    bench.main()
    found = json.loads(capsys.readouterr().out)
    entries = json.loads(EXAM.read_text(encoding="utf-8"))
    assert [one["id"] for one in found] == [one["id"] for one in entries]
    assert len(found) == 10
    for one, entry in zip(found, entries):
        assert one["low"] < one["high"]
        assert abs(one["value"] / entry["answer"] - 1) < 0.4, entry["id"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"gpu": "Voodoo 2"}, "gpu"),
        ({"hosts": -1}, "hosts"),
        ({"params_M": float("nan")}, "params_M"),
        ({"given": {"rate_gpu0": 5}}, "gpu0"),
        ({"gpus_per_host": 0}, "workers_per_host"),
    ],
)
def test_an_entry_that_cannot_be_predicted_names_the_field(changed, field):
    found = answer({"id": "x", "inputs": {**INPUTS, **changed}, "predict": "img/s"})
    assert found["value"] is None
    assert field in found["reason"]


def test_malformed_files_are_refused(tmp_path):
    with refused("exam-unreadable"):
        answers(tmp_path / "none.json")
    file = tmp_path / "exam.json"
    for text, code in (('{"a": 1}', "exam-not-a-list"), ("[" * 100_000, "exam-not-json")):
        file.write_text(text, encoding="utf-8")
        with refused(code):
            answers(file)
