"""One command from a laptop to a SageMaker training job: look first, rehearse here, then send, follow and fetch.

python launch/sagemaker.py --instances 5 --type ml.p3.16xlarge --dry-run
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml train.duration=80ep --rehearse
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml train.duration=80ep
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # Python puts a script's folder first on the path, where `import sagemaker` would find the script itself.
    sys.path[:] = [
        str(ROOT),
        *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent),
    ]

from launch.aws.arguments import DEFAULT_REGION, MOST_HOSTS, OF_A_REHEARSAL, build_parser, refuse_together  # noqa: E402
from launch.aws.job import COMMAND, SageMakerJob, load_job  # noqa: E402
from launch.aws.prepare import Source, code_place, prepare, read, refused, say, sound  # noqa: E402
from launch.aws.prepare import upload_code as upload_code  # noqa: E402
from launch.findings import Finding, agreed, errors  # noqa: E402
from segtrain.errors import EXIT_ERROR, ConfigError, SegtrainError  # noqa: E402

if TYPE_CHECKING:
    from launch.aws.tune import Tuning

DEFAULT_BATCH = 8  # of configs/scenes.yaml
NOT_OF_THE_JOB = {
    *("settings", "dry_run", "rehearse", "attach", "stop", "update", "tune", "yes", "no_follow", "job"),
    *OF_A_REHEARSAL,
}


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    """The command line. ``command``: how it was called, for the help."""
    known = vars(build_parser(command).parse_intermixed_args(arguments))
    try:
        refuse_together(known)
        if {"attach", "stop", "update"} & set(known):
            return _come_back(known)
        flags = {key: value for key, value in known.items() if key not in NOT_OF_THE_JOB}
        job = load_job(known.get("job"), flags, known.get("settings", []))
        if not {"job", "config"} & set(known):
            job = _spread(job)
        tuning = _tuning(known)
        if known.get("dry_run"):
            return _dry_run(job, tuning)
        return _rehearse(job, known) if known.get("rehearse") else _send(job, known, tuning)
    except SegtrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: nothing was sent", file=sys.stderr)
        return 130


def request(job: Source, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The CreateTrainingJob request of a job: a file, its keys, or a Job; ``settings``: section.key=value.

    For notebooks: ``boto3.client("sagemaker").create_training_job(**request(job))`` after ``upload_code(job, ...)``.
    Asks AWS nothing. What would fail raises ConfigError; what is doubtful is printed on stderr.
    """
    return sound(job, settings)[1]


def estimator(job: Source, settings: Sequence[str] = (), session: Any = None, **other: Any) -> Any:
    """A ``sagemaker.pytorch.PyTorch`` of SDK v2 that sends the same request; train with ``.fit(inputs(job))``.

    ``session``: a Session or PipelineSession of the SDK; ``other``: further arguments of ``PyTorch``, which win. Checks
    as ``request`` does.
    """
    from launch.aws import notebook

    notebook.sdk()
    whole, asked = sound(job, settings, getattr(session, "boto_region_name", ""))
    return notebook.estimator(whole, asked, session, **other)


def inputs(job: Source) -> dict[str, Any]:
    """The data of a job for the ``fit`` of its estimator: a TrainingInput or FileSystemInput for each channel."""
    from launch.aws import notebook

    notebook.sdk()
    return notebook.inputs(read(job, ()))


def _spread(job: SageMakerJob) -> SageMakerJob:
    """The default config's batch is for one machine: without a config of the user's own, two images for each rank."""
    from launch.aws.preflight.machines import ranks

    if "train.batch_size" in job.settings or ranks(job) <= DEFAULT_BATCH // 2:
        return job
    images = 2 * ranks(job)
    say([Finding("note", "batch", f"no --config is given: {job.config} with train.batch_size={images}, two per rank")])
    return replace(job, settings={**job.settings, "train.batch_size": images})


def _tuning(known: dict[str, Any]) -> Tuning | None:
    if "tune" not in known:
        return None
    from launch.aws.tune import read

    if known.get("rehearse"):
        raise ConfigError("--rehearse plays one training job: leave --tune out")
    return read(known["tune"])


def _tuned(job: SageMakerJob, request: dict[str, Any], tuning: Tuning) -> tuple[dict[str, Any], list[Finding]]:
    """The request of a tuning job from that of its training jobs, and what is wrong with it."""
    from launch.aws import tune

    whole = tune.request(job, request, tuning, datetime.now(timezone.utc))
    return whole, list(tune.findings(job, whole, tuning, ROOT))


def _dry_run(job: SageMakerJob, tuning: Tuning | None = None) -> int:
    """The request on stdout, what is wrong with it on stderr."""
    job, request, findings = prepare(job)
    if tuning is not None:
        request, more = _tuned(job, request, tuning)
        findings += more
    bad = errors(findings)
    try:
        print(json.dumps(request, indent=2), flush=True)
    finally:  # also where the reader of the request has gone (`| head`)
        say(findings)
        _say_cost(job, tuning)
        print(f"dry run: nothing was sent{f'; {len(bad)} errors would stop it' if bad else ''}", file=sys.stderr)
    return EXIT_ERROR if bad else 0


