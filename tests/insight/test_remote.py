"""Tests that a run in S3 or of a SageMaker job is reported like a local one, from its small files
only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer, Handler
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment
from cloud.samples import training_job
from conftest import refused

from segtrain.insight.runs import remote
from segtrain.insight.runs.bucket import HEAD, Object, WantedFile, fetch
from segtrain.insight.runs.weights import with_weights
from segtrain.installed import run_services
from segtrain.observe.profile_format import ProfileWriter, Value, read_profile

local = partial(remote.local, services=run_services())
rows = partial(remote.rows, services=run_services())

JOB = "segtrain-2026-11-21-03-56-05-089"
TINY = "data.scenes=9 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 parallel.procs=1 parallel.threads=1 data.workers=0"
BIG = b"\0" * (4 << 20)


@pytest.fixture(scope="module")
def trained(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder without a profile of its own, some seconds long."""
    run = tmp_path_factory.mktemp("remote") / "street"
    process = zygote.start(
        "train",
        *TINY.split(),
        f"out={run}",
        "train.duration=120st",
        "log.profile_ms=0",
        "log.pictures=2",
    )
    assert process.wait() == 0, process.output
    (run / "checkpoints/step-00099999.pt").write_bytes(BIG)
    time_anew(run)
    return run


def time_anew(run: Path, later: float = 0.0) -> None:
    """All times of its records by a clock that nobody sets: this machine's may have been set while
    it trained.
    """
    spans = run / "spans/rank-00000.jsonl"
    events, windows = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (run / "journal.jsonl", spans)
    )
    start, passed = events[0]["ts"] + later, 0.0
    for window in windows:  # the first line has no seconds, and the time of the first window
        window["ts"] = start + passed
        passed += window.get("seconds", 0.0)
    for k, event in enumerate(events):
        event["ts"] = start + passed * k / (len(events) - 1)
    for file, lines in ((run / "journal.jsonl", events), (spans, windows)):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_profile(folder: Path, run: Path, hosts: int = 1) -> None:
    """Of the time of the run, as the platform writes it, and of an hour before, which is another
    job's.
    """
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for host in range(1, hosts + 1):
        writer = ProfileWriter(folder, f"algo-{host}")
        for start, value in ((events[0]["ts"] - 3600, 1.0), (events[0]["ts"], 75.0)):
            for second in range(int(events[-1]["ts"] - events[0]["ts"]) + 2):
                values = [Value("cpu", f"cpu{core}", "CPUUtilization", value) for core in range(3)]
                writer.write(
                    start + second, [*values, Value("memory", "MemoryUsedPercent", "", 12.0)]
                )
        writer.close()


