"""One command to run a SageMaker training job from a laptop: check it, rehearse it here, send it,
follow it, and fetch its results.

python launch/sagemaker.py --instances 5 --type ml.p3.16xlarge --dry-run
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml --rehearse
python launch/sagemaker.py --job configs/jobs/sagemaker.yaml train.duration=80ep
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import agreed, errors, refused, tell  # noqa: E402
from launch.core.flags import OF_A_REHEARSAL, refuse_flags  # noqa: E402
from launch.core.job import flag_fields  # noqa: E402
from launch.core.rehearse.cluster import FAULTS  # noqa: E402
from launch.platforms.sagemaker import follow as following  # noqa: E402
from launch.platforms.sagemaker.arguments import (  # noqa: E402
    MOST_HOSTS,
    build_parser,
    default_region,
)
from launch.platforms.sagemaker.bundle import build  # noqa: E402
from launch.platforms.sagemaker.cloud import AwsClients, connect, fill, submit  # noqa: E402
from launch.platforms.sagemaker.job import COMMAND, SageMakerJob, load_job  # noqa: E402
from launch.platforms.sagemaker.preflight.cost import cost_ceiling  # noqa: E402
from launch.platforms.sagemaker.preflight.machines import ranks  # noqa: E402
from launch.platforms.sagemaker.preflight.online import online  # noqa: E402
from launch.platforms.sagemaker.prepare import Source, prepare, read, send_code, sound  # noqa: E402
from launch.platforms.sagemaker.prepare import upload_code as upload_code  # noqa: E402
from launch.platforms.sagemaker.update import update, wanted  # noqa: E402
from segtrain.errors import EXIT_ERROR  # noqa: E402


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    """Run the command line, and return its exit code. ``command``: its name in the help text."""
    return console.run(_act, build_parser(command), arguments)


def _act(flags: dict[str, Any]) -> int:
    refuse_flags(flags, ("hosts", *OF_A_REHEARSAL))
    if {"attach", "stop", "update"} & set(flags):
        return _come_back(flags)
    job = load_job(flags.get("job"), flags, flags.get("overrides", []))
    if not {"job", "config"} & set(flags):
        job = console.spread(job, ranks(job))
    if flags.get("dry_run"):
        return _dry_run(job)
    return _rehearse(job, flags) if flags.get("rehearse") else _send(job, flags)


def request(job: Source, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The CreateTrainingJob request of a job. ``job``: a file, its keys, or a SageMakerJob;
    ``settings``: a list of section.key=value.

    For notebooks: ``boto3.client("sagemaker").create_training_job(**request(job))`` after
    ``upload_code(job, ...)``. Makes no calls to AWS. Errors in the job raise ConfigError; warnings
    and notes are printed on stderr.
    """
    return sound(job, settings)[1]


def estimator(job: Source, settings: Sequence[str] = (), session: Any = None, **other: Any) -> Any:
    """A ``sagemaker.pytorch.PyTorch`` of SDK v2 that sends the same request. To train:
    ``.fit(inputs(job))``.

    ``session``: a Session or PipelineSession of the SDK; ``other``: further arguments for
    ``PyTorch``, which override the job's. Makes the same checks as ``request``.
    """
    from launch.platforms.sagemaker import notebook

    notebook.sdk()
    whole, job_request = sound(job, settings, getattr(session, "boto_region_name", ""))
    return notebook.estimator(whole, job_request, session, **other)


def inputs(job: Source) -> dict[str, Any]:
    """The ``inputs`` argument of the estimator's ``fit``: a TrainingInput or FileSystemInput for
    each data channel.
    """
    from launch.platforms.sagemaker import notebook

    notebook.sdk()
    return notebook.inputs(read(job, ()))


def _dry_run(job: SageMakerJob) -> int:
    """Print the request on stdout, and the findings and the cost on stderr."""
    job, request, findings = prepare(job)
    return console.dry_run(json.dumps(request, indent=2), findings, _cost(job))


def _cost(job: SageMakerJob) -> str:
    return f"cost     {cost_ceiling(job)[1]}"


def _rehearse(job: SageMakerJob, flags: dict[str, Any]) -> int:
    from launch.platforms.sagemaker.rehearse.run import rehearse

    job, request, findings = prepare(job)
    if refused(findings, "not rehearsed"):
        return EXIT_ERROR
    hosts = (
        flags["hosts"] if "hosts" in flags else None if job.groups else min(job.hosts, MOST_HOSTS)
    )
    spec = console.rehearsal(job, flags, FAULTS, "sourcedir.tar.gz", build, hosts)
    return rehearse(job, request, spec, console.out).exit_code


def _send(job: SageMakerJob, flags: dict[str, Any]) -> int:
    located, _, said = prepare(job)  # offline findings are printed before credentials are needed
    if refused(said, "nothing was sent"):
        return EXIT_ERROR
    tell(_cost(located))
    clients = connect(located.region)
    job, request, findings = prepare(fill(replace(job, region=located.region), clients))
    if not errors(findings):  # with an error, the job is not sent anyway, so AWS is not asked
        findings += online(job, request, clients)
    if refused(findings, "nothing was sent", said):
        return EXIT_ERROR
    name = request["TrainingJobName"]
    if not agreed(f"send {name} to {job.region}?", "yes" in flags):
        return 1
    send_code(job, clients, request)
    return _start(clients, job, request, "no_follow" in flags)


def _start(clients: AwsClients, job: SageMakerJob, request: dict[str, Any], no_follow: bool) -> int:
    """Send the job, and follow it."""
    name = request["TrainingJobName"]
    try:
        console.out(f"sent {submit(clients, request)}")
    except KeyboardInterrupt:
        stop = f"{COMMAND} --stop {name} --region {job.region}"
        tell(f"interrupted: {name} may have been sent, and is billed if it runs. Stop it: {stop}")
        return 130
    if no_follow:
        console.out(f"follow it: {COMMAND} --attach {name} --region {job.region}")
        return 0
    return _follow(clients, name, job.price)


def _come_back(flags: dict[str, Any]) -> int:
    changes = wanted(flags) if "update" in flags else {}
    console.refuse_others(
        flags,
        ("update", "stop", "attach", "region", *changes, *(["price"] if "attach" in flags else [])),
    )
    clients = connect(default_region(flags.get("region")))
    if "stop" in flags:
        return following.stop(clients, flags["stop"], console.out)
    if "update" in flags:
        return update(clients, flags["update"], changes, console.out)
    return _follow(clients, flags["attach"], flag_fields(SageMakerJob, flags).get("price"))


def _follow(clients: AwsClients, name: str, price: float | None) -> int:
    folder = Path("runs") / name
    return following.follow(clients, name, say=console.out, folder=folder, price=price)


if __name__ == "__main__":
    console.script(main)
