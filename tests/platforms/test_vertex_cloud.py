"""Tests of calls to Google Cloud for a Vertex AI job, against its REST interfaces on loopback."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from conftest import refused
from golden_findings import check_findings
from vertex_mistakes import ACCOUNT, PLAIN

from launch import vertex
from launch.core.findings import Finding
from launch.core.flags import refuse_flags
from launch.core.job import load_job
from launch.platforms.vertex import cloud, follow
from launch.platforms.vertex.arguments import build_parser
from launch.platforms.vertex.cloud import GoogleClients
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.online import OF_THE_CALLER, online
from launch.platforms.vertex.request import custom_job

pytest.importorskip("google.auth", reason="the extra 'vertex' is not installed")
pytest.importorskip("yaml")
PARENT = "projects/street-scenes/locations/us-central1"
OWN = "us-central1-docker.pkg.dev/street-scenes/images/segtrain:1"
FLAGS: dict[str, Any] = {**PLAIN, "service_account": ACCOUNT}


class Google:
    """Answers by path; ``jobs``: what was created; ``broken``: statuses of the next creations (0:
    none at all).
    """

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.broken: list[int] = []
        self.kept_when_broken = True
        self.uploads: dict[str, bytes] = {}
        self.seen: list[str] = []
        self.lines: list[str] = []
        self.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED"]
        self.error = ""
        quota = {"effectiveLimit": "8", "dimensions": {"region": "us-central1"}}
        bound = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{ACCOUNT}"]}
        self.answers: dict[str, Any] = {
            "v1/projects/street-scenes:testIamPermissions": {"permissions": list(OF_THE_CALLER)},
            "v1/projects/street-scenes:getIamPolicy": {"bindings": []},
            f"v1/projects/-/serviceAccounts/{ACCOUNT}": {"email": ACCOUNT},
            f"v1/projects/-/serviceAccounts/{ACCOUNT}:testIamPermissions": {
                "permissions": ["iam.serviceAccounts.actAs"]
            },
            "storage/v1/b/street-data": {"location": "US-CENTRAL1", "locationType": "region"},
            "storage/v1/b/street-code": {"location": "US-CENTRAL1", "locationType": "region"},
            "storage/v1/b/street-results": {"location": "US-CENTRAL1", "locationType": "region"},
            "storage/v1/b/street-results/iam/testPermissions": {
                "permissions": ["storage.objects.create"]
            },
            "storage/v1/b/street-data/iam": {"bindings": [bound]},
            "storage/v1/b/street-results/iam": {"bindings": [bound]},
            "storage/v1/b/street-data/o": {"items": [{"name": "camvid/train.txt"}]},
            "v1beta1/projects/street-scenes/services/aiplatform.googleapis.com/consumerQuotaMetrics/aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus": {
                "consumerQuotaLimits": [{"quotaBuckets": [{"effectiveLimit": "0"}, quota]}]
            },
            "v2/street-scenes/images/segtrain/manifests/1": {"config": {"digest": "sha256:c"}},
            "v2/street-scenes/images/segtrain/blobs/sha256:c": {
                "config": {"Entrypoint": ["python"]}
            },
        }

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, Any]:
        self.seen.append(f"{method} {path}")
        if path == f"v1/{PARENT}/customJobs" and method == "POST":
            return self._create(json.loads(body))
        if path == f"v1/{PARENT}/customJobs":
            return 200, {
                "customJobs": [job for job in self.jobs if self._matches(job, query["filter"][0])]
            }
        if path.startswith(f"v1/{PARENT}/customJobs/"):
            return self._job(path)
        if path == "v2/entries:list" and path not in self.answers:
            return 200, {"entries": self._entries(json.loads(body)["filter"])}
        if path.startswith("upload/"):
            self.uploads[f"gs://{path.split('/')[4]}/{query['name'][0]}"] = body
            return 200, {}
        if method == "POST" and path == "storage/v1/b":
            self.answers[f"storage/v1/b/{json.loads(body)['name']}"] = json.loads(body)
            return 200, {}
        found = self.answers.get(path)
        return (
            (found, {"error": {"message": "no"}})
            if isinstance(found, int)
            else (200, found)
            if found
            else (404, {})
        )

    def _create(self, body: dict[str, Any]) -> tuple[int, Any]:
        job = {**body, "name": f"{PARENT}/customJobs/{len(self.jobs) + 1}"}
        broken = self.broken.pop(0) if self.broken else 200
        if broken == 200 or self.kept_when_broken:
            self.jobs.append(job)
        return broken, job

    def _matches(self, job: dict[str, Any], wanted: str) -> bool:
        key, _, text = wanted.partition("=")
        value = (
            job["labels"].get(key.removeprefix("labels."))
            if key.startswith("labels.")
            else job["displayName"]
        )
        return f'"{value}"' == text

    def _job(self, path: str) -> tuple[int, Any]:
        number, _, verb = path.rpartition("/")[2].partition(":")
        job = next((job for job in self.jobs if job["name"].endswith(f"/{number}")), None)
        if job is None:
            return 404, {}
        if verb == "cancel":
            self.states = ["JOB_STATE_CANCELLED"]
            return 200, {}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return 200, {**job, "state": state, "error": {"message": self.error}}

    def _entries(self, wanted: str) -> list[dict[str, Any]]:
        since = re.search(r'timestamp>="(.*)"', wanted)
        entries = [
            {
                "timestamp": f"2026-11-23T05:00:0{index // 2}Z",
                "insertId": f"{index}",
                "jsonPayload": {"message": text},
                "resource": {"labels": {"task_name": "workerpool0-0"}},
            }
            for index, text in enumerate(self.lines)
        ]
        return [entry for entry in entries if since is None or str(entry["timestamp"]) >= since[1]]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Google, GoogleClients]]:
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    fake = Google()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _all(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = urlsplit(self.path)
            status, content = fake.answer(
                self.command, unquote(parts.path.strip("/")), parse_qs(parts.query), body
            )
            if not status:  # the answer is lost
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        do_GET = do_POST = _all

        def log_message(self, *_: Any) -> None: ...

    monkeypatch.setattr(
        google.auth, "default", lambda **_: (AnonymousCredentials(), "street-scenes")
    )
    for name in (
        "GOOGLE_CLOUD_PROJECT",
        "CLOUD_ML_PROJECT_ID",
        "CLOUDSDK_CORE_PROJECT",
        "GOOGLE_CLOUD_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(
            vertex, "GoogleClients", lambda region: GoogleClients(region, endpoint, patience_s=0.0)
        )
        monkeypatch.setattr(cloud, "SETTLE_S", 0.0)
        yield fake, GoogleClients("us-central1", endpoint, patience_s=0.0)
        server.shutdown()


def job(**flags: Any) -> VertexJob:
    return load_job(VertexJob, None, {**FLAGS, **flags})


def asked(one: VertexJob) -> dict[str, Any]:
    return custom_job(
        one,
        image=one.image or "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest",
        name="job-1",
    )


def look(clients: GoogleClients, **flags: Any) -> list[Finding]:
    return online(job(**flags), asked(job(**flags)), clients)


def test_a_sound_job_passes_the_reading_calls(google):
    fake, clients = google
    assert look(clients, image=OWN, start="image") == []
    assert look(clients, image=OWN, start="image", hosts=1) == []
    assert not [
        call
        for call in fake.seen
        if call.startswith("POST") and not call.endswith(("Permissions", "Policy"))
    ]


BUCKET = "storage/v1/b/street-data"
QUOTA = "v1beta1/projects/street-scenes/services/aiplatform.googleapis.com/consumerQuotaMetrics/aiplatform.googleapis.com/"
# what is wrong: the answer of a path (None: absent), flags
ONLINE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "no right to create jobs": ("v1/projects/street-scenes:testIamPermissions", {"x": 1}, {}),
    "no such project": ("v1/projects/street-scenes:testIamPermissions", None, {}),
    "no such account": (f"v1/projects/-/serviceAccounts/{ACCOUNT}", None, {}),
    "a disabled account": (
        f"v1/projects/-/serviceAccounts/{ACCOUNT}", {"disabled": True}, {}),
    "an account of others": (
        f"v1/projects/-/serviceAccounts/{ACCOUNT}:testIamPermissions", {"x": 1}, {}),
    "an account that may not read": (f"{BUCKET}/iam", {"bindings": [{"role": "roles/viewer", "members": ["user:me"]}]}, {}),
    "a bucket that the caller may not write to": (
        "storage/v1/b/street-results/iam/testPermissions", {"kind": "x"}, {}),
    "a bucket of the code that the account may not read": (
        f"{BUCKET.replace('data', 'code')}/iam", {"bindings": [{"role": "roles/viewer", "members": ["user:me"]}]},
        {"staging": "gs://street-code/jobs"}),
    "no such bucket": (BUCKET, None, {}),
    "a bucket of another region": (BUCKET, {"location": "EUROPE-WEST4", "locationType": "region"}, {}),
    "a bucket of another continent": (BUCKET, {"location": "EU", "locationType": "multi-region"}, {}),
    "a bucket of the continent": (BUCKET, {"location": "US", "locationType": "multi-region"}, {}),
    "a bucket of a pair of regions": (BUCKET, {"location": "NAM4", "locationType": "dual-region"}, {}),
    "a bucket of another pair of regions": (BUCKET, {"location": "ASIA1", "locationType": "dual-region"}, {}),
    "no data": (f"{BUCKET}/o", {"kind": "objects"}, {}),
    "too little quota": (
        f"{QUOTA}custom_model_training_nvidia_t4_gpus",
        {"consumerQuotaLimits": [{"quotaBuckets": [{"effectiveLimit": "4"}]}]}, {}),
    "no spot quota": (
        f"{QUOTA}custom_model_training_preemptible_nvidia_t4_gpus",
        {"consumerQuotaLimits": [{"quotaBuckets": [{"effectiveLimit": "0"}]}]}, {"scheduling": "spot"}),
    "a quota that Google does not know": (f"{QUOTA}custom_model_training_nvidia_t4_gpus", None, {}),
    "no such TensorBoard": ("x", None, {"tensorboard": f"{PARENT}/tensorboards/7"}),
    "no such experiment": ("x", None, {"experiment": "streets"}),
    "no such persistent resource": ("x", None, {"persistent_resource": "mine"}),
    "a persistent resource that starts": (
        f"v1/{PARENT}/persistentResources/mine", {"state": "PROVISIONING"}, {"persistent_resource": "mine"}),
    "no such image": ("v2/street-scenes/images/segtrain/manifests/1", None, {"image": OWN}),
    "an image without entry point": (
        "v2/street-scenes/images/segtrain/blobs/sha256:c", {"config": {"Cmd": ["bash"]}}, {"image": OWN, "start": "image"}),
    "a call that is denied": ("v1/projects/street-scenes:testIamPermissions", 403, {}),
    "a placeholder": ("x", None, {"output": "gs://MY-BUCKET/x"}),
}  # fmt: skip


def test_findings_of_what_only_google_can_tell(google):
    fake, clients = google
    jobs = {}
    for name, (path, answer, flags) in ONLINE.items():
        fake.answers = {**Google().answers, path: answer}
        jobs[name] = look(clients, **flags)
    check_findings("account/google", jobs, [])


def test_an_account_that_may_only_read_the_bucket_that_it_writes_to_is_found(google):
    """Data, results, and checkpoints share a bucket."""
    fake, clients = google
    bound = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{ACCOUNT}"]}
    fake.answers[f"{BUCKET}/iam"] = {"bindings": [bound]}
    for flags in ({"output": FLAGS["data"]}, {"checkpoints": "gs://street-data/checkpoints"}):
        (finding,) = (one for one in look(clients, **flags) if one.code == "account-bucket")
        assert "lets it write there" in finding.message


@pytest.mark.parametrize(
    ("owner", "expected"),
    [("123", []), ("666", ["error bucket-taken"]), (None, ["note not-asked"])],
)
def test_the_default_bucket_of_another_project_is_refused(owner, expected, google, capsys):
    fake, clients = google
    bucket = {"location": "US-CENTRAL1", "locationType": "region", "projectNumber": owner or "123"}
    bound = fake.answers["storage/v1/b/street-data/iam"]
    fake.answers["storage/v1/b/street-scenes-vertex-staging-us-central1"] = bucket
    fake.answers["storage/v1/b/street-scenes-vertex-staging-us-central1/iam"] = bound
    fake.answers["v1/projects/street-scenes"] = {"projectNumber": "123"} if owner else 403
    found = look(clients, output="")
    assert [f"{finding.level} {finding.code}" for finding in found] == expected, found
    if owner == "666":
        flags = [
            f"--{key.replace('_', '-')}={value}" for key, value in FLAGS.items() if key != "output"
        ]
        assert vertex.main([*flags, "--yes", "train.batch_size=16"]) == 2
        assert "belongs to another project" in " ".join(capsys.readouterr().err.split())
        assert not fake.uploads
        assert not fake.jobs


@pytest.mark.parametrize("owner", ["ours", "theirs"])
def test_the_default_bucket_may_appear_meanwhile(owner, tmp_path, google):
    fake, clients = google
    answer, name = fake.answer, "street-scenes-vertex-staging-us-central1"

    def taken(method: str, path: str, *rest: Any) -> tuple[int, Any]:
        if (method, path) != ("POST", "storage/v1/b"):
            return answer(method, path, *rest)
        fake.answers[f"storage/v1/b/{name}"] = {"name": name} if owner == "ours" else 403
        return 409, {"error": {"message": "taken"}}

    fake.answer = taken
    (tmp_path / "bundle").write_bytes(b"code")
    if owner == "ours":
        cloud.upload(job(), clients, tmp_path / "bundle", f"gs://{name}/bundle")
        assert f"gs://{name}/bundle" in fake.uploads
    else:
        with refused("bucket-taken", bucket=name):
            cloud.upload(job(), clients, tmp_path / "bundle", f"gs://{name}/bundle")


def test_a_job_is_sent_with_its_code_and_followed(google, capsys):
    fake, _ = google
    fake.lines = ["step 1", "step 2", "done"]
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in FLAGS.items()]
    code = vertex.main([*flags, "--yes", "--no-follow", "train.batch_size=16"])
    said = capsys.readouterr()
    assert code == 0, said.err
    (sent,) = fake.jobs
    environment = {
        pair["name"]: pair["value"]
        for pair in sent["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["env"]
    }
    assert fake.uploads[environment["SEGTRAIN_BUNDLE"]][:2] == b"\x1f\x8b"
    assert "--attach 1 --project street-scenes --region us-central1" in said.out
    assert len(fake.seen) == len(set(fake.seen))  # no call is made twice


def test_the_default_bucket_is_made_by_the_first_upload(google, tmp_path):
    fake, clients = google
    (tmp_path / "bundle.tar.gz").write_bytes(b"code")
    one = job(output="")
    cloud.upload(
        one,
        clients,
        tmp_path / "bundle.tar.gz",
        "gs://street-scenes-vertex-staging-us-central1/segtrain/c.tar.gz",
    )
    assert (
        fake.answers["storage/v1/b/street-scenes-vertex-staging-us-central1"]["location"]
        == "us-central1"
    )
    assert list(fake.uploads.values()) == [b"code"]


@pytest.mark.parametrize("status", [0, 503])
def test_a_lost_answer_makes_no_second_job(status, google):
    fake, clients = google
    fake.broken = [status]
    assert (
        cloud.submit(job(), clients, asked(job()), sleep=lambda _: None) == f"{PARENT}/customJobs/1"
    )
    assert len(fake.jobs) == 1


@pytest.mark.parametrize("listing", ["empty", "denied"])
def test_a_job_whose_answers_are_all_lost_may_run(listing, google, monkeypatch):
    fake, clients = google
    fake.broken, fake.kept_when_broken = [503] * cloud.TRIES, False
    if listing == "denied":
        answer = fake.answer
        monkeypatch.setattr(
            fake, "answer", lambda *asked: (403, {}) if asked[0] == "GET" else answer(*asked)
        )
    with refused("job-maybe-sent", name="job-1") as caught:
        cloud.submit(job(), clients, asked(job()), sleep=lambda _: None)
    assert "--stop job-1 --project street-scenes --region us-central1" in str(caught.value)
    assert len(fake.broken) == (0 if listing == "empty" else cloud.TRIES - 1)


@pytest.mark.parametrize(("status", "code"), [(400, "google-refused"), (429, "google-quota")])
def test_a_refused_job_is_not_sent_again(status, code, google):
    fake, clients = google
    fake.broken, fake.kept_when_broken = [status, 200], False
    with refused(code, status=status):
        cloud.submit(job(), clients, asked(job()), sleep=lambda _: None)
    assert (fake.jobs, fake.broken) == ([], [200])


def test_ctrl_c_during_the_submission_names_the_job_that_may_run(google, monkeypatch, capsys):
    fake, _ = google
    fake.broken = [503]

    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cloud, "sent_already", interrupt)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in FLAGS.items()]
    assert vertex.main([*flags, "--yes", "train.batch_size=16"]) == 130
    (sent,) = fake.jobs
    said = capsys.readouterr().err
    assert f"--stop {sent['displayName']} --project street-scenes --region us-central1" in said
    assert "nothing was sent" not in said


def test_nothing_is_sent_without_a_yes(google, capsys):
    fake, _ = google
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in FLAGS.items()]
    assert vertex.main([*flags, "train.batch_size=16"]) == 1
    assert (fake.jobs, fake.uploads) == ([], {})
    assert "give --yes" in capsys.readouterr().err


def test_a_job_is_followed_to_its_end(google):
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    fake.states = ["JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    fake.lines, fake.error = ["step 1", "step 2", "done"], "STOCKOUT in us-central1"
    said: list[str] = []
    assert (
        follow.follow("street-scenes", clients, "job-1", say=said.append, sleep=lambda _: None) == 1
    )
    lines = [line for line in said if " | " in line]
    assert lines == ["workerpool0-0 | step 1", "workerpool0-0 | step 2", "workerpool0-0 | done"]
    assert any("--checkpoints gs://street-results/jobs/job-1/checkpoints" in line for line in said)
    assert any("no machines are free" in line for line in said)


def test_a_job_whose_log_may_not_be_read_is_followed_by_its_states(google):
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    fake.answers["v2/entries:list"] = 403
    said: list[str] = []
    assert (
        follow.follow("street-scenes", clients, "job-1", say=said.append, sleep=lambda _: None) == 0
    )
    assert fake.seen.count("POST v2/entries:list") == 1
    (line,) = (line for line in said if "log" in line)
    assert "roles/logging.viewer" in line
    assert "aiplatform" not in line


@pytest.mark.parametrize(
    ("hosts_time", "looks", "shown"),
    [
        (
            "2026-11-23T05:00:10.5Z",
            ["first", "other first", "other first next", "other first next"],
            "first other next",
        ),
        (
            "2026-11-23T09:00:00Z",
            ["first other", "first next other", "first next other"],
            "first other next",
        ),
    ],
    ids=["arrives late", "has a fast clock"],
)
def test_a_line_of_another_host_is_shown_once_and_hides_none(
    hosts_time, looks, shown, google, monkeypatch
):
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    lines = {"other": hosts_time, "first": "2026-11-23T05:00:20Z", "next": "2026-11-23T05:03:00Z"}
    polls = iter([*looks, looks[-1]])

    def entries(wanted: str) -> list[dict[str, Any]]:
        since = re.search(r'timestamp>="(.*)"', wanted)
        return [
            {
                "timestamp": lines[text],
                "receiveTimestamp": min(lines[text], "2026-11-23T05:03:01Z"),
                "insertId": text,
                "textPayload": text,
            }
            for text in next(polls).split()
            if since is None or lines[text] >= since[1]
        ]

    monkeypatch.setattr(fake, "_entries", entries)
    fake.states = ["JOB_STATE_RUNNING"] * (len(looks) - 1) + ["JOB_STATE_SUCCEEDED"]
    said: list[str] = []
    assert (
        follow.follow("street-scenes", clients, "job-1", say=said.append, sleep=lambda _: None) == 0
    )
    assert [line for line in said if line in lines] == shown.split()


def test_an_error_that_ends_the_following_tells_how_to_come_back(google):
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    fake.answers["v2/entries:list"] = 400
    with refused("google-refused", status=400) as caught:
        follow.follow("street-scenes", clients, "job-1", say=lambda _: None, sleep=lambda _: None)
    assert "--attach 1 --project street-scenes --region us-central1" in str(caught.value)


def test_a_log_line_may_be_json():
    payloads = {
        "epoch 1": {"message": "epoch 1"},
        '{"message": {"loss": 1}}': {"message": {"loss": 1}},
    }
    for line, payload in payloads.items():
        assert follow._text({"jsonPayload": payload}) == line


def test_a_job_is_followed_by_its_resource_name(google, capsys):
    """Also if the environment names another project and region."""
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    fake.states = ["JOB_STATE_SUCCEEDED"]
    name = f"{PARENT}/customJobs/1".replace("street-scenes", "1234567")
    answer, seen = fake.answer, []

    def numbered(method: str, path: str, *rest: Any) -> tuple[int, Any]:
        seen.append(path)
        return answer(method, path.replace("1234567", "street-scenes"), *rest)

    fake.answer = numbered
    assert vertex.main(["--attach", name, "--project", "another"]) == 0
    assert f"v1/{name}" in seen
    assert not [path for path in seen if "another" in path]
    assert vertex.main(["--stop", name, "--region", "europe-west4"]) == 2
    assert "leave --region europe-west4 out" in capsys.readouterr().err


def test_a_job_is_stopped_by_its_number(google):
    fake, clients = google
    cloud.submit(job(), clients, asked(job()))
    assert follow.stop("street-scenes", clients, "1", print) == 0
    assert f"POST v1/{PARENT}/customJobs/1:cancel" in fake.seen
    with refused("job-missing", found="99"):
        follow.stop("street-scenes", clients, "99", print)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--stop", "1", "train.batch_size=8"], "flag-of-a-new-job"),
        (["--dry-run", "--rehearse"], "flags-together"),
        (["--stop", "1", "--dry-run"], "flags-together"),
        (["--plant", "fail:1", "--yes"], "flags-of-a-rehearsal"),
    ],
)
def test_flags_that_contradict_each_other_send_nothing(arguments, code, google):
    fake, _ = google
    known = vars(build_parser("vertex").parse_intermixed_args(arguments))
    with refused(code):
        refuse_flags(known)
        vertex._come_back(known)
    assert vertex.main(arguments) == 2
    assert not fake.seen
