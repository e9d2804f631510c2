"""Entry point of a process of a SageMaker job: reads the files of the container, trains as one
rank, keeps the result.

It works the same under the toolkit of AWS (torchrun, mpirun with smddprun, or a single process) and
in a container without the toolkit. It takes no arguments. It imports most modules late, so that the
failure text can name a package that is missing in the image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from segtrain.base.stopping import note_signals
from segtrain.errors import EXIT_RESUMABLE, SegtrainError
from segtrain.platforms import outcome
from segtrain.platforms.process import set_defaults
from segtrain.platforms.sagemaker import helping as sagemaker_helping
from segtrain.platforms.sagemaker import settings
from segtrain.platforms.sagemaker.hosts import Hosts, base_folder, read_hosts, resource_config

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.parallel.cluster import Cluster

# MASTER_PORT of AWS's toolkit, which under mpirun sets it only for the ranks of the first host
PORT = "7777"
LITTLE_SHM = 512 * 2**20
# Seconds that a host waits before it fails, if its only error is that it lost another rank.
# SageMaker shows the failure reason of the host that fails first, and this should be the host with
# the cause.
LOST_S = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 0 if the run is done, or was stopped by a signal with its
    state saved.

    ``argv`` is ignored, because the toolkit repeats the hyperparameters there in another form.
    """
    base = base_folder()
    set_defaults()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # CloudWatch gets each line at once
    hosts: Hosts | None = None
    with reachable(ranks_folder(base)) as received:
        try:
            hosts = read_hosts(resource_config())
            return _work(base, hosts, received)
        except Exception as error:
            return _failed(error, base, hosts)


def ranks_folder(base: Path) -> Path:
    """Folder with the PIDs that entrypoint.sh signals. It has a default, because mpirun does not
    pass variables on.
    """
    return Path(os.environ.get("SEGTRAIN_RANKS") or base / "segtrain-ranks")


@contextlib.contextmanager
def reachable(ranks: Path) -> Iterator[list[int]]:
    """Register this process with entrypoint.sh for a stop, and yield a list to which each SIGTERM
    is appended.

    If the stop came before the registration, the file ``stop`` in the folder shows it, and a
    SIGTERM is appended too. Without entrypoint.sh there is no such folder, and SIGTERM must reach
    this process by other means.
    """
    received = note_signals(signal.SIGTERM)
    mark = ranks / f"{os.getpid()}.pid"
    if ranks.is_dir():
        mark.write_text(f"{os.getpid()}\n")
        # Checked last: entrypoint.sh sets the flag before it looks for PIDs.
        if (ranks / "stop").exists():
            received.append(signal.SIGTERM)
    try:
        yield received
    finally:
        mark.unlink(missing_ok=True)


def _work(base: Path, hosts: Hosts, received: list[int]) -> int:
    plan = sagemaker_helping.plan(base, hosts)
    if plan is not None and hosts.current in hosts.helping:
        return sagemaker_helping.help_here(plan, base, received)
    if not hosts.trains:
        print(
            f"host {hosts.current} of the group {hosts.group!r} has nothing to do: "
            f"{', '.join(hosts.training)} train"
        )
        return 0
    from segtrain.installed import discover, provided
    from segtrain.observe.journal import last_status
    from segtrain.platforms.decoder import prepare
    from segtrain.training.rank import train

    if "OMPI_COMM_WORLD_RANK" in os.environ and "RANK" not in os.environ:
        os.environ.setdefault("MASTER_ADDR", hosts.training[0])
        os.environ.setdefault("MASTER_PORT", PORT)
    cluster = discover()
    spared = _spare_shm(cluster.local_world_size)
    decoder = prepare(base / "segtrain-native")
    config, remarks = settings.resolve(folders=(Path.cwd(), Path(__file__).parents[3]))
    if cluster.local_rank == 0:
        _introduce(config, cluster, hosts, [decoder, *remarks, *_shm_remarks(config, spared)])
    with sagemaker_helping.around(plan, cluster.local_rank, received):
        report = partial(_failed, base=base, hosts=hosts)
        code = train(config, cluster, received, report=report, provided=provided())
    if code not in (0, EXIT_RESUMABLE):
        return code
    if cluster.rank == 0:
        stopped = code == EXIT_RESUMABLE or last_status(config.run_dir) != "done"
        _keep(config, base, stopped=stopped)
    return 0


