"""Plans that are kept in a run folder, and the record of what happened: errors by hand, and runs
that are left out.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from records import of_one_rank

from segtrain.cli import main
from segtrain.config import load_config
from segtrain.insight.plan import record, saved
from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.terms import terms_of

TYPE = "ml.g5.xlarge"


def planned(folder: Path, steps: int = 100, **changed: Any) -> Path:
    """A finished run of one rank, of 64 images in a step, that took 0.6 s for each. Its plan is
    from a run like it.
    """
    run = of_one_rank(folder)
    config = load_config(run / "config.yaml", ["train.batch_size=64"])
    saved.write(saved.content(plan(terms_of(run), (1,)), config.model_dump(mode="json")), run)
    now = time.time()
    begin = {
        "event": "run_start",
        "ts": now + 5,
        "begun": now + 2,
        "total_steps": steps,
        "machine": TYPE,
        "hosts": 1,
    }
    end = {"event": "run_end", "ts": now + 62, "status": "done", "step": steps}
    events = changed.get("events") or [
        {**begin, **changed.get("start", {})},
        {**end, **changed.get("end", {})},
    ]
    (run / "journal.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in events), encoding="utf-8"
    )
    config = load_config(
        None,
        [
            "model.arch=pico",
            "data.crop=[64,96]",
            "train.batch_size=64",
            *changed.get("settings", ()),
        ],
    )
    (run / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return run


def test_a_finished_run_is_compared_with_its_plan(tmp_path):
    a_plan_of_5000_steps = planned(tmp_path / "runs/a", steps=5000)
    (row,) = record.record([str(tmp_path / "runs")]).rows
    (offer,) = [
        one
        for one in saved.read(a_plan_of_5000_steps / saved.FILE)["offers"]
        if one["machine"] == TYPE
    ]
    assert (row["run"], row["machine"], row["hosts"]) == (str(a_plan_of_5000_steps), TYPE, 1)
    # 6 s of the device and 0.1 s of waiting, for 10 steps
    assert row["rate"] == {"predicted": offer["rate"], "happened": pytest.approx(64 / 0.61)}
    # from the beginning of the process
    assert row["minutes"]["happened"] == pytest.approx(1.0, abs=0.001)
    assert row["minutes"]["predicted"][1] == pytest.approx(
        5000 * 64 / offer["rate"][1] / 60, rel=0.01
    )


def test_errors_by_hand():
    def row(predicted: list[float], happened: float) -> dict[str, Any]:
        return {"run": "x", "minutes": {"predicted": predicted, "happened": happened}}

    found = record.errors([row([8, 10, 12], 10), row([8, 10, 12], 12.5), row([8, 10, 12], 8)])
    assert found == {
        "minutes": {
            "runs": 3,
            "inside": pytest.approx(2 / 3),
            "absolute": pytest.approx((0 + 0.2 + 0.25) / 3),
            "signed": pytest.approx((0 - 0.2 + 0.25) / 3),
        }
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"end": {"status": "stopped"}}, "not finished"),
        ({"start": {"begun": 5.0, "ts": 6.0}}, "after it began"),
        ({"start": {"hosts": 2}}, "no offer of 2 x"),
        ({"start": {"machine": ""}}, "--on TYPE"),
        ({"settings": ["data.crop=[96,96]"]}, "data.crop"),
        ({"settings": ["train.batch_size=32"]}, "train.batch_size=32, and not 64"),
    ],
)
def test_runs_that_are_left_out(tmp_path, changed, why):
    run = planned(tmp_path / "a", steps=5000, **changed)
    found = record.record([str(tmp_path)])
    assert found.rows == ()
    assert why in found.missing[str(run)]


def test_all_processes_of_a_resumed_run_count(tmp_path):
    now = time.time()
    begins = [
        {"event": "run_start", "ts": now + after, "total_steps": 5000, "machine": TYPE}
        for after in (10, 1000)
    ]
    events = [
        begins[0],
        {"event": "step", "ts": now + 70, "step": 20},
        begins[1],
        {"event": "run_end", "ts": now + 1030, "status": "done", "step": 5000},
    ]
    planned(tmp_path / "a", events=events)
    other = planned(tmp_path / "b", events=[*events[:2], {**begins[1], "hosts": 2}, events[3]])
    found = record.record([str(tmp_path)])
    (row,) = found.rows
    assert row["minutes"]["happened"] == pytest.approx(1.5, abs=0.001)  # 60 s, and 30 s
    assert list(found.missing) == [str(other)]


def test_the_command(tmp_path, capsys):
    run = of_one_rank(tmp_path / "short")
    call = ["plan", "--like", str(run), "--hosts", "1", "--save"]
    record_of = ["plan", "--record", str(tmp_path / "runs")]
    assert main([*call, str(tmp_path / "runs/long")]) == 0
    assert saved.read(tmp_path / "runs/long" / saved.FILE)["machine"] == TYPE
    assert main([*call, "gs://bucket/run"]) == 2
    capsys.readouterr()
    assert main([*record_of, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    planned(tmp_path / "runs/long", steps=100)  # fewer than its plan has
    assert main(record_of) == 0
    text = capsys.readouterr().out
    assert "rate " in text
    assert "6,400 images" in text
    assert "minutes " not in text.splitlines()[1]
    assert main([*record_of, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["errors"]) == {"rate"}
    assert main(["plan", "--record", str(tmp_path / "nowhere")]) == 2
    assert main(["plan", "train.seed=1", "--record"]) == 2


def test_a_plan_is_kept_before_the_run_and_a_damaged_one_is_named(tmp_path):
    run = planned(tmp_path / "runs/a")
    before = (run / saved.FILE).read_bytes()
    with refused("save-too-late"):
        saved.save(plan(terms_of(run), (1,)), {}, str(run))
    (tmp_path / "file").write_text("")
    with refused("plan-unwritable"):
        saved.save(plan(terms_of(run), (1,)), {}, str(tmp_path / "file"))
    (run / saved.FILE).write_bytes(before[:900])
    found = record.record([str(tmp_path / "runs")])
    assert not found.rows
    assert "damaged" in found.missing[str(run)]
