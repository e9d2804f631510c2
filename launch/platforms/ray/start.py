"""A Ray cluster to train on, attached or started here, and the ranks that Ray Train starts in
it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.core.bundle import contents
from launch.core.findings import Finding
from launch.core.job import config_name
from launch.platforms.ray import checks
from launch.platforms.ray.job import RayJob, arguments
from segtrain.errors import ConfigError, MissingExtra, SegtrainError


@contextlib.contextmanager
def cluster(job: RayJob) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster whose workers have this code. Raises ConfigError
    or MissingExtra.
    """
    try:
        import ray
        import ray.train
    except ImportError as missing:
        raise MissingExtra(missing.name or "ray", "ray", "training on Ray") from None
    from segtrain.platforms.ray.helpers.cluster import reach

    address = job.address or os.environ.get("RAY_ADDRESS", "")
    with tempfile.TemporaryDirectory(prefix="segtrain-ray-") as folder:
        for name, source in contents(job):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        try:
            reach(address)
            ray.init(
                address or None,
                runtime_env={"working_dir": folder},
                include_dashboard=False,
                logging_level="error",
                logging_config=ray.LoggingConfig(log_level="ERROR"),
            )
        except (OSError, RuntimeError, ValueError) as problem:
            raise ConfigError(
                f"cannot use the Ray cluster {address or 'on this machine'}: {problem}: check "
                "--address and RAY_AUTH_TOKEN, and run this command on a node of the cluster",
                code="ray-not-reached",
                address=address,
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()


def gpus_each(job: RayJob, ray: Any, config: Any) -> int:
    """GPUs of each rank: as asked for; else one if a node has GPUs, and the config trains on
    them.
    """
    if job.gpus is not None:
        return job.gpus
    wanted = config is None or config.train.device != "cpu"
    return (
        1
        if wanted and any(node["Resources"].get("GPU") for node in ray.nodes() if node["Alive"])
        else 0
    )


def online(job: RayJob, ray: Any, gpus: int) -> list[Finding]:
    """Findings about the cluster, from its list of nodes, and from a task on each of them."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from segtrain.platforms.ray.worker import describe_node

    nodes = [node for node in ray.nodes() if node["Alive"]]
    findings = list(checks.room(job, nodes, gpus))
    if any(finding.level == "error" for finding in findings):
        return findings
    mark = None if "out" in job.settings else checks.mark(job.run)
    task = ray.remote(num_cpus=0, max_retries=0)(describe_node)
    try:
        used = [node for node in nodes if node["Resources"].get("CPU")]
        asked = [
            task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(str(mark or ""))
            for node in used
        ]
        return [*findings, *checks.alike(ray.get(asked, timeout=300), job.run)]
    except ray.exceptions.RayError as problem:
        raise SegtrainError(
            "a node of the Ray cluster cannot run segtrain: "
            f"{str(problem).strip().splitlines()[-1]}: install its packages on all nodes",
            code="ray-node-fails",
        ) from None
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)


def train(job: RayJob, ray: Any, gpus: int, config: Any) -> int:
    """Run the training to its end. Returns the exit code of its ranks. Raises SegtrainError if Ray
    gives up.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.config import LoggingConfig

    # TorchTrainer without a process group
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from segtrain.config import local_paths
    from segtrain.platforms.ray.worker import work

    class RankBackend(Backend):
        # a rank takes the GPU with its local rank, as under torchrun
        share_cuda_visible_devices = True

    class RanksConfig(BackendConfig):
        @property
        def backend_cls(self) -> type[Backend]:
            return RankBackend

    paths = (
        {key: str(Path(text).absolute()) for key, text in local_paths(config).items()}
        if config is not None
        else {}
    )
    order = {
        "arguments": arguments(job, config_name(job), paths),
        "environment": dict(job.environment),
    }
    trainer = DataParallelTrainer(
        work,
        train_loop_config=order,
        backend_config=RanksConfig(),
        scaling_config=ScalingConfig(
            num_workers=job.elastic or job.workers,
            use_gpu=bool(gpus),
            resources_per_worker={"CPU": job.cpus, **({"GPU": gpus} if gpus else {})},
            label_selector=dict(job.labels) or None,
            elastic_resize_monitor_interval_s=float(job.resize),
        ),
        run_config=RunConfig(
            name=job.name,
            storage_path=str(job.run.parent / ".ray"),
            failure_config=FailureConfig(
                max_failures=job.retries, preemption_grace_s=float(job.grace)
            ),
            logging_config=LoggingConfig(log_level="ERROR"),  # the ranks tell what matters
        ),
    )
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as problem:
        raise SegtrainError(
            f"the training has failed, after {job.retries} more starts: "
            f"{str(problem).strip().splitlines()[0]}: see "
            f"the output of the ranks above; the same command continues the run {job.run}",
            code="ray-training-failed",
            retries=job.retries,
        ) from None
    return int(result.return_value["code"])
