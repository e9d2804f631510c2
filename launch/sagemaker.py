"""One command from a laptop to a SageMaker training job: look first, rehearse here, then send, follow and fetch.

python launch/sagemaker.py --instances 5 --type ml.p3.16xlarge --dry-run
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml train.duration=80ep --rehearse
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml train.duration=80ep
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Python puts this script's folder first on the path, where `import sagemaker` would find the script itself.
sys.path[:] = [
    str(ROOT),
    *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent),
]

from launch.aws.arguments import DEFAULT_REGION, MOST_HOSTS, build_parser  # noqa: E402
from launch.findings import Finding, errors, show  # noqa: E402
from launch.job import Job, load_job  # noqa: E402
from segtrain.errors import EXIT_ERROR, SegtrainError  # noqa: E402

DEFAULT_BATCH = 8  # of configs/scenes.yaml
NOT_OF_THE_JOB = {
    *("settings", "dry_run", "rehearse", "attach", "stop", "yes", "no_follow", "job"),
    *("hosts", "procs", "sample", "plant", "folder"),
}


def main(arguments: list[str] | None = None) -> int:
    known = vars(build_parser().parse_intermixed_args(arguments))
    try:
        if "attach" in known or "stop" in known:
            return _come_back(known)
        flags = {key: value for key, value in known.items() if key not in NOT_OF_THE_JOB}
        job = load_job(known.get("job"), flags, known.get("settings", []))
        if not {"job", "config"} & set(known):
            job = _spread(job)
        if known.get("dry_run"):
            return _dry_run(job)
        return _rehearse(job, known) if known.get("rehearse") else _send(job, known)
    except SegtrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: nothing was sent", file=sys.stderr)
        return 130


def _spread(job: Job) -> Job:
    """The default config's batch is for one machine: without a config of the user's own, two images for each rank."""
    from launch.aws.preflight.machines import ranks

    if "train.batch_size" in job.settings or ranks(job) <= DEFAULT_BATCH // 2:
        return job
    images = 2 * ranks(job)
    _say([Finding("note", "batch", f"no --config is given: {job.config} with train.batch_size={images}, two a rank")])
    return replace(job, settings={**job.settings, "train.batch_size": images})


def _region(job: Job) -> tuple[Job, list[Finding]]:
    """The region of the job, of the environment, or the usual one with a word about it."""
    for region in (job.region, os.environ.get("AWS_REGION"), os.environ.get("AWS_DEFAULT_REGION")):
        if region:
            return replace(job, region=region), []
    note = Finding("note", "region", f"no region is set: {DEFAULT_REGION}", "--region NAME, or set AWS_REGION")
    return replace(job, region=DEFAULT_REGION), [note]


def _prepare(job: Job) -> tuple[Job, dict[str, Any], list[Finding]]:
    """The request, and everything that can be found wrong with it without asking AWS."""
    from launch.aws.images import choose
    from launch.aws.preflight.offline import offline
    from launch.aws.request import create_training_job, training_job_name

    now = datetime.now(timezone.utc)
    job, findings = _region(replace(job, role=job.role or os.environ.get("SAGEMAKER_ROLE", "")))
    choice = choose(job.training_type, job.strategy, job.region, job.image)
    name = training_job_name(job, now)
    request = create_training_job(job, image=choice.uri, name=name, code=_code(job, name))
    findings += choice.findings
    findings += offline(job, request, root=ROOT, choice=choice, now=now.date())
    if choice.why:
        findings.append(Finding("note", "image", f"image {choice.uri}: {choice.why}"))
    return job, request, findings


def _code(job: Job, name: str) -> str:
    from launch.aws.request import output

    return f"{output(job)}/{name}/source/sourcedir.tar.gz"


def _say(findings: list[Finding]) -> None:
    if findings:
        print(show(findings), file=sys.stderr, flush=True)


def _dry_run(job: Job) -> int:
    """The request on stdout, what is wrong with it on stderr."""
    job, request, findings = _prepare(job)
    print(json.dumps(request, indent=2), flush=True)
    _say(findings)
    _say_cost(job)
    bad = errors(findings)
    print(f"dry run: nothing was sent{f'; {len(bad)} errors would stop it' if bad else ''}", file=sys.stderr)
    return EXIT_ERROR if bad else 0


def _say_cost(job: Job) -> None:
    from launch.aws.preflight.cost import cost_ceiling

    print(f"cost     {cost_ceiling(job)[1]}", file=sys.stderr, flush=True)


def _refused(findings: list[Finding], what: str) -> bool:
    _say(findings)
    bad = errors(findings)
    if bad:
        print(f"error: {what}: {len(bad)} of the findings above must be cured first", file=sys.stderr)
    return bool(bad)


def _rehearse(job: Job, known: dict[str, Any]) -> int:
    from launch.aws.bundle import build
    from launch.rehearse.run import rehearse

    job, request, findings = _prepare(job)
    if _refused(findings, "not rehearsed"):
        return EXIT_ERROR
    folder = known.get("folder") or Path(tempfile.mkdtemp(prefix="segtrain-rehearsal-"))
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "sourcedir.tar.gz"
    build(ROOT, job, bundle)
    report = rehearse(
        job,
        request,
        bundle,
        hosts=known.get("hosts") or (None if job.groups else min(job.hosts, MOST_HOSTS)),
        procs=known.get("procs"),
        sample=known.get("sample"),
        plant=known.get("plant", ""),
        folder=folder,
        say=lambda text: print(text, flush=True),
    )
    return int(report.exit_code)


def _send(job: Job, known: dict[str, Any]) -> int:
    from launch.aws.bundle import build
    from launch.aws.cloud import connect, fill, submit, upload
    from launch.aws.preflight.online import online

    job, _ = _region(job)
    clients = connect(job.region)
    job, request, findings = _prepare(fill(job, clients))
    if not errors(findings):  # what fails already needs no call
        findings += online(job, request, clients)
    if _refused(findings, "nothing was sent"):
        return EXIT_ERROR
    _say_cost(job)
    name = request["TrainingJobName"]
    if not known.get("yes") and not _agreed(f"send {name} to {job.region}?"):
        print("nothing was sent", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "sourcedir.tar.gz"
        build(ROOT, job, bundle)
        upload(clients, bundle, _code(job, name))
    print(f"sent {submit(clients, request)}", flush=True)
    if known.get("no_follow"):
        print(f"follow it: python launch/sagemaker.py --attach {name} --region {job.region}")
        return 0
    return _follow(clients, name, job)


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        print(f"error: {question} Nobody can answer here: give --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _come_back(known: dict[str, Any]) -> int:
    from launch.aws.cloud import connect
    from launch.aws.follow import stop

    region = known.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    clients = connect(region or DEFAULT_REGION)
    if "stop" in known:
        return stop(clients, known["stop"], lambda text: print(text, flush=True))
    return _follow(clients, known["attach"], None, known.get("price"))


def _follow(clients: Any, name: str, job: Job | None, price: float | None = None) -> int:
    from launch.aws.follow import follow

    return follow(
        clients,
        name,
        say=lambda text: print(text, flush=True),
        folder=Path("runs") / name,
        price=job.price if job else price,
    )


if __name__ == "__main__":
    raise SystemExit(main())
