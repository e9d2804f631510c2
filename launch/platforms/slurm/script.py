"""The sbatch script of a job: plain shell that a person can read, keep, edit, and submit without
this package.

A pure function of the job. What the script relies on:

* The exit code of the trainer: 0 done, 75 saved after a signal, 76 another rank was lost; anything
  else is an error that the next start would meet again. Each rank leaves its code in
  $SEGTRAIN_EXIT_CODES, because srun returns the largest one only, and torchrun 1.
* JobState while the script ends. RUNNING: a time limit or a preemption is near, and nobody else
  queues the job again. COMPLETING: scancel, or a requeue by somebody else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from shlex import quote

from launch.core.bundle import data_setting
from launch.core.job import PACKAGE, ROOT, config_file
from launch.platforms.slurm.job import SlurmJob

# For rank 0, which may still write a checkpoint, after the other ranks have ended.
WAIT_S = 120
# For srun, which ends the other ranks after WAIT_S, to end itself.
END_S = 180
FOLDER = "slurm"  # of a run: what the script and the launcher keep there


def job_folder(job: SlurmJob) -> Path:
    """Where the launcher keeps the script, the config, and the logs of a job."""
    runs = job.runs()
    return (
        runs[0] / FOLDER
        if len(runs) == 1 and not job.tasks
        else Path(job.output).absolute() / f"{job.name}-array"
    )


def script_folder(job: SlurmJob) -> Path:
    """The folder of the script and the config of this description. A later job with the same run
    folder has another one, so what a job that waits in the queue will read stays as it is.
    """
    config = config_file(job)
    content = config.read_bytes() if job.config and os.path.isfile(config) else b""
    return job_folder(job) / hashlib.sha256(repr(job).encode() + content).hexdigest()[:8]


def options(job: SlurmJob) -> list[str]:
    """The flags of sbatch and salloc, without those of a script's output and life."""
    per_node = 1 if job.start == "node" else job.local_ranks
    cores = job.cpus * (job.local_ranks if job.start == "node" else 1)
    wanted = {
        "job-name": job.name,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "nodes": job.nodes,
        "ntasks-per-node": per_node,
        "cpus-per-task": cores or "",
        "gres": f"gpu:{job.gpus}" if job.gpus else "",
        "mem": job.memory,
        "time": _clock(job.max_run),
        "constraint": job.constraint,
        "reservation": job.reservation,
        "nodelist": job.nodelist,
        "exclude": job.exclude,
    }
    flags = [f"--{flag}={value}" for flag, value in wanted.items() if value != ""]
    return [*flags, *(["--exclusive"] if job.exclusive else []), *job.sbatch]


def training(job: SlurmJob, config: str) -> list[str]:
    """The command of a rank: segtrain with the job's settings."""
    settings = {**job.settings, "parallel.strategy": job.strategy, **data_setting(job, job.data)}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [job.interpreter, "-m", "segtrain", "train", *([config] if config else []), *overrides]


def environment(job: SlurmJob) -> dict[str, str]:
    """The variables of the ranks. A checkout comes with its folder; the job's own pairs come
    last.
    """
    variables = {}
    if PACKAGE.parent == ROOT:
        variables["PYTHONPATH"] = str(ROOT)
    if job.interface:
        variables |= {"GLOO_SOCKET_IFNAME": job.interface, "NCCL_SOCKET_IFNAME": job.interface}
    if job.efa:
        variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
    if job.spot:
        variables["SEGTRAIN_SPOT_S"] = str(job.spot)
    return {**variables, **job.environment}


def srun(job: SlurmJob) -> list[str]:
    """srun with its flags: one task per rank, or one per node."""
    flags = ["--kill-on-bad-exit=0", f"--wait={_wait_s(job)}", "--label"]
    if job.cpus:  # srun does not take it from sbatch since Slurm 22.05
        flags.append(
            f"--cpus-per-task={job.cpus * (job.local_ranks if job.start == 'node' else 1)}"
        )
    if job.gpus and job.bind == "task" and job.start == "task":
        flags.append("--gpus-per-task=1")
    return ["srun", *flags]


def _wait_s(job: SlurmJob) -> int:
    return max(WAIT_S, job.notice)


def config_for(job: SlurmJob) -> str:
    """The config that the script names: the launcher's copy, which stays as it is while the job
    waits.
    """
    return str(script_folder(job) / config_file(job).name) if job.config else ""


