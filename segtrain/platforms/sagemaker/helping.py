"""HelpPlan hosts in a SageMaker job: who helps whom, the token that they share, and what runs on
each kind of host.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

import segtrain
from segtrain.errors import ConfigError
from segtrain.platforms.ray import node as ray_node
from segtrain.platforms.ray.helping import help_out, helped
from segtrain.platforms.ray.register import JOIN_S, HelpPlan
from segtrain.platforms.sagemaker.hosts import Hosts, decoded
from segtrain.platforms.sagemaker.settings import read_json

# file at the top of the code bundle: random bytes that the launcher has drawn for this bundle
KEY = "helpers.key"


def plan(base: Path, hosts: Hosts, environ: Mapping[str, str] = os.environ) -> HelpPlan | None:
    """Who helps whom in this job; None without helping hosts. Raises ConfigError if the bundle has
    no key.
    """
    if not hosts.helping:
        return None
    hyperparameters = read_json(base / "input/config/hyperparameters.json")
    return HelpPlan(
        current=hosts.current,
        training=hosts.training,
        helping=hosts.helping,
        token=token(Path(segtrain.__file__).parents[1] / KEY, environ.get("TRAINING_JOB_NAME", "")),
        join_s=float(decoded(hyperparameters.get("helpers.join_s", JOIN_S))),
        required=bool(decoded(hyperparameters.get("helpers.required", False))),
    )


def token(key: Path, job: str) -> str:
    """The token of a job. Its hosts find the key in the code bundle, which only they and the
    account can read. The name of the job makes the tokens of several jobs with the same bundle
    differ.
    """
    try:
        secret = key.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {key} ({error.strerror}), which the hosts of this job need to trust each "
            "other: send the job with segtrain's launcher, which puts it into the code bundle",
            code="helpers-key-missing",
            file=str(key),
        ) from None
    return hmac.new(secret, job.encode(), hashlib.sha256).hexdigest()


def help_here(plan: HelpPlan, base: Path, received: list[int]) -> int:
    """Make samples on this host, until the training is over. Returns the exit code."""
    from segtrain.platforms.decoder import prepare

    print(f"host {plan.current} makes samples for {', '.join(plan.training)}")
    print(f"  {prepare(base / 'segtrain-native')}")
    return help_out(plan, received, print)


def around(
    plan: HelpPlan | None, local_rank: int, received: list[int]
) -> contextlib.AbstractContextManager[None]:
    """The context of a training process. Every process learns how to find Ray; the first of a host
    runs it there.
    """
    if plan is None:
        return contextlib.nullcontext()
    os.environ.update(ray_node.environment(ray_node.address(plan.head), plan.token))
    return helped(plan, received, print) if local_rank == 0 else contextlib.nullcontext()
