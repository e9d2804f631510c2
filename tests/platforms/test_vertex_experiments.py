"""Tests that runs are tracked in Vertex AI Experiments as its SDK does it, and listed from there as
from their folders.

No cloud is reached: tests/kit/cloud/vertex.py plays Vertex AI on loopback. The SDK's own messages
were recorded with tests/contracts/experiments/capture.py.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer
from cloud.vertex import VertexServer
from conftest import ROOT, refused
from contracts.experiments import capture as sdk

from segtrain.config import Log, make_config
from segtrain.insight.runs import remote
from segtrain.insight.runs.table import COLUMNS, by_seed, list_runs
from segtrain.installed import run_services
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.tracker import TrackedRun
from segtrain.observe.trackers import Trackers, open_trackers
from segtrain.platforms import TRACKERS
from segtrain.platforms.vertex import tracker as vertex
from segtrain.platforms.vertex.experiments import Experiment, ExperimentRun
from segtrain.platforms.vertex.google_api import AlreadyThere, GoogleApi
from segtrain.runs.table import data_frame

local = partial(remote.local, services=run_services())
rows = partial(remote.rows, services=run_services())

pytest.importorskip("google.auth", reason="google-auth is not installed")
NAME = "streets-2026"
CONFIG = make_config({"name": "street", "optim": {"lr": 0.25}})


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VertexServer]:
    for name in [
        name
        for name in os.environ
        if name.startswith(("GOOGLE_", "CLOUDSDK_", "CLOUD_ML_", "AIP_"))
    ]:
        monkeypatch.delenv(name)
    server = VertexServer()
    for name, value in server.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("segtrain.platforms.vertex.experiments._POLL_S", 0.0)
    monkeypatch.setattr("segtrain.platforms.vertex.google_api._FIRST_PAUSE_S", 0.01)
    yield server
    server.close()


def written(
    folder: Path, name: str, status: str = "done", miou: float = 0.5, ts: float = 1000.0
) -> Path:
    """A run folder as a run of 20 steps leaves it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        make_config({"name": name, "optim": {"lr": 0.25}}).to_yaml()
    )
    (folder / "best.json").write_text(json.dumps({"miou": miou, "step": 10}))
    scores = {"classes": 2, "classes_present": 1, "miou": miou - 0.125, "iou": [0.25, 0.5]}
    events: list[dict[str, Any]] = [
        {
            "event": "run_start",
            "host": "h",
            "pid": 1,
            "hash": "1a2b3c4d",
            "total_steps": 20,
            "name": name,
            "warnings": ["few images"],
        },
        {
            "event": "eval",
            "step": 20,
            "scores": scores,
            "protocol": {},
            "seconds": 1.0,
            "cpu_s": 3.5,
        },
        {"event": "run_end", "status": status, "step": 20, "seconds": 3.25, "cpu_s": 4.5},
    ]
    events = events[: 2 if status == "running" else 3]
    lines = [json.dumps({**event, "ts": ts + at}) for at, event in enumerate(events)]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def opened(
    folder: Path,
    name: str = "street",
    experiment: str = NAME,
    say: Any = say_on_stderr,
    **facts: Any,
) -> Trackers:
    log = Log(tensorboard=False, vertex=experiment)  # type: ignore[call-arg]
    facts = {"config": CONFIG.model_dump(mode="json"), "hash": "1a2b3c4d", **facts}
    return open_trackers(log, TrackedRun(folder, name, **facts), TRACKERS, say=say)


def track(folder: Path, name: str, status: str = "done", **facts: Any) -> None:
    trackers = opened(folder, name, say=pytest.fail, **facts)
    trackers.scalars({"train/loss": 1.5, "train/lr": 0.25, "iou/absent": math.nan}, 10)
    trackers.scalars({"val/miou": 0.5, "val/iou/road": 0.75}, 20)
    trackers.close(status)