@pytest.fixture
def here(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bucket ``here``, as a folder."""
    for key, value in {**environment(), **server.environment()}.items():
        monkeypatch.setenv(key, value)
    (server.folder / "here").mkdir()
    return server.folder / "here"


@pytest.fixture
def job(
    here: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A job as the launcher starts it: the run at one prefix, the platform's profile at another.

    Both in a folder, to compare.
    """
    boto3 = pytest.importorskip(
        "boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'"
    )
    both = tmp_path / "both"
    shutil.copytree(trained, both / "street")
    write_profile(both / "profiler-output", trained)
    shutil.copytree(both / "street", here / "checkpoints/street")
    shutil.copytree(both / "profiler-output", here / f"segtrain/{JOB}/profiler-output")
    (here / f"segtrain/{JOB}/sourcedir.tar.gz").write_bytes(BIG)
    with CloudEndpoint() as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", cloud.url)
        request = training_job(
            JOB,
            OutputDataConfig={"S3OutputPath": "s3://here/segtrain/"},
            CheckpointConfig={
                "S3Uri": "s3://here/checkpoints/street/",
                "LocalPath": "/opt/ml/checkpoints",
            },
            ProfilerConfig={
                "S3OutputPath": "s3://here/segtrain",
                "ProfilingIntervalInMilliseconds": 500,
            },
        )
        boto3.client("sagemaker").create_training_job(**request)
        yield both


def read(place: str) -> Path:
    """The local copy of a run."""
    return local(place, lambda text: None).folder


def nodes(folder: Path) -> set[str]:
    return {series.node for series in read_profile(folder)}


def fetched(said: str) -> int:
    (count,) = re.findall(r"to fetch: (\d+) ", said)
    return int(count)


def test_a_jobs_run_is_told_of_as_on_a_disk_and_no_checkpoint_is_fetched(
    job, server, segtrain, tmp_path
):
    there = segtrain("diagnose", f"sagemaker:{JOB}", "--json")
    asked = [Path(path).name for path, _ in server.asked]
    here = segtrain("diagnose", job, "--json")
    assert there.returncode == here.returncode == 0, there.stderr + here.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert json.loads(there.stdout)["facts"]["steps"] > 0

    assert {"journal.jsonl", "rank-00000.jsonl"} <= {*asked}
    assert not [name for name in asked if name.endswith((".pt", ".tar.gz"))]
    began = json.loads((job / "street/journal.jsonl").read_text().splitlines()[0])["ts"]
    minutes = [int(name.split(".")[0]) for name in asked if "algo-1" in name]
    assert minutes
    assert min(minutes) > began - 1800  # not those of an hour before

    page = segtrain("report", f"sagemaker:{JOB}")
    assert (page.returncode, page.stdout) == (0, f"{JOB}-report.html\n"), page.stderr
    assert fetched(page.stderr) == 0
    assert "no system profile" not in (tmp_path / f"{JOB}-report.html").read_text()


def test_an_arn_names_the_region(job, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "us-east-1")  # of something else
    with refused("aws-settings"):
        local(f"sagemaker:{JOB}")
    copy = read(f"arn:aws:sagemaker:eu-west-1:123456789012:training-job/{JOB}")
    region = os.environ.pop("AWS_REGION")
    assert region == "eu-west-1"
    assert (copy / "journal.jsonl").read_bytes() == (job / "street/journal.jsonl").read_bytes()


def test_one_prefix_over_both_parts_is_enough(job):
    assert nodes(read("s3://here")) == {"algo-1"}
    assert not list(read("s3://here/checkpoints/street/").rglob("*.algo-1.json"))  # the run alone


def test_of_two_profiles_the_runs_own_is_taken(here, trained):
    shutil.copytree(trained, here / "job/run")
    write_profile(here / "job/run/profile", trained, hosts=2)
    write_profile(here / "job/profiler-output", trained)
    assert local("s3://here/job", lambda text: None).stem == "run"
    assert nodes(read("s3://here/job")) == {"algo-1", "algo-2"}
    shutil.rmtree(here / "job/run/profile")
    assert nodes(read("s3://here/job")) == {"algo-1"}


def test_only_what_changed_is_fetched_again_and_what_went_goes(here, trained):
    said: list[str] = []
    run = here / "street"
    shutil.copytree(trained, run)
    copy = local("s3://here/street", said.append).folder
    kept = (copy / "journal.jsonl").read_bytes()
    assert kept == (run / "journal.jsonl").read_bytes()
    # Its age shows whether the run is alive.
    assert (copy / "journal.jsonl").stat().st_mtime == int((run / "journal.jsonl").stat().st_mtime)
    assert (copy / "images-last.csv").read_bytes() == (run / "images-last.csv").read_bytes()

    (run / "best.json").write_bytes(b'{"step": 7}')
    (run / "journal.jsonl").write_bytes(kept[:-1] + b" ")  # of the same size
    picture = next(run.glob("pictures/*.png"))
    picture.unlink()
    (copy / "labels.json").unlink()  # by whoever cleans the cache
    assert local("s3://here/street", said.append).folder == copy
    assert (copy / "best.json").read_bytes() == b'{"step": 7}'
    assert (copy / "journal.jsonl").read_bytes() == kept[:-1] + b" "
    assert (copy / "labels.json").is_file()
    assert not (copy / "pictures" / picture.name).exists()
    local("s3://here/street", said.append)
    assert [fetched(text) for text in said[1:]] == [2, 0]  # beside the journal, which comes first


def test_the_runs_below_a_prefix(here, trained, segtrain):
    for name in ("runs/run-1", "runs/run-10", "runs/old/run-1"):
        shutil.copytree(trained, here / name)
    table = segtrain("runs", "s3://here/runs", "--json")
    found = [json.loads(line) for line in table.stdout.splitlines()]
    assert {row["out"] for row in found} == {
        f"s3://here/runs/{n}" for n in ("run-1", "run-10", "old/run-1")
    }
    (expected,) = rows(str(trained))
    assert [{**row, "out": "", "name": ""} for row in found] == 3 * [
        {**expected, "out": "", "name": ""}
    ]
    assert {row["name"] for row in found} == {"run-1", "run-10"}  # of the folder, as on a disk
    assert len(rows("s3://here/runs/run-1", lambda text: None)) == 1  # not those of run-10
    with refused("several-runs", found=3):
        read("s3://here/runs")
    # A run inside the folder of another one: the prefix names the outer run.
    shutil.copytree(trained, here / "runs/run-1/again")
    weights = with_weights("s3://here/runs/run-1", "last", lambda text: None, run_services())
    assert (weights / "config.yaml").is_file()


def test_a_profile_of_a_host_whose_clock_is_ahead_of_the_stores(here, trained):
    shutil.copytree(trained, here / "ahead")
    time_anew(here / "ahead", later=600.0)  # more than the run takes
    write_profile(here / "ahead/profile", here / "ahead")
    assert nodes(read("s3://here/ahead")) == {"algo-1"}


def test_a_run_that_lies_in_the_jobs_archive(here, trained, monkeypatch):
    """A job without a prefix for its checkpoints; some of its names point outside the folder."""
    place, path = f"s3://here/segtrain/{JOB}", here / f"segtrain/{JOB}/output/output.tar.gz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, mode="w:gz") as tar:
        tar.add(trained, "run")
        tar.add(trained / "best.json", "run/spans/../../../../evil.json")
        tar.add(trained / "best.json", "/tmp/segtrain-evil/best.json")
    write_profile(here / f"segtrain/{JOB}/profiler-output", trained)
    for _ in range(2):
        copy = read(place)
        names = {
            path.relative_to(copy / "unpacked").as_posix()
            for path in (copy / "unpacked").rglob("*.*")
        }
        assert {
            "journal.jsonl",
            "config.yaml",
            "best.json",
            "images-last.csv",
            "spans/rank-00000.jsonl",
        } <= names
        assert not [name for name in names if name.endswith(".pt") or "evil" in name]
        assert nodes(copy) == {"algo-1"}

    path.write_bytes(path.read_bytes()[:1000])
    with refused("archive-torn"):
        local(place)
    path.write_bytes(BIG)
    monkeypatch.setattr(remote, "MOST_ARCHIVE", 1 << 20)
    with refused("archive-too-large", found=len(BIG)):
        local(place)


def test_of_what_is_too_large_a_part_is_fetched_and_said(here, trained, monkeypatch):
    run = here / "long"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("pictures"))
    (run / "pictures").mkdir()
    for step in (1, 2, 3):
        (run / f"pictures/step-{step}.png").write_bytes(b"x" * 1000)
    start = json.loads((run / "journal.jsonl").read_text().splitlines()[0])["ts"] // 60 * 60
    for node in ("algo-1", "algo-2"):
        writer = ProfileWriter(run / "profile", node)
        for minute in range(12):
            writer.write(start + 60 * minute, [Value("cpu", "cpu0", "CPUUtilization", minute)])
        writer.close()
    lines = [
        json.dumps({"event": "step", "ts": start + k, "step": k}).encode() for k in range(20_000)
    ]
    (run / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for name, most in {"MOST_LINES": 200_000, "MOST_PROFILE": 900, "MOST_PICTURES": 2500}.items():
        monkeypatch.setattr(remote, name, most)
    monkeypatch.setattr(remote, "_MARGIN_S", 3600)
    said: list[str] = []
    copy = local("s3://here/long", said.append).folder
    # Of lines the first and the newest, all whole.
    kept = (copy / "journal.jsonl").read_bytes().splitlines()
    first = next(k for k, line in enumerate(kept) if line != lines[k])
    assert 500 < first < len(kept) - 1000
    assert kept[first:] == lines[-(len(kept) - first) :]
    assert sorted(path.name for path in copy.glob("pictures/*")) == ["step-2.png", "step-3.png"]
    # Of a profile the same minutes of all hosts, evenly.
    size = sum(path.stat().st_size for path in run.glob("profile/**/*.json"))
    every = -(-size // 900)
    times = {
        series.node: [ts // 60 for ts in track.times]
        for series, track in read_profile(copy).items()
    }
    first_minute = int(start // 60)
    expected = [minute for minute in range(first_minute, first_minute + 12) if minute % every == 0]
    assert times["algo-1"] == times["algo-2"] == expected
    assert sum(text.startswith("warning: ") for text in said) == 2


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("s3://absent-bucket/run", "bucket-missing"),
        ("s3://here/nothing", "no-objects"),
        ("s3://here/data", "no-run"),
        ("s3://", "bucket-name-missing"),
        ("ftp://bucket/run", "unknown-place"),
        ("sagemaker:absent", "no-training-job"),
        ("arn:aws:sagemaker:eu-west-1:1:endpoint/a", "unknown-place"),
    ],
)
def test_a_place_without_a_run_is_refused(job, here, place, code):
    (here / "data").mkdir()
    (here / "data/a.png").write_bytes(b"x")
    with refused(code):
        local(place)


def test_a_job_that_cannot_be_asked_for_is_refused(here, monkeypatch):
    with refused("aws-unreachable"):
        local(f"sagemaker:{JOB}")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with refused("aws-settings"):
        local(f"sagemaker:{JOB}")


def test_a_failing_bucket_of_google_is_read_and_each_refusal_named(trained, server, monkeypatch):
    place = "gs://bkt/runs/street"
    shutil.copytree(trained, server.folder / "bkt/runs/street")
    write_profile(server.folder / "bkt/runs/street/profile", trained)
    server.fault = 0.1
    found = local(place, lambda text: None)
    assert (found.shown, found.stem) == (place, "street")
    assert (found.folder / "journal.jsonl").read_bytes() == (trained / "journal.jsonl").read_bytes()
    assert nodes(found.folder) == {"algo-1"}
    assert [row["out"] for row in rows("gs://bkt/runs", lambda text: None)] == [place]
    server.fault, server.status = 0.0, 403
    with refused("bucket-denied"):
        local(place)
    server.status, server.down = 0, True
    monkeypatch.setattr("segtrain.insight.runs.bucket.OUTAGE_S", 0.1)
    with refused("bucket-unreachable", file=place):
        local(place)


def test_keys_that_leave_the_folder_are_left_out():
    names = ["config.yaml", "data/../../../evil", "../evil", "data//x", "./x", "data/a..b"]
    objects = [Object("s3://bkt", f"runs/a/{name}", 1, "", 0.0) for name in names]
    assert set(remote.inside(objects, "s3://bkt/runs/a")) == {"config.yaml", "data/a..b"}


@pytest.mark.parametrize("more", [-5, HEAD - 5, HEAD + 5])
def test_lines_of_a_large_file_come_once(server, tmp_path, more):
    most = HEAD // 2
    content = "".join(f"{k:015d}\n" for k in range((most + more) // 16 + 1)).encode()[: most + more]
    (server.folder / "bkt/journal.jsonl").write_bytes(content)
    wanted = WantedFile(Object("s3://bkt", "journal.jsonl", len(content), "", 0.0), most)
    fetch(wanted, tmp_path / "got")
    lines, kept = content.splitlines(), (tmp_path / "got").read_bytes().splitlines()
    if more <= HEAD:
        assert kept == lines
    else:
        assert kept == [line for line in lines if line in {*kept}]
        assert kept[0] == lines[0]
        assert len(kept) == len(lines) - 1
    assert wanted.bytes == (most if more > HEAD else len(content))


def test_both_ends_of_a_large_file_are_of_one_version(server, tmp_path, monkeypatch):
    """The object is replaced after its first bytes were read."""
    old, new = ([f"{word} {k:09d}".encode() for k in range(6000)] for word in ("old", "new"))
    path = server.folder / "bkt/journal.jsonl"
    path.write_bytes(b"\n".join(old) + b"\n")
    answer = Handler.answer

    def replaced(self: Handler, body: bytes) -> Any:
        found = answer(self, body)
        if path.read_bytes().startswith(b"old"):
            path.write_bytes(b"\n".join(new) + b"\n")
        return found

    monkeypatch.setattr(Handler, "answer", replaced)
    fetch(
        WantedFile(Object("s3://bkt", "journal.jsonl", path.stat().st_size, "", 0.0), 1000),
        tmp_path / "got",
    )
    kept = (tmp_path / "got").read_bytes().splitlines()
    assert (kept[0], kept[-1]) == (new[0], new[-1])
    assert set(kept) <= set(new)


def test_a_cache_that_cannot_be_written_is_said(here, tmp_path, monkeypatch):
    (here / "best.json").write_text("{}")
    (tmp_path / "in-the-way").write_text("")
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "in-the-way"))
    with refused("cache-unwritable"):
        local("s3://here")
    target = tmp_path / "in-the-way/best.json"
    with refused("cache-unwritable", file=str(target)):
        fetch(WantedFile(Object("s3://here", "best.json", 2, "", 0.0), 1000), target)
