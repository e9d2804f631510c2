"""A private Slurm on this machine: its own munged, slurmctld, and one slurmd per node, all below
one folder.

The nodes share this host and its file system, so nothing is proved about several machines. A node
can be lost (``Cluster.lose``) and come back: its processes are killed, and, in a cluster with
``networks``, its network vanishes first, so that nobody hears of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node_networks import NodeNetworks

from segtrain.parallel.cluster import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
UP_S = 120.0
CONF = """\
ClusterName=seg
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={at}/run/munge.sock,cred_expire=5
SlurmctldPort={port}
SlurmctldPidFile={at}/run/slurmctld.pid
SlurmdPidFile={at}/run/slurmd-%n.pid
SlurmctldLogFile={at}/log/slurmctld.log
SlurmdLogFile={at}/log/slurmd-%n.log
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdTimeout={down_s}
SlurmctldTimeout=5
InactiveLimit=0
KillWait=20
MinJobAge=300
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP PriorityTier=1 GraceTime=15 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=60 DefaultTime=10 State=UP PriorityTier=10 PreemptMode=OFF
{further}
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} Sockets=1 ThreadsPerCore=1 {hardware}"
HARDWARE = "CPUs=2 CoresPerSocket=2 RealMemory=4000 Gres=gpu:2"
# 22.05 has its settings in the slurm.conf; so this file only keeps the one of the system away.
CGROUP = "CgroupAutomount=no\n"


class NoSlurm(Exception):
    """Why Slurm cannot run on this machine."""


def lacking() -> str:
    """Why no Slurm can be started here; "" where it can be tried."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        return f"no {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "the daemons of Slurm need root"


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")


def free_ports(count: int) -> list[int]:
    """Ports that the kernel gives to nobody until the daemons bind them."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


@dataclass
class Cluster:
    """A running cluster. ``environment``: what a client needs (SLURM_CONF)."""

    folder: Path
    nodes: tuple[str, ...]
    environment: dict[str, str]
    networks: NodeNetworks | None = None
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground: PID 1 of a container need not reap those that detach
        themselves.
        """
        log = open(self.folder / f"log/{name}.out", "ab")  # noqa: SIM115
        with log:
            self.daemons[name] = subprocess.Popen(
                [_program(command[0]) or command[0], *command[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )

    def run(
        self, *command: str, check: bool = True, timeout: float = 600.0, **environment: str
    ) -> str:
        """The output of a client's command. Raises AssertionError where it fails."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**self.environment, **environment},
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What scontrol shows of one job; {} where it is not known."""
        text = self.run("scontrol", "-o", "show", "job", number, check=False)
        return dict(re.findall(r"(\w+)=(\S*)", text.splitlines()[0])) if text.strip() else {}

    def states(self) -> dict[str, str]:
        return dict(
            line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        )

    def slurmctld(self) -> None:
        self.start("slurmctld", "slurmctld", "-D")

    def slurmd(self, node: str) -> None:
        command = [_program("slurmd") or "slurmd", "-D", "-N", node]
        if self.networks:
            self.networks.add(node)
            command = self.networks.inside(node, *command, "-b")
        self.start(node, *command)

    def lose(self, node: str) -> None:
        """Kill a node: its slurmd, and everything that runs on it."""
        if self.networks:
            self.networks.vanish(node)
        found = self.of_node(node)
        for pid in [self.daemons[node].pid, *found]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons[node].wait()

    def of_node(self, node: str) -> list[int]:
        """The processes of a node's jobs, and the daemons of their steps."""
        found, mark = [], f"SLURMD_NODENAME={node}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = str(self.folder).encode() in (content := (process / "environ").read_bytes())
                steps = b"slurmstepd: [" in (process / "cmdline").read_bytes()
                if ours and (
                    mark in content.split(b"\0") or (steps and self._steps_node(process) == node)
                ):
                    found.append(int(process.name))
        return found

    def _steps_node(self, process: Path) -> str:
        """The node of a slurmstepd, by the log that it has open."""
        for number in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                match = re.search(r"slurmd-(\w+)\.log$", os.readlink(number))
                if match:
                    return match[1]
        return ""

    def wait_up(self, limit_s: float = UP_S) -> None:
        """Wait until slurmctld has heard of all nodes. Raises NoSlurm with what slurmd says."""
        end, states = time.monotonic() + limit_s, {}
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):
                states = self.states()
                if set(states) == set(self.nodes) and not re.search(
                    r"down|unk|\*", " ".join(states.values())
                ):
                    return
            dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if dead:
                break
            time.sleep(0.1)
        said = [
            line
            for log in sorted((self.folder / "log").iterdir())
            for line in log.read_text(errors="replace").splitlines()
            if "error" in line or "fatal" in line
        ]
        raise NoSlurm(f"Slurm does not start here: nodes {states}; {' | '.join(said[-4:])}")