def test_the_table_from_vertex_equals_the_one_from_the_folders(cloud, tmp_path):
    runs = tmp_path / "runs"
    for at, status in enumerate(("done", "stopped", "failed")):
        name = f"street {at}"
        track(written(runs / str(at), name, status, 0.5 + at / 8, 1000.0 * (at + 1)), name, status)
    cloud.page = 2  # the list comes in pages
    here, there = list_runs(runs), rows(f"vertex:{NAME}")
    assert [row["status"] for row in there] == ["done", "stopped", "failed"]
    assert [{**row, "settings": {}} for row in there] == here
    with refused("no-settings"):
        by_seed(there)
    assert [[type(row[key]) for key in COLUMNS] for row in there] == [
        [type(row[key]) for key in COLUMNS] for row in here
    ]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pandas.testing.assert_frame_equal(data_frame(f"vertex:{NAME}"), data_frame(runs))


def test_a_real_run_in_a_bucket_is_listed_as_from_its_folder_and_continued_on_another_host(
    zygote, cloud, tmp_path, monkeypatch
):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    from small_runs import SMALL

    (tmp_path / "store/bkt").mkdir(parents=True)
    bucket = BucketServer(tmp_path / "store")
    environ = {**bucket.environment(), **cloud.environment(tmp_path)}
    settings = [*SMALL, "out=gs://bkt/runs/one", f"log.vertex={NAME}", "name=street"]
    for host in ("a", "b"):
        process = zygote.start("train", *settings, SEGTRAIN_CACHE=str(tmp_path / host), **environ)
        assert process.wait() == 0, process.output
        assert "Vertex Experiments is off" not in process.output
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = [rows(place) for place in ("gs://bkt/runs", f"vertex:{NAME}")]
    bucket.close()
    assert found[0] == [{**row, "settings": {}} for row in found[1]]
    assert [(row["status"], row["out"]) for row in found[0]] == [("done", "gs://bkt/runs/one")]
    (run,) = (
        name for name in cloud.resources if "/contexts/" in name and name.rsplit("/")[-1] != NAME
    )
    metadata = cloud.resources[run]["metadata"]
    assert metadata["_params"]["train.batch_size"] == 4
    (board,) = (
        name for name in cloud.resources if name.rpartition("/")[0].endswith("/tensorboards")
    )
    series = cloud.series(board, NAME, run.rsplit("/")[-1].removeprefix(f"{NAME}-"))
    assert sorted(series["train/loss"]) == list(range(1, 13))
    assert series["val/miou"] == {12: pytest.approx(metadata["_metrics"]["last_miou"])}
    # An epoch of 13 scenes.
    assert series["train/epoch_s"][5] == pytest.approx(13 / series["train/images_per_s"][5])
    assert any(tag.startswith("val/iou/") for tag in series)


def test_parameters_metrics_and_state_lie_where_the_sdk_looks(cloud, tmp_path):
    odd = {"long": "x" * 700, "nothing": None, "list": [1, 2], "high": math.inf, "low": -math.inf}
    config = {**CONFIG.model_dump(mode="json"), **odd}
    track(written(tmp_path / "a", "street"), "street", config=config)
    (name,) = (
        name.rpartition("/")[2] for name in cloud.resources if f"/contexts/{NAME}-street" in name
    )
    metadata = cloud.context(name)["metadata"]
    assert metadata["_state"] == "COMPLETE"
    params = metadata["_params"]
    assert (params["optim.lr"], params["train.batch_size"]) == (0.25, CONFIG.train.batch_size)
    assert (params["nothing"], params["list"], len(params["long"])) == ("null", "[1, 2]", 500)
    assert (params["high"], params["low"]) == ("Infinity", "-Infinity")
    assert {type(value) for value in params.values()} <= {str, int, float, bool}
    assert (
        metadata["_metrics"].items()
        >= {"miou": 0.5, "best_step": 10, "val/iou/road": 0.75, "train/loss": 1.5}.items()
    )
    assert "iou/absent" not in metadata["_metrics"]


def test_very_many_settings_still_fit(cloud, tmp_path):
    config = {
        "data": {"label_map": {f"a rather long name of a class {k}": "x" * 400 for k in range(600)}}
    }
    track(written(tmp_path / "a", "street"), "street", config=config)
    assert rows(f"vertex:{NAME}")[0]["status"] == "done"


