"""A look from the nodes themselves, by a short srun: what of the job they see, and whether its
Python starts there.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

from launch.core.findings import Finding, error, note, warning
from launch.core.job import PACKAGE
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.folders import existing, local_data
from launch.platforms.slurm.preflight.state import SlurmState, listed
from launch.platforms.slurm.script import environment

WAIT_S = 10  # for a free node
LIMIT_S = 90  # for all of it: the first import from a cold file system takes long
MARK = "segtrain-look"
Replies = Mapping[str, Mapping[str, str]]
# What each node answers, one line for each question. The training's own lines of setup run first,
# as in the job.
TEXT = """
say() {{ printf '%s\\t%s\\t%s\\t%s\\n' {mark} "$SLURMD_NODENAME" "$1" "$2"; }}
cd / || exit 1
say token "$(cat {token} 2>/dev/null)"
say folder "$([ -d {folder} ] && echo yes)"
say data "$([ -e {data} ] && echo yes)"
say scontrol "$(scontrol --version >/dev/null 2>&1 && echo yes)"
say interface "$([ -e /sys/class/net/{interface} ] && echo yes)"
say efa "$(ls /sys/class/infiniband 2>/dev/null | head -n 1)"
say gpus "$(command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -c '^GPU')"
{setup}
{variables}
say python "$(command -v {python})"
say import "$({python} -c {code} 2>&1 | tail -n 1)"
say end yes
"""
CODE = """import importlib.util, segtrain
assert importlib.util.find_spec('torch'), 'torch is not installed'
print('segtrain', segtrain.__version__)"""


def text(job: SlurmJob, folder: Path, token: Path) -> str:
    """The script that every node runs."""
    path = environment(job).get("PYTHONPATH")
    return TEXT.format(
        mark=MARK,
        token=quote(str(token)),
        folder=quote(str(folder)),
        data=quote(local_data(job) or "/"),
        interface=quote(job.interface or "lo"),
        setup="\n".join(job.setup),
        variables=f"export PYTHONPATH={quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}" if path else "",
        python=quote(job.interpreter),
        code=quote(CODE),
    )


def command(job: SlurmJob, least: int, most: int, script: str) -> list[str]:
    """srun with the script on those of the job's nodes that are free, for two minutes at most. With
    one GPU where the job asks for some.
    """
    wanted = {
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "constraint": job.constraint,
        "reservation": job.reservation,
        "exclude": job.exclude,
        "gres": f"gpu:{job.gpus.type + ':' if job.gpus.type else ''}1"
        if job.gpus and job.gpus.count
        else "",
    }
    return [
        *(
            "srun",
            f"--nodes={least}-{most}",
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            "--mem=500M",
            "--time=2",
            "--chdir=/",
        ),
        *(
            f"--immediate={WAIT_S}",
            f"--job-name={MARK}",
            "--export=ALL",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--quiet",
        ),
        *(f"--{flag}={value}" for flag, value in wanted.items() if value),
        *("bash", "-c", script),
    ]


def ask_nodes(job: SlurmJob, cluster: SlurmState, folder: Path) -> tuple[Replies, list[Finding]]:
    """The answers of the nodes, by their names; {} with a note where none could be asked."""
    candidates = [
        candidate
        for name in listed(job.partition) or ("",)
        if (candidate := cluster.partition(name))
    ]
    counts = [sum(node.awake for node in cluster.nodes_of(candidate)) for candidate in candidates]
    awake, partition = max(zip(counts, candidates), key=lambda pair: pair[0], default=(0, None))
    smallest = partition.fields.get("MinNodes", "") if partition else ""
    least, most = max(1, int(smallest) if smallest.isdigit() else 1), min(job.nodes, awake)
    if most < least:
        return {}, [_unasked("too few nodes of the partition are powered up and idle now (sinfo)")]
    token = existing(job.output) / f".{MARK}-{secrets.token_hex(6)}"
    try:
        token.write_text(token.name, encoding="ascii")
    except OSError as problem:
        message = f"output={job.output!r}: cannot write into {token.parent}: {problem.strerror}"
        return {}, [
            error("output-not-writable", message, "free space or quota there, or another --output")
        ]
    try:
        job = replace(job, partition=partition.name if partition else "")
        return _run(command(job, least, most, text(job, folder, token)), token.name)
    finally:
        token.unlink(missing_ok=True)


def _run(words: list[str], token: str) -> tuple[Replies, list[Finding]]:
    # A job's own variables would make this a step of it.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("SLURM_") or key == "SLURM_CONF"
    }
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException as problem:
            process.terminate()  # srun then ends the job
            process.communicate()
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            return {}, [_unasked(f"no answer within {LIMIT_S} s")]
    replies: dict[str, dict[str, str]] = {}
    for line in out.splitlines():
        mark, *rest = line.split("\t")
        if mark == MARK and len(rest) == 3:
            replies.setdefault(rest[0], {})[rest[1]] = rest[2].replace(token, "yes")
    complete = {node: answers for node, answers in replies.items() if "end" in answers}
    if not complete:
        reason = " ".join(err.split())[-300:] or f"srun ended with {process.returncode}"
        return replies, [_unasked(reason)] if not replies else [_setup(replies, reason)]
    return complete, []


def _unasked(reason: str) -> Finding:
    return note(
        "nodes-not-asked", f"what the nodes see is not checked: {reason}", "look again later"
    )


def _setup(replies: Replies, reason: str) -> Finding:
    return error(
        "setup-ends",
        f"setup: its lines end the shell on {', '.join(replies)}: {reason}",
        "lines that return, in --setup",
    )


def answers(job: SlurmJob, replies: Replies, folder: Path, version: str) -> Iterator[Finding]:
    """What is wrong, by the answers. ``version``: of segtrain here."""

    def nodes(key: str, wrong: str = "") -> str:
        return ", ".join(node for node, answers in replies.items() if answers.get(key, "") == wrong)

    if there := nodes("token"):
        yield error(
            "output-not-shared",
            f"output={job.output!r}: {there} does not see the files that this host writes into "
            f"{existing(job.output)}",
            "--output on a file system that all nodes share (df -T here and on a node)",
        )
    if there := nodes("folder"):
        yield error(
            "folder-not-there",
            f"{there} has no folder {folder}, in which the job would start: Slurm fails it at "
            "once, without a log",
            "start this command in a folder that all nodes see",
        )
    if there := nodes("data"):
        yield (warning if job.setup else error)(  # its lines may bring the data
            "data-not-visible",
            f"data={local_data(job)!r}: {there} does not see it",
            "--data on a file system of all nodes",
        )
    yield from _python(job, replies, version)
    if there := nodes("scontrol"):
        yield warning(
            "scontrol-missing",
            f"{there} has no scontrol: the job cannot look up the address of its first node, "
            "nor queue itself again",
            "--setup 'export PATH=$PATH:/opt/slurm/bin', with its folder on the nodes",
        )
    if job.interface and (there := nodes("interface")):
        yield error(
            "interface-missing",
            f"interface={job.interface!r}: {there} has none",
            "--interface of `ip link` there",
        )
    if job.efa and (there := nodes("efa")):
        yield error(
            "efa-missing",
            f"efa: {there} has no EFA device",
            "leave --efa out, or nodes that have one",
        )
    if job.gpus and (there := nodes("gpus", "0")):
        yield error(
            "gpus-invisible",
            f"{there} shows no GPU to a job that asks for one (nvidia-smi -L)",
            "tell the administrator",
        )


def _python(job: SlurmJob, replies: Replies, version: str) -> Iterator[Finding]:
    for node, answers in replies.items():
        if not answers.get("python"):
            yield error(
                "python-missing",
                f"python={job.interpreter!r}: {node} has no such program",
                "install it on the shared file system, or --python the one on the nodes",
            )
        elif not answers.get("import", "").startswith("segtrain "):
            path = (
                f" (with PYTHONPATH={PACKAGE.parent})" if "PYTHONPATH" in environment(job) else ""
            )
            yield error(
                "python-import",
                f"python={job.interpreter!r} on {node} cannot import segtrain and torch{path}: "
                f"{answers.get('import')}",
                "install segtrain where all nodes see it, or --setup 'source "
                "ENVIRONMENT/bin/activate'",
            )
        elif answers["import"] != f"segtrain {version}":
            yield warning(
                "python-version",
                f"{node} has {answers['import']}, and this host {version}, which checked "
                "the config",
                "install the same version",
            )