@contextlib.contextmanager
def slurm_cluster(
    folder: Path,
    nodes: Sequence[str] = ("n1", "n2"),
    further: str = "",
    gres: str = "",
    hardware: Mapping[str, str] | None = None,
    networks: NodeNetworks | None = None,
    down_s: int = 8,
) -> Iterator[Cluster]:
    """A cluster below ``folder``. ``further``: lines of slurm.conf; ``gres``: gres.conf in the
    place of two fake GPUs; ``hardware``: of a node, in the place of HARDWARE (with
    SlurmdParameters=config_overrides in ``further``); ``networks``: for a network of each node;
    ``down_s``: silence after which Slurm gives a node up.

    Raises NoSlurm where it cannot start, with what it says itself.
    """
    if why := lacking():
        raise NoSlurm(why)
    at = Path(folder).resolve()
    for name in ("etc", "run", "log", "state", "dev", *(f"spool/{node}" for node in nodes)):
        (at / name).mkdir(parents=True, exist_ok=True)
    (at / "run").chmod(0o755)
    key = at / "etc/munge.key"
    key.touch(0o400)
    key.write_bytes(os.urandom(128))
    ports = free_ports(1 + len(nodes))
    host = socket.gethostname().partition(".")[0]
    rows = [
        NODE.format(
            name=name,
            host=host,
            port=port,
            hardware=(hardware or {}).get(name, HARDWARE),
            address=networks.of(name) if networks else "127.0.0.1",
        )
        for name, port in zip(nodes, ports[1:])
    ]
    conf = CONF.format(
        at=at,
        host=host,
        port=ports[0],
        nodes="\n".join(rows),
        further=further,
        down_s=down_s,
        address=networks.address if networks else "127.0.0.1",
    )
    (at / "etc/slurm.conf").write_text(conf)
    (at / "etc/cgroup.conf").write_text(CGROUP)
    if not gres:
        for number in range(2):
            with contextlib.suppress(FileExistsError):
                # A character device like /dev/null: Slurm only wants to see one.
                os.mknod(at / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        names = ",".join(nodes)
        gres = f"NodeName={names} Name=gpu File={at}/dev/nvidia[0-1] Flags=nvidia_gpu_env\n"
    (at / "etc/gres.conf").write_text(gres)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))
    }
    environment["SLURM_CONF"] = str(at / "etc/slurm.conf")
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    cluster = Cluster(at, tuple(nodes), environment, networks)
    try:
        cluster.start(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={at}/run/munge.sock",
            f"--pid-file={at}/run/munged.pid",
            f"--log-file={at}/log/munged.log",
            f"--seed-file={at}/run/munge.seed",
        )
        cluster.slurmctld()
        for node in nodes:
            cluster.slurmd(node)
        cluster.wait_up()
        yield cluster
    finally:
        _end(cluster)


def _end(cluster: Cluster) -> None:
    """End all that runs there: jobs first, munged last."""
    for node in cluster.nodes:
        for pid in cluster.of_node(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for daemon in reversed(cluster.daemons.values()):
        daemon.kill()
        daemon.wait()