def test_a_resumed_run_continues_its_run_and_replaces_the_steps_that_it_repeats(cloud, tmp_path):
    folder = written(tmp_path / "a", "street")
    first = opened(folder, say=pytest.fail)
    for step in (1, 2, 3):
        first.scalars({"train/loss": 1.0}, step)
    first.close("stopped")
    assert rows(f"vertex:{NAME}")[0]["status"] == "stopped"
    again = opened(folder, say=pytest.fail, resume_step=1)
    assert rows(f"vertex:{NAME}")[0]["status"] == "running"
    again.scalars({"train/loss": 0.5, "train/lr": 0.25}, 2)
    again.close("done")
    (row,) = rows(f"vertex:{NAME}")
    assert row["status"] == "done"
    (run,) = (
        item
        for name, item in cloud.resources.items()
        if "/runs/" in name and "/timeSeries/" not in name
    )
    board = run["name"].partition("/experiments/")[0]
    series = cloud.series(board, NAME, run["displayName"])
    assert series == {"train/loss": {1: 1.0, 2: 0.5, 3: 1.0}, "train/lr": {2: 0.25}}


def test_runs_of_the_same_name_are_different_runs(cloud, tmp_path, monkeypatch):
    for folder in ("a", "b"):
        track(written(tmp_path / folder, "street"), "street")
    assert len(rows(f"vertex:{NAME}")) == 2
    # Another machine of the same Vertex job has no run folder yet, and continues the run.
    monkeypatch.setenv("CLOUD_ML_JOB_ID", "77")
    for folder in ("c", "d"):
        name = ("Straße von oben " * 20).strip()
        track(written(tmp_path / folder, name), name)
    assert len(rows(f"vertex:{NAME}")) == 3
    monkeypatch.setenv(
        "AIP_EXPERIMENT_RUN_NAME", f"{cloud.parent}/metadataStores/default/contexts/{NAME}-mine"
    )
    track(written(tmp_path / "e", "street"), "street")
    assert cloud.context(f"{NAME}-mine")["metadata"]["_state"] == "COMPLETE"


def test_the_tensorboard_is_the_jobs_the_experiments_or_the_regions(cloud, tmp_path, monkeypatch):
    def used() -> list[str]:
        return [
            name.split("/")[5] for name in cloud.resources if name.endswith(f"/experiments/{NAME}")
        ]

    track(
        written(tmp_path / "none", "street"),
        "street",
        config={"log": {"vertex_tensorboard": "none"}},
    )
    assert used() == []
    assert rows(f"vertex:{NAME}")[0]["miou"] == 0.5  # the table needs no time series
    for id in ("7", "8"):
        name = f"{cloud.parent}/tensorboards/{id}"
        cloud.resources[name] = {
            "name": name,
            "displayName": id,
            "etag": "1",
            "isDefault": id == "8",
        }
    track(written(tmp_path / "region", "street"), "street")
    assert used() == ["8"]
    assert cloud.context(NAME)["metadata"]["backing_tensorboard_resource"].endswith("/8")
    monkeypatch.setenv(
        "AIP_TENSORBOARD_RESOURCE_NAME",
        f"projects/{cloud.project}/locations/{cloud.region}/tensorboards/7",
    )
    track(written(tmp_path / "job", "street"), "street")
    assert used() == ["8", "7"]
    with refused("tracker-not-reached", key="log.vertex", reason="no-tensorboard"):
        opened(tmp_path / "job", config={"log": {"vertex_tensorboard": "9"}})


def test_a_run_that_went_silent_was_killed(cloud, tmp_path):
    trackers = opened(written(tmp_path / "a", "street", "running"))
    assert rows(f"vertex:{NAME}")[0]["status"] == "running"
    context = next(item for name, item in cloud.resources.items() if f"/contexts/{NAME}-" in name)
    cloud.now = -3600.0
    context["updateTime"] = cloud.time()
    assert rows(f"vertex:{NAME}")[0]["status"] == "killed"
    trackers.close("failed")


