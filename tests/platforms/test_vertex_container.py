"""Tests of the container of a Vertex AI job: CLUSTER_SPEC, settings, the bundle of code, and places
of results.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from segtrain.config import Config
from segtrain.parallel.cluster import Cluster, discover
from segtrain.platforms import RANK_SOURCES
from segtrain.platforms.vertex import folders as vertex_folders
from segtrain.platforms.vertex import rank as vertex_rank
from segtrain.platforms.vertex.hosts import read_replicas
from segtrain.runfolder.holder import bucket_mount
from segtrain.runfolder.lock import RunLock

HOSTS = {"workerpool0": ["w0-a-0:2222"], "workerpool1": ["w1-a-0:2222", "w1-a-1:2222"]}


def spec(pool: str = "workerpool0", index: Any = 0, cluster: Any = HOSTS, **more: Any) -> str:
    """CLUSTER_SPEC as Vertex AI writes it."""
    task = {"type": pool, "index": index, "trial": ""}
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": task, "job": {}, **more})


def test_tf_config_says_the_same_on_vertex_alone():
    cluster = {"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    assert read_replicas({"TF_CONFIG": text}) is None
    found = read_replicas({"TF_CONFIG": text, "CLOUD_ML_PROJECT_ID": "1"})
    assert found is not None
    assert (found.number, found.training, found.variable) == (1, ("a:2222", "b:2222"), "TF_CONFIG")


def test_one_replica_starts_its_ranks_by_itself():
    for cluster in (
        {"workerpool0": ["a:2222"]},
        {},
        {"workerpool0": ["a:2222"], "workerpool2": ["reducer:2222"]},
    ):
        assert discover(RANK_SOURCES, {"CLUSTER_SPEC": spec(cluster=cluster)}) == Cluster()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        spec("workerpool1", -1),
        spec(index="x"),
        spec(cluster={"workerpool1": ["a:1"]}),
        spec(cluster={"workerpool0": ["a:b"]}),
        spec(cluster={"workerpool0": [":2222"]}),
    ],
)
def test_a_cluster_spec_that_contradicts_itself_is_named(text):
    with refused("bad-cluster-spec", variable="CLUSTER_SPEC", found=text):
        read_replicas({"CLUSTER_SPEC": text})


def test_a_run_folder_below_the_mount_is_in_the_bucket():
    environ = {"AIP_CHECKPOINT_DIR": "gs://bucket/job-1/checkpoints/"}
    assert (
        vertex_rank.settings(["configs/scenes.yaml"], environ).out
        == "gs://bucket/job-1/checkpoints"
    )
    assert (
        vertex_rank.settings(["configs/scenes.yaml", "out=/gcs/bucket/run"], environ).out
        == "gs://bucket/run"
    )


def test_settings_come_as_arguments(tmp_path):
    environ = {"AIP_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    words = ["--config", "configs/scenes.yaml", "train.batch_size=16"]
    config = vertex_rank.settings(words, environ)
    assert (config.train.batch_size, config.out) == (16, str(tmp_path / "checkpoints"))
    assert vertex_rank.settings([*words[1:], "out=elsewhere"], environ).out == "elsewhere"
    with refused("job-config-missing", file="configs/nothing.yaml"):
        vertex_rank.settings(["configs/nothing.yaml"], environ)


def test_rank_0_of_a_run_that_has_ended_leaves_the_model(tmp_path, monkeypatch):
    kept: list[tuple[int, int]] = []
    monkeypatch.setattr("segtrain.platforms.decoder.prepare", lambda folder: "")
    for rank, code in ((0, 0), (0, 75), (1, 0)):
        monkeypatch.setattr(
            "segtrain.installed.discover", lambda rank=rank: Cluster(rank, 2, rank, 2)
        )
        monkeypatch.setattr("segtrain.training.rank.train", lambda *_, code=code, **__: code)
        monkeypatch.setattr(
            vertex_folders, "keep_model", lambda config, ended=(rank, code): kept.append(ended)
        )
        assert vertex_rank._work([f"out={tmp_path}"], []) == code
    assert kept == [(0, 0)]


def test_a_run_folder_on_a_mounted_bucket_is_refused(tmp_path, monkeypatch):
    """Training into such a mount lost config.yaml and the journal, and failed to rename
    checkpoints.
    """
    monkeypatch.setattr("segtrain.runfolder.lock.bucket_mount", lambda folder: "gcsfuse")
    with refused("run-folder-on-bucket-mount", found="gcsfuse", run=str(tmp_path)):
        RunLock(tmp_path).acquire()
    assert not list(tmp_path.iterdir())


def test_mounts_of_buckets_are_known(tmp_path, monkeypatch):
    lines = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:50 / /gcs rw shared:1 - fuse.gcsfuse bucket rw\n"
    )
    lines += "3 1 0:51 / /gcs/disk rw - fuse.sshfs host rw\n"
    (tmp_path / "mountinfo").write_text(lines)
    monkeypatch.setattr("segtrain.runfolder.holder.MOUNTS", tmp_path / "mountinfo")
    for folder, expected in (("/gcs/bucket/run", "gcsfuse"), ("/gcs/disk/run", ""), ("/home", "")):
        assert bucket_mount(Path(folder)) == expected


def test_an_export_is_complete_once_it_has_its_model_json(tmp_path):
    (tmp_path / "export/run").mkdir(parents=True)
    for name in ("model.json", "run/config.yaml", "weights.safetensors"):
        (tmp_path / "export" / name).write_text(name)
    done = vertex_folders.send(tmp_path / "export", str(tmp_path / "there"))
    assert [path.name for path in done] == ["config.yaml", "weights.safetensors", "model.json"]


def test_files_for_a_bucket_get_their_keys_below_its_prefix(tmp_path, monkeypatch):
    put: list[tuple[str, str, str]] = []

    def client_of(base: str) -> SimpleNamespace:
        return SimpleNamespace(
            put=lambda key, path, outage_s: put.append((base, key, path.read_text()))
        )

    monkeypatch.setattr("segtrain.bucket.client.client_of", client_of)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/events").write_text("e")
    sent: dict[Path, int] = {}
    for place in ("gs://bkt/job/logs/", "gs://bkt"):
        assert vertex_folders.send(tmp_path, place) == [tmp_path / "run/events"]
    assert put == [("gs://bkt", "job/logs/run/events", "e"), ("gs://bkt", "run/events", "e")]
    for _ in range(2):
        vertex_folders.send(tmp_path, "gs://bkt", sent)
    assert len(put) == 3  # what has not grown is not sent again


def test_event_files_that_cannot_be_copied_stop_nothing(tmp_path, monkeypatch, capsys):
    config, environ = (
        Config.load(None, f"out={tmp_path}"),
        {vertex_folders.EVENTS: str(tmp_path / "there")},
    )
    real, errors = vertex_folders.send, [OSError("full"), KeyError("a mistake")]

    def failing(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(vertex_folders, "send", failing)
    monkeypatch.setattr(vertex_folders, "EVERY_S", 0.01)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/events").write_text("a")
    with vertex_folders.event_files(config, 0, environ):
        while not (tmp_path / "there/events").exists():
            assert any(thread.name == "event-files" for thread in threading.enumerate())
            time.sleep(0.01)
    assert capsys.readouterr().out.count("warning: no event files") == 1
    monkeypatch.setattr(vertex_folders, "EVERY_S", 600.0)
    with vertex_folders.event_files(config, 0, environ):
        (tmp_path / "tensorboard/events").write_text("all")
    assert (tmp_path / "there/events").read_text() == "all"