def flags(job: SlurmJob) -> list[str]:
    """The flags in the #SBATCH lines."""
    log = f"{job_folder(job)}/".replace("%", "%%") + ("%A_%a.log" if job.tasks else "%j.log")
    head = [*options(job), f"--output={log}", f"--chdir={Path.cwd()}", "--open-mode=append"]
    head += [f"--signal=B:USR1@{job.notice}", "--requeue" if job.requeue else "--no-requeue"]
    limit = f"%{job.at_once}" if job.at_once else ""
    return [*head, f"--array=0-{len(job.tasks) - 1}{limit}"] if job.tasks else head


def sbatch_script(job: SlurmJob) -> str:
    """The whole text."""
    values = {
        "OPTIONS": "\n".join(f"#SBATCH {_option(flag)}" for flag in flags(job)),
        "NAME": job.name,
        "RUN": _run(job),
        "MOST_STOPS": str(job.most_stops),
        "ENVIRONMENT": "\n".join(_export(key, text) for key, text in environment(job).items()),
        "SETUP": "\n".join(job.setup),
        "TRAIN": " ".join(map(quote, training(job, config_for(job)))),
        "START": _start(job),
        "GIVE_UP": str(_wait_s(job) + END_S),
    }
    text = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], TEXT)
    return re.sub(r"\n{3,}", "\n\n", text)


def _start(job: SlurmJob) -> str:
    """The command that starts the ranks, with ${train[@]} for the training."""
    command = " ".join(srun(job))
    if job.start == "task":
        return f'{command} "${{train[@]}}"'
    torchrun = (
        f"{quote(job.interpreter)} -m torch.distributed.run --nnodes={job.nodes} "
        f"--nproc-per-node={job.local_ranks} "
        "--max-restarts=0 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} "
        '--rdzv-endpoint=${MASTER_ADDR:-$(hostname)}:$MASTER_PORT --no-python "${train[@]}"'
    )
    # torchrun ends at USR1, which its ranks take as their notice.
    return f'{command} bash -c \'trap "" USR1; exec "$@"\' node {torchrun}'


def _run(job: SlurmJob) -> str:
    if not job.tasks:
        return f"run={quote(str(job.runs()[0]))}"
    rows = [
        f"  {number}) run={quote(str(run))}; settings=({' '.join(map(quote, task))}) ;;"
        for number, (run, task) in enumerate(zip(job.runs(), job.tasks))
    ]
    return "\n".join(["case $SLURM_ARRAY_TASK_ID in", *rows, "esac"])