def test_long_runs_are_written_in_parts(cloud):
    run = ExperimentRun(Experiment(NAME), "long", {})
    run.write(
        [(1000.0 + step, step, {"a": 1.0, "b": 2.0, "c": float(step)}) for step in range(4000)]
    )
    (board,) = (
        name for name in cloud.resources if name.rpartition("/")[0].endswith("/tensorboards")
    )
    series = cloud.series(board, NAME, "long")
    assert {tag: len(points) for tag, points in series.items()} == {"a": 4000, "b": 4000, "c": 4000}
    assert series["c"][3999] == 3999.0


def test_a_run_that_was_killed_before_it_had_its_board_gets_it(cloud, monkeypatch):
    post = GoogleApi.post

    def killed(self: GoogleApi, path: str, *body: Any, **query: Any) -> Any:
        if path.endswith(":addContextArtifactsAndExecutions"):
            raise KeyboardInterrupt
        return post(self, path, *body, **query)

    with monkeypatch.context() as patch:
        patch.setattr(GoogleApi, "post", killed)
        with pytest.raises(KeyboardInterrupt):
            ExperimentRun(Experiment(NAME), "one", {})
    assert not cloud.attributed
    ExperimentRun(Experiment(NAME), "one", {})
    (artifacts,) = cloud.attributed.values()
    assert [name.rpartition("/")[2] for name in artifacts] == [f"{NAME}-one-tb-run"]


def test_time_series_of_another_process_are_continued(cloud, monkeypatch):
    post = GoogleApi.post

    def once(self: GoogleApi, path: str, body: Any, **query: Any) -> Any:
        """Vertex AI makes all series of a request, or none if one is there."""
        known = {
            item.get("displayName")
            for name, item in cloud.resources.items()
            if "/timeSeries/" in name
        }
        wanted = {item["tensorboardTimeSeries"]["displayName"] for item in body.get("requests", ())}
        if known & wanted:
            raise AlreadyThere("there", code="google-refused")
        return post(self, path, body, **query)

    monkeypatch.setattr(GoogleApi, "post", once)
    first, second = (ExperimentRun(Experiment(NAME), "one", {}) for _ in range(2))
    second.write([(1000.0, 1, {"a": 1.0})])
    first.write([(1001.0, 2, {"a": 2.0, "b": 3.0})])
    (board,) = (
        name for name in cloud.resources if name.rpartition("/")[0].endswith("/tensorboards")
    )
    assert cloud.series(board, NAME, "one") == {"a": {1: 1.0, 2: 2.0}, "b": {2: 3.0}}


def test_a_change_by_another_process_is_kept(cloud):
    run = ExperimentRun(Experiment(NAME), "one", {"a": 1})
    context = cloud.context(f"{NAME}-one")
    context["metadata"]["_custom_jobs"] = ["job"]
    context["etag"] = "9"
    run.save({"_metrics": {"miou": 0.5}})
    assert (
        cloud.context(f"{NAME}-one")["metadata"].items()
        >= {"_custom_jobs": ["job"], "_metrics": {"miou": 0.5}}.items()
    )


def test_an_experiment_that_another_run_changes_at_the_same_time_gets_both(cloud, monkeypatch):
    real = Experiment.tensorboard

    def meanwhile(self: Experiment, *arguments: Any) -> str:
        board = real(self, *arguments)
        cloud.context(NAME)["etag"] = "9"
        return board

    monkeypatch.setattr(Experiment, "tensorboard", meanwhile)
    ExperimentRun(Experiment(NAME), "one", {}).write([(1000.0, 1, {"a": 1.0})])
    assert cloud.context(f"{NAME}-one")["metadata"]["_state"] == "RUNNING"


