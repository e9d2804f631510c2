"""Tests that a run in S3 or of a SageMaker job is reported like a local one, from its small files only."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer, _Handler
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment, moto_server
from cloud.samples import training_job
from conftest import refused

from segtrain.observe.profile_format import ProfileWriter, Value, read_profile
from segtrain.runs import remote
from segtrain.runs.bucket import HEAD, Account, Object, WantedFile
from segtrain.runs.reader import LIST_COMMANDS, BucketReader, print_command, to_read_all_of
from segtrain.runs.remote import local, rows

JOB = "segtrain-2026-11-21-03-56-05-089"
TINY = "data.scenes=9 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 parallel.procs=1 parallel.threads=1 data.workers=0"
BIG = b"\0" * (4 << 20)


@pytest.fixture(scope="module")
def trained(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder without a profile of its own, some seconds long."""
    run = tmp_path_factory.mktemp("remote") / "street"
    process = zygote.start(
        "train", *TINY.split(), f"out={run}", "train.duration=120st", "log.profile_ms=0", "log.pictures=2"
    )
    assert process.wait() == 0, process.output
    (run / "checkpoints/step-00099999.pt").write_bytes(BIG)
    time_anew(run)
    return run


def time_anew(run: Path, later: float = 0.0) -> None:
    """All times of its records by a clock that nobody sets: this machine's may have been set while it trained."""
    spans = run / "spans/rank-00000.jsonl"
    events, windows = (
        [json.loads(line) for line in file.read_text().splitlines()] for file in (run / "journal.jsonl", spans)
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
    """Of the time of the run, as the platform writes it, and of an hour before, which is another job's."""
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for host in range(1, hosts + 1):
        writer = ProfileWriter(folder, f"algo-{host}")
        for start, value in ((events[0]["ts"] - 3600, 1.0), (events[0]["ts"], 75.0)):
            for second in range(int(events[-1]["ts"] - events[0]["ts"]) + 2):
                values = [Value("cpu", f"cpu{core}", "CPUUtilization", value) for core in range(3)]
                writer.write(start + second, [*values, Value("memory", "MemoryUsedPercent", "", 12.0)])
        writer.close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Any:
    for key, value in environment(moto=moto_server()).items():
        monkeypatch.setenv(key, value)
    import boto3

    store = boto3.client("s3")
    store.create_bucket(Bucket="here")
    return store


def put(s3: Any, folder: Path, prefix: str, bucket: str = "here") -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{path.relative_to(folder).as_posix()}", Body=path.read_bytes())


@pytest.fixture
def job(s3: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job as the launcher starts it: the run at one prefix, the platform's profile at another.

    Both in a folder, to compare.
    """
    import boto3

    both = tmp_path / "both"
    shutil.copytree(trained, both / "street")
    write_profile(both / "profiler-output", trained)
    put(s3, both / "street", "checkpoints/street")
    put(s3, both / "profiler-output", f"segtrain/{JOB}/profiler-output")
    s3.put_object(Bucket="here", Key=f"segtrain/{JOB}/source/sourcedir.tar.gz", Body=BIG)
    with CloudEndpoint() as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", cloud.url)
        request = training_job(
            JOB,
            OutputDataConfig={"S3OutputPath": "s3://here/segtrain/"},
            CheckpointConfig={"S3Uri": "s3://here/checkpoints/street/", "LocalPath": "/opt/ml/checkpoints"},
            ProfilerConfig={"S3OutputPath": "s3://here/segtrain", "ProfilingIntervalInMilliseconds": 500},
        )
        boto3.client("sagemaker").create_training_job(**request)
        yield both


def recorded(verb: str) -> str:
    """moto's record of what it was asked: ``start-recording``, ``download-recording``."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/recorder/{verb}"
    with urllib.request.urlopen(urllib.request.Request(url, method="GET" if "download" in verb else "POST")) as answer:
        return str(answer.read().decode())


def fetched(said: str) -> int:
    (count,) = re.findall(r"to fetch: (\d+) ", said)
    return int(count)


def test_a_jobs_run_is_told_of_as_on_a_disk_and_no_checkpoint_is_fetched(
    job: Path, segtrain: Callable[..., Any], tmp_path: Path
) -> None:
    recorded("reset-recording")
    recorded("start-recording")
    there = segtrain("diagnose", f"sagemaker:{JOB}", "--json")
    recorded("stop-recording")
    here = segtrain("diagnose", job, "--json")
    assert there.returncode == here.returncode == 0, there.stderr + here.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert json.loads(there.stdout)["facts"]["steps"] > 0
    assert "other files" in there.stderr
    assert "MB) stay there" in there.stderr

    asked = recorded("download-recording")
    assert "journal.jsonl" in asked
    assert "algo-1.json" in asked
    assert ".pt" not in asked
    assert "sourcedir" not in asked
    (copy,) = Path(os.environ["SEGTRAIN_CACHE"], "remote").iterdir()
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    began = json.loads((job / "street/journal.jsonl").read_text().splitlines()[0])["ts"]
    minutes = [int(path.name.split(".")[0]) for path in files if "algo-1" in path.name]
    assert minutes
    assert min(minutes) > began - 1800  # not those of an hour before

    page = segtrain("report", f"sagemaker:{JOB}")
    assert (page.returncode, page.stdout) == (0, f"{JOB}-report.html\n"), page.stderr
    assert fetched(page.stderr) == 0
    text = (tmp_path / f"{JOB}-report.html").read_text()
    assert "no system profile" not in text
    assert f"from sagemaker:{JOB}" in text

    assert f"sagemaker:{JOB}: bound by" in segtrain("diagnose", f"sagemaker:{JOB}").stdout
    arn = f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{JOB}"
    assert segtrain("diagnose", arn, "--json", AWS_DEFAULT_REGION="").stdout == there.stdout

    differ = segtrain("diff", "s3://here/checkpoints/street", job / "street")
    assert differ.returncode == 0, differ.stderr
    assert "Config, environment, and data are equal" in differ.stdout


def test_one_prefix_over_both_parts_is_enough(job: Path, segtrain: Callable[..., Any]) -> None:
    there = segtrain("diagnose", "s3://here", "--json")
    assert there.stdout == segtrain("diagnose", job, "--json").stdout, there.stderr
    alone = segtrain("diagnose", "s3://here/checkpoints/street/", "--json")  # the run without the platform's profile
    assert alone.stdout == segtrain("diagnose", job / "street", "--json").stdout, alone.stderr


def test_of_two_profiles_the_runs_own_is_taken(s3: Any, trained: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(trained, both / "run")
    write_profile(both / "run/profile", trained, hosts=2)
    write_profile(both / "profiler-output", trained)
    put(s3, both, "job")
    place = local("s3://here/job", lambda text: None)
    assert (place.shown, place.stem) == ("s3://here/job", "run")
    copy = place.folder
    own = {name.name for name in (both / "run/profile").rglob("*.json")}
    kept = [path.name for path in (copy / "profile").rglob("*.json")]
    assert len(kept) == len(set(kept)) > 0
    assert set(kept) <= own
    assert {series.node for series in read_profile(copy)} == {"algo-1", "algo-2"}
    for path in (both / "run/profile").rglob("*.json"):
        s3.delete_object(Bucket="here", Key=f"job/{path.relative_to(both).as_posix()}")
    assert {series.node for series in read_profile(local("s3://here/job", lambda text: None).folder)} == {"algo-1"}


def test_only_what_changed_is_fetched_again_and_what_went_goes(s3: Any, job: Path) -> None:
    said: list[str] = []
    place = "s3://here/checkpoints/street"
    copy = local(place, said.append).folder
    kept = (copy / "journal.jsonl").read_bytes()
    assert kept == (job / "street/journal.jsonl").read_bytes()
    modified = s3.head_object(Bucket="here", Key="checkpoints/street/journal.jsonl")["LastModified"].timestamp()
    assert (copy / "journal.jsonl").stat().st_mtime == modified  # whether it lives is seen by that
    assert (copy / "images-last.csv").read_bytes() == (job / "street/images-last.csv").read_bytes()

    s3.put_object(Bucket="here", Key="checkpoints/street/best.json", Body=b'{"step": 7}')
    s3.put_object(Bucket="here", Key="checkpoints/street/journal.jsonl", Body=kept[:-1] + b" ")  # of the same size
    (name,) = [path.name for path in copy.glob("pictures/*.png")][:1]
    s3.delete_object(Bucket="here", Key=f"checkpoints/street/pictures/{name}")
    (copy / "labels.json").unlink()  # by whoever cleans the cache
    assert local(place, said.append).folder == copy
    assert (copy / "best.json").read_bytes() == b'{"step": 7}'
    assert (copy / "journal.jsonl").read_bytes() == kept[:-1] + b" "
    assert (copy / "labels.json").is_file()
    assert not (copy / "pictures" / name).exists()
    local(place, said.append)
    assert [fetched(text) for text in said[1:]] == [2, 0]  # beside the journal, which comes first


def test_the_runs_below_a_prefix(s3: Any, trained: Path, segtrain: Callable[..., Any]) -> None:
    for name in ("runs/run-1", "runs/run-10", "runs/old/run-1"):
        put(s3, trained, name)
    table = segtrain("runs", "s3://here/runs", "--json")
    found = [json.loads(line) for line in table.stdout.splitlines()]
    assert {row["out"] for row in found} == {f"s3://here/runs/{n}" for n in ("run-1", "run-10", "old/run-1")}
    (expected,) = rows(str(trained))
    assert [{**row, "out": "", "name": ""} for row in found] == 3 * [{**expected, "out": "", "name": ""}]
    assert {row["name"] for row in found} == {"run-1", "run-10"}  # of the folder, as on a disk
    assert "120/120" in segtrain("runs", "s3://here/runs/run-1").stdout
    assert len(rows("s3://here/runs/run-1", lambda text: None)) == 1  # not those of run-10

    several = segtrain("diagnose", "s3://here/runs")
    assert several.returncode == 2
    assert several.stderr.count("\n") == 1
    assert "has 3 runs: name one of s3://here/runs/old/run-1, s3://here/runs/run-1," in several.stderr


def test_a_profile_of_a_host_whose_clock_is_ahead_of_the_stores(s3: Any, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "ahead"
    shutil.copytree(trained, run)
    time_anew(run, later=600.0)  # more than the run takes
    write_profile(run / "profile", run)
    put(s3, run, "ahead")
    copy = local("s3://here/ahead", lambda text: None).folder
    assert {series.node for series in read_profile(copy)} == {"algo-1"}


def test_a_run_that_lies_in_the_jobs_archive(
    s3: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job without a prefix for its checkpoints; some of its names point outside the folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(trained, "run")
        tar.add(trained / "best.json", "run/spans/../../../../evil.json")
        tar.add(trained / "best.json", "/tmp/segtrain-evil/best.json")
    s3.put_object(Bucket="here", Key=f"segtrain/{JOB}/output/output.tar.gz", Body=archive.getvalue())
    write_profile(tmp_path / "platform", trained)
    put(s3, tmp_path / "platform", f"segtrain/{JOB}/profiler-output")
    for _ in range(2):
        copy = local(f"s3://here/segtrain/{JOB}", lambda text: None).folder
        names = {path.relative_to(copy / "unpacked").as_posix() for path in (copy / "unpacked").rglob("*.*")}
        assert {"journal.jsonl", "config.yaml", "best.json", "images-last.csv", "spans/rank-00000.jsonl"} <= names
        assert not [name for name in names if name.endswith(".pt") or "evil" in name]
        assert {series.node for series in read_profile(copy)} == {"algo-1"}

    archive.truncate(1000)
    s3.put_object(Bucket="here", Key=f"segtrain/{JOB}/output/output.tar.gz", Body=archive.getvalue())
    with refused("archive-torn"):
        local(f"s3://here/segtrain/{JOB}", lambda text: None)
    s3.put_object(Bucket="here", Key=f"segtrain/{JOB}/output/output.tar.gz", Body=BIG)
    monkeypatch.setattr(remote, "MOST_ARCHIVE", 1 << 20)
    with refused("archive-too-large", found=len(BIG)):
        local(f"s3://here/segtrain/{JOB}", lambda text: None)


def test_of_what_is_too_large_a_part_is_fetched_and_said(
    s3: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "long"
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
    lines = [json.dumps({"event": "step", "ts": start + k, "step": k}).encode() for k in range(20_000)]
    (run / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    put(s3, run, "long")
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
    times = {series.node: [ts // 60 for ts in track.times] for series, track in read_profile(copy).items()}
    assert (
        times["algo-1"]
        == times["algo-2"]
        == [m for m in range(int(start // 60), int(start // 60) + 12) if m % every == 0]
    )
    text = "\n".join(said)
    assert f"{every - 1} of {every} minutes are left out" in text
    assert "aws s3 sync s3://here/long/profile FOLDER" in text
    assert "journal.jsonl has" in text


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://absent-bucket/run", r"s3://absent-bucket/run: NoSuchBucket: .*aws s3 ls"),
        ("s3://here/nothing", r"s3://here/nothing: there are no objects below s3://here/nothing/: "),
        ("s3://here/data", r"s3://here/data has 1 objects and no run .*sagemaker:JOB"),
        ("s3://secret/street", r"s3://secret/street/journal.jsonl: 403: .*s3:GetObject.*AWS_PROFILE"),
        ("s3://B/run", r"s3://B/run: .*[Bb]ucket"),
        ("s3://", r"'s3://' is not a place in S3"),
        ("ftp://bucket/run", r"ftp://bucket/run: .*name a folder, s3://BUCKET/PREFIX"),
        ("https://bucket/run", r"https://bucket/run: .*name a folder, s3://BUCKET/PREFIX"),
        ("sagemaker:absent", r"sagemaker:absent: there is no such training job in us-east-1: .*AWS_DEFAULT_REGION"),
        ("arn:aws:sagemaker:eu-west-1:1:endpoint/a", r".*training-job/NAME"),
    ],
)
def test_each_refusal_is_one_line_with_its_cure(
    s3: Any, job: Path, segtrain: Callable[..., Any], place: str, said: str
) -> None:
    s3.put_object(Bucket="here", Key="data/a.png", Body=b"x")
    s3.create_bucket(Bucket="secret")
    put(s3, job / "street", "street", "secret")
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::secret/*"}
    s3.put_bucket_policy(Bucket="secret", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    done = segtrain("diagnose", place)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert re.match(f"error: .*{said}", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, r"no AWS credentials were found .*AWS_PROFILE"),
        ({"AWS_PROFILE": "nobody"}, r"AWS_PROFILE: .*nobody"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, r"AWS cannot be reached .*AWS_ENDPOINT_URL"),
    ],
)
def test_who_cannot_ask_is_told_what_to_set(
    s3: Any, segtrain: Callable[..., Any], changes: dict[str, str], said: str
) -> None:
    done = segtrain("diagnose", "s3://here/run", **changes)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.match(f"error: s3://here/run: {said}", done.stderr), done.stderr


@pytest.fixture
def guarded(s3: Any) -> Iterator[dict[str, str]]:
    """moto looks at keys and rights from here on; the keys of a user without any right."""
    import boto3

    iam = boto3.client("iam")
    iam.create_user(UserName="guest")
    made = iam.create_access_key(UserName="guest")["AccessKey"]

    def guard(after: str) -> None:
        url = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
        plain = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(url, after.encode(), plain, method="POST")):
            pass

    guard("0")
    yield {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    guard("inf")


def test_whose_keys_do_not_fit_is_told_so(guarded: dict[str, str], segtrain: Callable[..., Any]) -> None:
    for changes, said in (
        (guarded, r"AccessDenied: .*s3:ListBucket.*AWS_PROFILE"),
        ({}, r"InvalidAccessKeyId: AWS does not know these credentials: set AWS_PROFILE"),
        ({**guarded, "AWS_SECRET_ACCESS_KEY": "wrong"}, r"SignatureDoesNotMatch: the secret key does not belong"),
    ):
        done = segtrain("diagnose", "s3://here/run", **changes)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert re.match(f"error: s3://here/run: {said}", done.stderr), done.stderr


def test_no_region_is_said(job: Path, segtrain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    done = segtrain("diagnose", f"sagemaker:{JOB}")
    assert (done.returncode, "no AWS region is set: set AWS_DEFAULT_REGION" in done.stderr) == (2, True), done.stderr


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("boto3", "botocore", "botocore.config", "obstore"):
        monkeypatch.setitem(sys.modules, package, None)
    for place in ("s3://here/run", f"sagemaker:{JOB}"):
        with refused("missing-package", package="boto3"):
            local(place)
    with refused("missing-package", package="obstore"):
        local("gs://here/run")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_run_in_any_bucket_is_read_without_boto3(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")
    shutil.copytree(trained, tmp_path / "store/bkt/runs/street")
    write_profile(tmp_path / "store/bkt/runs/street/profile", trained)
    (tmp_path / "store/bkt/runs/other").mkdir()
    (tmp_path / "store/bkt/runs/other/journal.jsonl").write_bytes((trained / "journal.jsonl").read_bytes())
    server = BucketServer(tmp_path / "store")
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setitem(sys.modules, "boto3", None)
    try:
        server.fault = 0.1
        place = f"{scheme}://bkt/runs/street"
        found = local(place, lambda text: None)
        assert (found.shown, found.stem) == (place, "street")
        assert (found.folder / "journal.jsonl").read_bytes() == (trained / "journal.jsonl").read_bytes()
        assert {series.node for series in read_profile(found.folder)} == {"algo-1"}
        assert not list(found.folder.rglob("*.pt"))
        assert {row["out"] for row in rows(f"{scheme}://bkt/runs", lambda text: None)} == {
            f"{scheme}://bkt/runs/{name}" for name in ("street", "other")
        }
        monkeypatch.setattr(remote, "MOST_LINES", 20_000)
        said: list[str] = []
        lines = (trained / "journal.jsonl").read_bytes().splitlines() * 30
        (tmp_path / "store/bkt/runs/street/journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        monkeypatch.setattr("segtrain.runs.reader.HEAD", 5000)
        kept = (local(place, said.append).folder / "journal.jsonl").read_bytes().splitlines()
        assert kept[0] == lines[0]
        assert kept[-1] == lines[-1]
        assert len(kept) < len(lines)
        assert set(kept) <= set(lines)
        assert any("journal.jsonl has" in text for text in said)
        server.fault = 0.0
        with refused("no-objects"):
            local(f"{scheme}://bkt/nothing")
        with refused("bucket-missing"):
            local(f"{scheme}://absent/run")
        server.status = 403
        with refused("bucket-denied"):
            local(place)
        server.status, server.down = 0, True
        monkeypatch.setattr("segtrain.runs.reader.OUTAGE_S", 0.1)
        with refused("bucket-unreachable", file=place):
            local(place)
    finally:
        server.close()


def test_keys_that_leave_the_folder_are_left_out() -> None:
    names = ["config.yaml", "data/../../../evil", "../evil", "data//x", "./x", "data/a..b"]
    objects = [Object("bkt", f"runs/a/{name}", 1, "", 0.0) for name in names]
    assert set(remote.inside(objects, "s3://bkt/runs/a")) == {"config.yaml", "data/a..b"}


@pytest.mark.parametrize("more", [-5, 5, HEAD - 5, HEAD + 5])
def test_lines_of_a_large_file_come_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")
    most = HEAD // 2
    content = "".join(f"{k:015d}\n" for k in range((most + more) // 16 + 1)).encode()[: most + more]
    (tmp_path / "store/bkt").mkdir(parents=True)
    (tmp_path / "store/bkt/journal.jsonl").write_bytes(content)
    server = BucketServer(tmp_path / "store")
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    wanted = WantedFile(Object("bkt", "journal.jsonl", len(content), "", 0.0), most)
    try:
        BucketReader().fetch(wanted, tmp_path / "got")
    finally:
        server.close()
    lines, kept = content.splitlines(), (tmp_path / "got").read_bytes().splitlines()
    if more <= HEAD:
        assert kept == lines
    else:
        assert kept == [line for line in lines if line in {*kept}]
        assert kept[0] == lines[0]
        assert len(kept) == len(lines) - 1
    assert wanted.bytes == (most if more > HEAD else len(content))


@pytest.mark.parametrize("boto3", [False, True])
def test_both_ends_of_a_large_file_are_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boto3: bool
) -> None:
    """The object is replaced after its first bytes were read."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")
    if boto3:
        pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'segtrain[sagemaker]'")
    old, new = ([f"{word} {k:09d}".encode() for k in range(6000)] for word in ("old", "new"))
    path = tmp_path / "store/bkt/journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join(old) + b"\n")
    server = BucketServer(tmp_path / "store")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for key, value in {**server.environment(), **keys}.items():
        monkeypatch.setenv(key, value)
    answer = _Handler._object

    def replaced(self: Any, *asked: Any) -> None:
        answer(self, *asked)
        if path.read_bytes().startswith(b"old"):
            path.write_bytes(b"\n".join(new) + b"\n")

    monkeypatch.setattr(_Handler, "_object", replaced)
    wanted = WantedFile(Object("bkt", "journal.jsonl", path.stat().st_size, "", 0.0), 1000)
    try:
        (Account() if boto3 else BucketReader()).fetch(wanted, tmp_path / "got")
    finally:
        server.close()
    kept = (tmp_path / "got").read_bytes().splitlines()
    assert (kept[0], kept[-1]) == (new[0], new[-1])
    assert set(kept) <= set(new)


def test_a_cache_that_cannot_be_written_is_said(
    s3: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, trained, "street")
    (tmp_path / "in-the-way").write_text("")
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "in-the-way"))
    with refused("cache-unwritable"):
        local("s3://here/street")


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert local(str(tmp_path)) == remote.Location(tmp_path, str(tmp_path))
    with refused("unknown-place", place="ftp://a/b"):
        local("ftp://a/b")


def test_hints_name_the_tool_of_the_cloud() -> None:
    tools = {"s3": "aws s3 ", "gs": "gcloud storage ", "az": "az storage blob "}
    for scheme, tool in tools.items():
        item = Object("bkt", "runs/a/model.tar.gz", 1, "", 0.0, scheme)
        commands = (LIST_COMMANDS[scheme], print_command(item), to_read_all_of(f"{scheme}://bkt/runs/a"))
        assert all(tool in command for command in commands)