def _clock(seconds: int) -> str:
    """``26:00:00`` for 26 hours. Slurm counts whole minutes."""
    minutes = max(1, -(-seconds // 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _option(flag: str) -> str:
    """A flag as sbatch reads it from a script, where # begins a comment, and quotes and backslashes
    vanish.
    """
    key, equals, value = flag.partition("=")
    if not equals or re.fullmatch(r"[\w./:,;%@+=-]*", value):
        return flag
    return '{}="{}"'.format(key, re.sub(r'(["\\])', r"\\\1", value))


def _export(key: str, text: str) -> str:
    """The value in double quotes, so that $VARIABLES in it are filled in on the node."""
    escaped = re.sub(r'(["\\`]|\$(?![A-Za-z_{]))', r"\\\1", text)
    appended = f"${{{key}:+:${key}}}" if key == "PYTHONPATH" else ""
    return f'export {key}="{escaped}{appended}"'


TEXT = """\
#!/bin/bash
@OPTIONS@
# Trains @NAME@ with segtrain. Plain shell: edit it, and submit it with: sbatch FILE [section.key=value ...]
# A job that is stopped by its time limit or a preemption, or loses a rank, queues itself again and goes on from its
# newest checkpoint. The run folder does not depend on the job's number.
# srun passes USR1 on to the ranks; TERM would end srun, and Slurm has sent it to the ranks itself.
srun='' got='' heard=''
trap 'got="$got USR1"; heard=1; [ -z "$srun" ] || kill -USR1 "$srun" 2>/dev/null' USR1
trap 'got="$got TERM"; heard=1' TERM
settings=()
@RUN@
most_stops=@MOST_STOPS@  # in a row without a new checkpoint
@SETUP@
export SLURM_EXPORT_ENV=ALL  # srun passes on what is set here, also after sbatch --export=NONE
@ENVIRONMENT@
set -u  # after the lines of the site, which may use variables that are not set
: "${SLURM_JOB_ID:?submit this script with sbatch}"
train=(@TRAIN@ "out=$run" ${settings[@]+"${settings[@]}"} "$@")

me=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || me=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
restarts=${SLURM_RESTART_COUNT:-0}
notes=$run/slurm
[ "$restarts" -ne 0 ] || rm -f "$notes/stops"  # those of an earlier job
say() { echo "[$(date '+%F %T')] job $me, start $((restarts + 1)): $*" | tee -a "$notes/history.txt"; }
mkdir -p "$notes" || exit 2
export SEGTRAIN_EXIT_CODES=$notes/codes-$SLURM_JOB_ID-$restarts
rm -rf "$SEGTRAIN_EXIT_CODES"
mkdir "$SEGTRAIN_EXIT_CODES" || exit 2
# The limit of open files of a login node comes along with the job.
ulimit -Sn "$(ulimit -Hn)"

# The name of a node need not resolve, but Slurm knows its address. Without scontrol the ranks try the name, and
# torchrun the name of this node, which is the first one.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol -o show node "$first" | grep -o ' NodeAddr=[^ ]*' | cut -d= -f2)
[ -z "$address" ] || export MASTER_ADDR=$address
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 31 + restarts) % 10000))
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

codes() { ls "$SEGTRAIN_EXIT_CODES" 2>/dev/null | cut -d- -f1; }  # of the ranks: files CODE-HOST-PID
newest() { ls "$run/checkpoints" 2>/dev/null | grep -o '^step-[0-9]*' | sort | tail -n 1; }
before=$(newest)
say "nodes $SLURM_JOB_NODELIST, rank 0 at ${MASTER_ADDR:-?}:$MASTER_PORT, from checkpoint ${before:-(none)}"

code=75
if [ -z "$got" ]; then
  @START@ &
  srun=$!
  # Of a node that vanished without a word, and was back before Slurm noticed, srun would wait for the ranks forever.
  {
    until [ -n "$(codes)" ]; do sleep 10; done
    sleep @GIVE_UP@
    say 'srun waits for ranks that are gone: killed'
    kill -KILL "$srun"
  } &
  guard=$!
  disown
  code=127
  while :; do  # a trap ends the wait, not the ranks: wait again
    heard=''
    wait "$srun"
    now=$?
    [ "$now" -eq 127 ] || code=$now
    [ -n "$heard" ] || break
  done
fi
trap - TERM USR1
[ -z "${guard:-}" ] || kill "$guard" 2>/dev/null

found=''
for try in $(seq 60); do  # while slurmctld is away
  found=$(scontrol -o show job "$me") && break
  [ "$code" -ne 0 ] && command -v scontrol > /dev/null || break
  sleep 5
done
state=$(grep -o ' JobState=[^ ]*' <<< "$found" | cut -d= -f2)
after=$(newest)
ranks=$(codes | sort -n | uniq -c | awk '{printf "%s x %s ", $1, $2}')
say "srun ended with $code (exit codes of ranks: ${ranks:-none}), signals:${got:- none}, state ${state:-unknown}," \\
  "checkpoint ${before:-(none)} -> ${after:-(none)}"

# 75: saved. 76: another rank was lost. Any other code of a rank is an error, which the next start would meet again;
# only a traceback (1) beside a rank that was killed (srun: 128 or more) may be a consequence.
wrong=$(codes | grep -vxE '0|75|76' | sort -n | tail -n 1)
if [ "$wrong" = 1 ] && [ "$code" -ge 128 ]; then wrong=''; fi
rm -rf "$SEGTRAIN_EXIT_CODES"
if [ -n "$wrong" ]; then say "a rank failed with exit code $wrong: fix it and submit again"; exit "$wrong"; fi
if [ "$code" -eq 0 ]; then say done; exit 0; fi
# 126, 127: a shell found no such program.
if [ -z "$ranks" ] && { [ "$code" -lt 75 ] || [ "$code" -eq 126 ] || [ "$code" -eq 127 ]; }; then
  say 'the ranks did not start: see above'
  exit "$code"
fi

if [ "$after" != "$before" ]; then rm -f "$notes/stops"; else echo "$me" >> "$notes/stops"; fi
if [ -e "$notes/stops" ] && [ "$(wc -l < "$notes/stops")" -ge "$most_stops" ]; then
  say "$most_stops stops in a row without a new checkpoint: the end. Look above, then submit again"
  rm -f "$notes/stops"
  exit 1
fi
if [ -z "$state" ]; then
  say 'this node cannot ask Slurm (no scontrol): the state is saved, submit it again to go on'
elif [ "$state" != RUNNING ]; then  # scancel, or a requeue by somebody else
  say 'stopped by Slurm, the state is saved'
elif ! grep -q ' Requeue=1' <<< "$found"; then  # --no-requeue, or the launcher's --stop
  say 'stopped, the state is saved: submit it again to go on'
else
  say 'queued again'
  for try in $(seq 60); do
    scontrol requeue "$me" && sleep 60  # Slurm ends this script in the meantime
    sleep 5
  done
  say 'cannot be queued again: submit it by hand'
fi
exit 75
"""  # noqa: E501