def test_the_training_never_waits_and_goes_on_without_a_tracker_that_fails(
    cloud, tmp_path, monkeypatch
):
    said: list[str] = []
    monkeypatch.setattr(vertex, "_SEND_S", 0.01)
    monkeypatch.setattr(vertex, "_OUTAGE_S", 0.05)
    earlier = threading.enumerate()  # a thread of another test may still wait for its network
    trackers = opened(written(tmp_path / "a", "street"), say=said.append)
    threads = [thread for thread in threading.enumerate() if thread not in earlier]
    (thread,) = (thread for thread in threads if thread.name == "vertex-experiments")
    cloud.down = True
    trackers.scalars({"train/loss": 1.0}, 1)
    thread.join()
    trackers.scalars({"train/loss": 1.0}, 2)
    trackers.scalars({"train/loss": 1.0}, 3)
    trackers.close()
    (line,) = said
    assert line.startswith("Vertex Experiments is off from now on: scalars raised")


def test_a_short_outage_loses_nothing(cloud, tmp_path):
    trackers = opened(written(tmp_path / "a", "street"), say=pytest.fail)
    trackers.scalars({"train/loss": 1.0}, 1)
    cloud.busy = 4
    trackers.close("done")
    assert cloud.busy == 0
    assert rows(f"vertex:{NAME}")[0]["status"] == "done"


def test_the_end_of_a_run_waits_for_no_network_for_ever(cloud, tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(vertex, "FINISH_S", 0.05)
    trackers = opened(written(tmp_path / "a", "street"), say=said.append)
    cloud.down = True
    trackers.scalars({"train/loss": 1.0}, 1)
    trackers.close("done")
    (line,) = said
    assert "close raised TimeoutError" in line


@pytest.mark.parametrize(
    ("place", "setting", "code"),
    [
        (NAME, {"deny": True}, "google-denied"),
        (NAME, {"down": True}, "google-unreachable"),
        (NAME, {"proxy": True}, "google-not-json"),
        (f"elsewhere/us-central1/{NAME}", {}, "google-denied"),
        ("Streets_2026", {}, "bad-experiment-name"),
    ],
)
def test_what_keeps_an_experiment_from_being_reached_is_one_clear_error(
    cloud, tmp_path, monkeypatch, place, setting, code
):
    monkeypatch.setattr("segtrain.platforms.vertex.runs._PATIENCE_S", 0.05)
    real = Experiment.__init__
    monkeypatch.setattr(
        Experiment, "__init__", lambda self, text, patience_s=0.05: real(self, text, 0.05)
    )
    for name, value in setting.items():
        setattr(cloud, name, value)
    with refused(code) as caught:
        rows(f"vertex:{place}")
    assert "\n" not in str(caught.value)
    with refused("tracker-not-reached", key="log.vertex", value=place, reason=code):
        opened(written(tmp_path / "a", "street"), experiment=place)


def test_an_experiment_that_does_not_exist_is_told_with_those_that_do(cloud):
    with refused("no-experiment", value=NAME, found=[]):
        rows(f"vertex:{NAME}")
    Experiment("streets-2025").ensure()
    with refused("no-experiment", found=["streets-2025"]) as caught:
        rows(f"vertex:{NAME}")
    assert "did you mean streets-2025?" in str(caught.value)
    Experiment(NAME).ensure()
    assert rows(f"vertex:{NAME}") == []
    assert Experiment(NAME, patience_s=7.0).api.patience_s == 7.0


def test_credentials_region_and_project_that_are_missing_are_named(cloud, tmp_path, monkeypatch):
    monkeypatch.delenv("GOOGLE_CLOUD_REGION")
    with refused("no-google-region", value=NAME):
        rows(f"vertex:{NAME}")
    monkeypatch.setenv("CLOUD_ML_REGION", "us-central1")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    assert Experiment(NAME).parent == "projects/project-of-the-key/locations/us-central1"
    key = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    content = json.loads(key.read_text())
    key.write_text(
        json.dumps({name: value for name, value in content.items() if name != "project_id"})
    )
    with refused("no-google-project", value=NAME):
        rows(f"vertex:{NAME}")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)
    with refused("google-no-login") as caught:
        rows(f"vertex:{NAME}")
    assert "gcloud auth application-default login" in str(caught.value)


