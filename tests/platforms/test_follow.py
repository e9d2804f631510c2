"""Tests that following a job shows its events and cost, does not disturb it, stops it gently, and
fetches its files.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.life import Act, Play, play
from cloud.moto import environment, moto_server
from cloud.samples import SPOT, training_job

from launch.platforms.sagemaker.cloud import AwsClients, connect, submit
from launch.platforms.sagemaker.fetch import _tree, unpack
from launch.platforms.sagemaker.follow import follow, stop
from segtrain.errors import SegtrainError
from segtrain.observe.console import step_line

PRICE = 3.6  # $/h of a machine: a tenth of a cent a second
STEP = step_line(120, 1000, 1.5, 10, 0.4321, 1e-3, 61.2, 0.05, 7500)
SCORE = "epoch 1.50  step 120  mIoU 54.10%  pixel accuracy 83.65%  (3.7 s, 10 classes, whole image)"
BUCKET = "results"


@pytest.fixture(scope="module")
def cloud() -> Iterator[CloudEndpoint]:
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    with CloudEndpoint(per_describe=0) as endpoint:  # time goes on where the follower sleeps
        yield endpoint


@pytest.fixture(scope="module")
def clients(cloud: CloudEndpoint) -> Iterator[AwsClients]:
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment(cloud.url, moto_server()).items():
            patch.setenv(key, value)
        found = connect("us-east-1")
        found.s3.create_bucket(Bucket=BUCKET)
        yield found


class Screen:
    """What is said, and a job to say it of."""

    def __init__(self, cloud: CloudEndpoint, clients: AwsClients, folder: Path, name: str) -> None:
        self.cloud, self.clients, self.folder, self.name = cloud, clients, folder, name
        self.said: list[str] = []

    def start(self, acts: Play, **changes: Any) -> Screen:
        self.cloud.plays[self.name] = acts
        submit(self.clients, training_job(self.name, **changes))
        return self

    def follow(
        self, sleep: Callable[[float], None] | None = None, price: float | None = PRICE
    ) -> int:
        return follow(
            self.clients,
            self.name,
            say=self.said.append,
            folder=self.folder,
            price=price,
            poll_s=20,
            now=self.cloud.now,
            sleep=sleep or self.cloud.tick,
        )

    def line(self, word: str) -> str:
        """The only line with the word."""
        (found,) = [line for line in self.said if word in line]
        return found

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def screen(
    cloud: CloudEndpoint, clients: AwsClients, tmp_path: Path, request: pytest.FixtureRequest
) -> Screen:
    return Screen(
        cloud, clients, tmp_path / "run", request.node.name.replace("_", "-")[:50].rstrip("-")
    )


def test_a_whole_life_is_told_in_order(screen):
    lines = [
        ("algo-2", "hello from two"),
        ("algo-1", "hello from one"),
        ("algo-1", STEP),
        ("algo-1", SCORE),
    ]
    screen.start(
        play(
            "Starting", "Downloading", Act("Training", 600, lines=lines), "Uploading", "Completed"
        ),
        hosts=2,
    )
    assert screen.follow() == 0
    places = [
        screen.text.index(word)
        for word in ("Starting: Prep", "Downloading: ", "Training: ", "Uploading: ", "Completed: ")
    ]
    assert places == sorted(places)
    for line in (
        "algo-1 | hello from one",
        "algo-2 | hello from two",
        f"algo-1 | {STEP}",
        f"algo-1 | {SCORE}",
    ):
        assert screen.said.count(line) == 1
    # After the evaluation (450 s into the training, 510 of the download on): two machines at 0.1
    # cent a second.
    status = next(line for line in screen.said if line.startswith("-- ") and "mIoU" in line)
    assert status.startswith(
        "-- Training 7m 40s  step 120/1000  loss 0.4321  61.2 img/s  mIoU 54.10% (step 120)  ETA 2h 05m"
    )
    assert status.endswith("  $1.04 so far")
    # 60 + 600 + 60 seconds of two machines.
    assert (
        screen.line("Completed: ")
        == "Completed: 12m 00s on the machines, 720 billable seconds on each, about $1.44"
    )
    kept = {
        path.name.rsplit("-", 1)[0]: path.read_text() for path in (screen.folder / "logs").iterdir()
    }
    assert kept == {"algo-1": f"hello from one\n{STEP}\n{SCORE}\n", "algo-2": "hello from two\n"}
    assert json.loads((screen.folder / "job.json").read_text())["TrainingJobStatus"] == "Completed"


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(screen):
    screen.start(
        play(
            "Starting",
            Act("Training", 600, lines=[("algo-1", "one"), ("algo-1", "two")]),
            "Completed",
        )
    )
    naps = iter(range(6))

    def sleep(seconds: float) -> None:
        if next(naps) == 5:
            raise KeyboardInterrupt
        screen.cloud.tick(seconds)

    assert screen.follow(sleep) == 130
    assert f"python launch/sagemaker.py --attach {screen.name} --region us-east-1" in screen.line(
        "Come back"
    )
    assert f"--stop {screen.name}" in screen.line("stop it gently")
    assert "StopTrainingJob" not in [
        operation for operation, asked in screen.cloud.calls if screen.name in str(asked)
    ]
    # Coming back shows the log from its beginning, once.
    again = Screen(screen.cloud, screen.clients, screen.folder, screen.name)
    assert again.follow() == 0
    assert [line for line in again.said if line in ("one", "two")] == ["one", "two"]
    (kept,) = (screen.folder / "logs").iterdir()
    assert kept.read_text() == "one\ntwo\n"


def test_coming_back_late_shows_the_end_of_a_long_log_and_keeps_all_of_it(screen):
    lines = [("algo-1", f"line {number}") for number in range(500)]
    screen.start(
        play(Act("Training", 60, lines=lines), Act("Training", 60, lines=lines[:100]), "Completed")
    )
    screen.cloud.tick(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen.cloud, "page", 7)  # a long log comes in many answers
        screen.follow()
    (kept,) = (screen.folder / "logs").iterdir()
    assert kept.read_text().splitlines() == [line for _, line in [*lines, *lines[:100]]]
    assert f"461 earlier lines are in {kept}" in screen.line("earlier")
    # later ones are all shown
    assert sum(line.startswith("line ") for line in screen.said) == 40 + 99


def test_a_spot_interruption_is_told_and_so_is_what_spot_saved(screen):
    life = play(
        "Starting",
        Act("Training", 100, lines=[("algo-1", "before")]),
        Act("Interrupted", 1800),
        "Downloading",
        Act("Training", 140, lines=[("algo-1", "after")]),
        "Completed",
    )
    screen.start(life, **SPOT)
    assert screen.follow() == 0
    assert (
        screen.text.index("before")
        < screen.text.index("took the spot machines back")
        < screen.text.index("after")
    )
    waits = [line for line in screen.said if "no free machines yet" in line]
    assert all("-- Interrupted" in line and "at most $0.10 so far" in line for line in waits)
    assert waits
    assert screen.line("Completed: ").endswith(
        "5m 00s on the machines, 90 billable seconds on each (spot saved 70%), about $0.09"
    )
    assert len(list((screen.folder / "logs").iterdir())) == 2  # a stream for each start


def test_a_gentle_stop_is_followed_to_its_end(screen):
    screen.start(
        play("Starting", Act("Training", 9999), "Completed"),
        CheckpointConfig=SPOT["CheckpointConfig"],
    )
    screen.cloud.tick(100)
    words: list[str] = []
    assert stop(screen.clients, screen.name, words.append) == 0
    assert "120 s" in words[0]
    assert "--checkpoints s3://results/checkpoints/" in words[1]
    assert f"--attach {screen.name}" in words[2]
    assert stop(screen.clients, screen.name, words.append) == 0
    assert "is stopping already" in words[3]
    assert screen.follow() == 75
    assert "--checkpoints s3://results/checkpoints/ goes on" in screen.line("state ")
    assert stop(screen.clients, screen.name, words.append) == 0
    assert "has ended already (Stopped)" in words[-1]


def test_a_stop_of_an_unknown_job_is_an_error(clients):
    with pytest.raises(
        SegtrainError, match=r"StopTrainingJob of nobody: ValidationException.*--region"
    ):
        stop(clients, "nobody", pytest.fail)


def test_a_network_that_goes_away_for_a_while_is_waited_for(screen):
    screen.start(play("Starting", Act("Training", 60, lines=[("algo-1", "here")]), "Completed"))

    def sleep(seconds: float) -> None:
        if screen.cloud.clock == start + 20:  # five attempts of boto3 and one look more
            screen.cloud.refuse("DescribeTrainingJob", "InternalFailure", times=6, status=500)
        screen.cloud.tick(seconds)

    start = screen.cloud.clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda seconds: None)  # boto3's pauses
        assert screen.follow(sleep) == 0
    assert "the job goes on" in screen.line("AWS does not answer")
    assert "here" in screen.said


def test_credentials_that_expire_end_the_following_not_the_job(screen):
    screen.start(play("Starting", Act("Training", 60), "Completed"))

    def sleep(seconds: float) -> None:
        screen.cloud.refuse("DescribeTrainingJob", "ExpiredTokenException", "expired")
        screen.cloud.tick(seconds)

    with pytest.raises(
        SegtrainError, match=rf"aws sso login.*the job goes on.*--attach {screen.name}"
    ):
        screen.follow(sleep)
    with pytest.raises(SegtrainError, match=r"nobody: ValidationException.*--region") as caught:
        follow(screen.clients, "nobody", say=screen.said.append, folder=screen.folder)
    assert "goes on" not in str(caught.value)


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_model_report_and_profile_come_home(screen):
    profiler = {"S3OutputPath": f"s3://{BUCKET}/segtrain", "ProfilingIntervalInMilliseconds": 500}
    screen.start(play("Starting", "Training", "Completed"), ProfilerConfig=profiler)
    place = f"segtrain/{screen.name}"
    put = screen.clients.s3.put_object
    put(
        Bucket=BUCKET,
        Key=f"{place}/output/model.tar.gz",
        Body=archive(model_safetensors=b"weights", sub__labels_json=b"{}"),
    )
    put(
        Bucket=BUCKET,
        Key=f"{place}/output/output.tar.gz",
        Body=archive(data__report_html=b"<html>"),
    )
    traces = [
        f"system/incremental/2027011508/{minute}.algo-1.json" for minute in (1800000060, 1800000120)
    ]
    for trace in traces:
        put(Bucket=BUCKET, Key=f"{place}/profiler-output/{trace}", Body=b"{}\n")
    put(Bucket=BUCKET, Key=f"{place}-2/profiler-output/not-mine.json", Body=b"{}\n")
    assert screen.follow() == 0
    files = {
        str(path.relative_to(screen.folder)) for path in screen.folder.rglob("*") if path.is_file()
    }
    assert files - {path for path in files if path.startswith("logs/")} == {
        *(
            "job.json",
            "model/model.safetensors",
            "model/sub/labels.json",
            "output/data/report.html",
        ),
        *(f"profile/{trace}" for trace in traces),
    }
    assert (screen.folder / "model/model.safetensors").read_bytes() == b"weights"


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(archive(good=b"1", **{"..__evil": b"2"}))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    assert unpack(tmp_path / "b.tar.gz", tmp_path / "b") == 0
    with pytest.raises(ValueError, match=r"\.\./evil"):
        unpack(tmp_path / "c.tar.gz", tmp_path / "c")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../up"])
def test_a_key_that_leaves_the_folder_is_not_fetched(name, tmp_path):
    page = {"Contents": [{"Key": f"job/profiler-output/{name}"}]}
    pages = SimpleNamespace(paginate=lambda **_: [page])
    clients: Any = SimpleNamespace(s3=SimpleNamespace(get_paginator=lambda _: pages))
    with pytest.raises(ValueError, match="outside the folder"):
        _tree(clients, "s3://results/job/profiler-output/", tmp_path)