def _introduce(config: Config, cluster: Cluster, hosts: Hosts, remarks: list[str]) -> None:
    """Print what differs between hosts, once on each host."""
    last = cluster.rank + cluster.local_world_size - 1
    kind = f"{hosts.type}, group {hosts.group}" if hosts.group else hosts.type
    print(
        f"host {hosts.current} ({kind}): ranks {cluster.rank} to {last} of {cluster.world_size} by "
        f"{cluster.source.name}, rank 0 at {cluster.master_addr}:{cluster.master_port}, interface "
        f"{hosts.interface or '(not said)'}"
    )
    existing = next(path for path in (config.run_dir, *config.run_dir.parents) if path.exists())
    room = f"{shutil.disk_usage(existing).free / 2**30:.1f} GiB free"
    print(f"  data {config.data.root or '(generated)'}, run folder {config.run_dir}, {room}")
    for remark in remarks:
        print(f"  {remark}")


def _spare_shm(local_ranks: int) -> bool:
    """Keep NCCL off a /dev/shm that is too small. Every rank of a host sees the same size and so
    decides alike.
    """
    if not os.path.isdir("/dev/shm") or local_ranks == 1 or "NCCL_SHM_DISABLE" in os.environ:
        return False
    if shutil.disk_usage("/dev/shm").total >= LITTLE_SHM:
        return False
    os.environ["NCCL_SHM_DISABLE"] = "1"
    return True


def _shm_remarks(config: Config, spared: bool) -> list[str]:
    """Lines about the shared memory of the container, for which SageMaker has no setting.

    With memfd_create, batches of worker processes need no /dev/shm. NCCL needs it between GPUs
    without a direct link.
    """
    if not os.path.isdir("/dev/shm"):
        return ["no /dev/shm"]
    usage = shutil.disk_usage("/dev/shm")
    images = config.train.batch_size // config.train.accumulate
    height, width = config.data.crop
    # 4 bytes per pixel: RGB and mask; images of all ranks
    need = images * height * width * 4 * config.data.prefetch
    free, total, batches = (f"{size / 2**20:.0f}" for size in (usage.free, usage.total, need))
    elsewhere = " outside it (memfd)" if hasattr(os, "memfd_create") else ""
    remarks = [
        f"/dev/shm: {free} of {total} MiB free; prefetched batches take {batches} MiB{elsewhere}"
    ]
    if spared:
        remarks.append(
            "NCCL may fail with so little /dev/shm: NCCL_SHM_DISABLE=1 is set (set it to 0 to "
            "prevent this)"
        )
    return remarks


def _keep(config: Config, base: Path, stopped: bool) -> None:
    """Save the results, on rank 0.

    A stopped job has only two minutes left, so it writes no ONNX model. It only prints an error
    that occurs here, because its checkpoints are already saved.
    """
    from segtrain.runfolder import checkpoint

    try:
        outcome.keep_journal(
            config.run_dir, Path(os.environ.get("SM_OUTPUT_DATA_DIR") or base / "output/data")
        )
        if checkpoint.checkpoints(config.run_dir):
            model = Path(os.environ.get("SM_MODEL_DIR") or base / "model")
            outcome.keep_model(config.run_dir, model, onnx=not stopped, say=print)
            _add_server(model)
    except SegtrainError as error:
        if not stopped:
            raise
        print(f"no model of the stopped run: {error}", file=sys.stderr)
    if stopped:
        print(
            f"stopped: the state is saved in {config.run_dir}, and a job with the same "
            "checkpoints continues it"
        )


def _add_server(model: Path) -> None:
    """Add the code with which SageMaker's PyTorch inference image serves model.onnx."""
    if not (model / "model.onnx").is_file():
        return
    code = model / "code"
    code.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[2] / "infer/serve.py", code / "inference.py")
    (code / "requirements.txt").write_text("onnxruntime\n")
    print(f"server    inference.py, in {code}")


def _failed(error: Exception, base: Path, hosts: Hosts | None) -> int:
    """Report the error, and return the exit code.

    Its cause is written to two files, one for SageMaker and one for entrypoint.sh, because old
    versions of the toolkit overwrite the first one.
    """
    rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    host = f"{hosts.current} ({hosts.type})" if hosts else socket.gethostname()
    helps = hosts is not None and hosts.current in hosts.helping
    text = f"{'helping host' if helps else f'rank {rank} on'} {host}: {outcome.cause(error)}"
    ranks = ranks_folder(base)
    files = [base / "output/failure", *([ranks / "failure"] if ranks.is_dir() else [])]
    outcome.write_failure(text, files, ranks / "reserve")
    code = outcome.say_error(error, text)
    lost = outcome.LOST in text and hosts is not None and len(hosts.training) > 1
    if lost or (isinstance(error, SegtrainError) and error.code == "head-lost"):
        time.sleep(LOST_S)
    return code