def test_without_google_auth_the_error_names_the_extra(cloud, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "google.auth", None)
    with refused("missing-package", package="google-auth"):
        rows(f"vertex:{NAME}")
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        if name == "google.auth":
            raise ModuleNotFoundError(name)  # as without any package below `google`
        return real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with refused("missing-package", package="google-auth"):
        opened(tmp_path / "a")


def test_other_commands_name_what_to_do_with_an_experiment():
    with refused("unknown-place", place=f"vertex:{NAME}"):
        local(f"vertex:{NAME}")


def test_a_passing_fault_is_repeated_and_a_refusal_is_not(cloud):
    api = GoogleApi(f"{cloud.url}/v1", patience_s=5.0)
    cloud.busy = 3
    with refused("google-not-found", status=404):
        api.get(f"{cloud.parent}/metadataStores/default")
    assert len(cloud.asked) == 4
    with refused("google-refused", status=400):
        api.post(f"{cloud.parent}/metadataStores", {"wrong": 1}, metadataStoreId="default")
    with refused("body-not-json"):
        api.post(
            f"{cloud.parent}/metadataStores", {"description": math.inf}, metadataStoreId="default"
        )
    assert len(cloud.asked) == 5


# What differs by design: parameters go into the first request; one request makes several time
# series; a link that the SDK makes from its endpoint, which is loopback here; enums as names; what
# the server alone sets.
_SERVERS = ("etag", "createTime", "updateTime", "parentContexts")


def sent_by_the_sdk() -> list[dict[str, Any]]:
    return list(json.loads((ROOT / "tests/contracts/experiments" / sdk.NAME).read_text()))


def sent_by_us(cloud: VertexServer) -> list[dict[str, Any]]:
    board = f"{cloud.parent}/tensorboards/{sdk.TENSORBOARD}"
    cloud.resources[board] = {"name": board, "displayName": "t", "etag": "1"}
    run = ExperimentRun(Experiment(sdk.EXPERIMENT), sdk.RUN, sdk.PARAMS, board)
    run.write([(1000.0, step, values) for step, values in sdk.POINTS.items()])
    run.save({"_metrics": sdk.METRICS, "_state": "COMPLETE"})
    return [dict(zip(("method", "path", "query", "body"), asked)) for asked in cloud.asked]


def writes(requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What creates or changes resources: the last body by method and address, without what differs
    by design.
    """
    found: dict[str, Any] = {}
    for request in requests:
        method, body = request["method"], request["body"]
        path = request["path"].replace("projects/streets/", "projects/123456789012/")
        if method == "GET":
            continue
        id = next((value for key, value in request["query"].items() if key.endswith("Id")), "")
        if path.endswith(":batchCreate"):
            for item in body["requests"]:
                series = item["tensorboardTimeSeries"]
                found[f"POST {item['parent']}/timeSeries {series['displayName']}"] = series
            continue
        key = f"{method} {path} {id or (body.get('displayName') if path.endswith('timeSeries') else '')}".strip()
        found[key] = {name: value for name, value in body.items() if name not in _SERVERS}
    for body in found.values():
        if "uri" in body:
            body["uri"] = body["uri"].partition("/v1/")[2]
            body["state"] = {2: "LIVE"}.get(body["state"], body["state"])
        if "valueType" in body:
            body["valueType"] = {1: "SCALAR"}.get(body["valueType"], body["valueType"])
        for series in body.get("timeSeriesData", ()):
            series.pop("tensorboardTimeSeriesId")
            series["valueType"] = "SCALAR"
            for value in series["values"]:
                value.pop("wallTime")
    return found


def test_our_requests_equal_those_of_the_sdk(cloud):
    theirs, ours = writes(sent_by_the_sdk()), writes(sent_by_us(cloud))
    assert ours.keys() == theirs.keys()
    for key, body in theirs.items():
        if key.endswith(f"/contexts {sdk.EXPERIMENT}-{sdk.RUN}"):
            assert body["metadata"] == {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
            body["metadata"]["_params"] = sdk.PARAMS
        if "timeSeriesData" in body:
            for one in (body, ours[key]):
                one["timeSeriesData"].sort(key=json.dumps)
        assert ours[key] == body, key