def _say_cost(job: SageMakerJob, tuning: Tuning | None = None) -> None:
    from launch.aws.preflight.cost import cost_ceiling
    from launch.aws.tune import cost

    words = cost(job, tuning) if tuning is not None else cost_ceiling(job)[1]
    print(f"cost     {words}", file=sys.stderr, flush=True)


def _rehearse(job: SageMakerJob, known: dict[str, Any]) -> int:
    from launch.aws.bundle import build
    from launch.aws.rehearse.run import rehearse
    from launch.rehearse.cluster import read_plant
    from launch.rehearse.fit import shorter

    plant = read_plant(known.get("plant", ""))
    job, request, findings = prepare(job)
    if refused(findings, "not rehearsed"):
        return EXIT_ERROR
    folder = known.get("folder") or Path(tempfile.mkdtemp(prefix="segtrain-rehearsal-"))
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "sourcedir.tar.gz"
    build(ROOT, job, bundle)
    told = any(setting.startswith("train.duration=") for setting in known.get("settings", []))
    short = {} if told else shorter(job, plant.at if plant.kind != "fail" else 0)
    if short:
        print(
            f"note: a short training, train.duration={short['train.duration']}: give train.duration=... to choose",
            flush=True,
        )
    report = rehearse(
        job,
        request,
        bundle,
        hosts=known["hosts"] if "hosts" in known else None if job.groups else min(job.hosts, MOST_HOSTS),
        procs=known.get("procs"),
        sample=known.get("sample"),
        plant=known.get("plant", ""),
        settings=short,
        folder=folder,
        say=lambda text: print(text, flush=True),
    )
    return int(report.exit_code)


def _send(job: SageMakerJob, known: dict[str, Any], tuning: Tuning | None = None) -> int:
    from launch.aws.bundle import build
    from launch.aws.cloud import connect, fill, upload
    from launch.aws.preflight.online import online

    located, asked, said = prepare(job)  # all that needs no account is said before one is asked for
    if tuning is not None:
        said += _tuned(located, asked, tuning)[1]
    if refused(said, "nothing was sent"):
        return EXIT_ERROR
    _say_cost(located, tuning)
    clients = connect(located.region)
    job, request, findings = prepare(fill(replace(job, region=located.region), clients))
    whole, more = (request, []) if tuning is None else _tuned(job, request, tuning)
    findings += more
    if not errors(findings):  # what fails already needs no call
        findings += online(job, request, clients)
    if refused([finding for finding in findings if finding not in said], "nothing was sent"):
        return EXIT_ERROR
    name = whole.get("HyperParameterTuningJobName", request["TrainingJobName"])
    if not known.get("yes") and not agreed(f"send {name} to {job.region}?"):
        print("nothing was sent", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "sourcedir.tar.gz"
        build(ROOT, job, bundle)
        upload(clients, bundle, code_place(job, request["TrainingJobName"]))
    return _start(clients, job, whole, bool(known.get("no_follow")))


def _start(clients: Any, job: SageMakerJob, request: dict[str, Any], no_follow: bool) -> int:
    """Send a training or a tuning job, and follow it."""
    from launch.aws import cloud, tuning_job

    if "HyperParameterTuningJobName" in request:
        print(f"sent {tuning_job.submit(clients, request)}", flush=True)
        name = request["HyperParameterTuningJobName"]
        return 0 if no_follow else tuning_job.follow(clients, name, say=lambda text: print(text, flush=True))
    print(f"sent {cloud.submit(clients, request)}", flush=True)
    name = request["TrainingJobName"]
    if no_follow:
        print(f"follow it: {COMMAND} --attach {name} --region {job.region}")
        return 0
    return _follow(clients, name, job)


def _come_back(known: dict[str, Any]) -> int:
    from launch.aws.cloud import connect
    from launch.aws.follow import stop
    from launch.aws.update import update, wanted

    for word in ("dry_run", "rehearse", "tune"):  # --stop NAME --dry-run must not stop it
        if word in known:
            raise ConfigError(
                f"--{word.replace('_', '-')} is for a new job, not for one that has been sent: leave it out"
            )
    flags = {key: value for key, value in known.items() if key not in (*NOT_OF_THE_JOB, "region")}
    changes = wanted(flags) if "update" in known else {}
    region = known.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    clients = connect(region or DEFAULT_REGION)
    if "stop" in known:
        return stop(clients, known["stop"], lambda text: print(text, flush=True))
    if "update" in known:
        return update(clients, known["update"], changes, lambda text: print(text, flush=True))
    return _follow(clients, known["attach"], None, known.get("price"))


def _follow(clients: Any, name: str, job: SageMakerJob | None, price: float | None = None) -> int:
    from launch.aws.follow import follow

    return follow(
        clients,
        name,
        say=lambda text: print(text, flush=True),
        folder=Path("runs") / name,
        price=job.price if job else price,
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenPipeError:  # `... --dry-run | head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
