"""Tests of the Slurm launcher without Slurm: the job's description, its script, and what is
refused.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import refused

from launch import slurm
from launch.core.job import load_job
from launch.platforms.slurm import tools
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.prepare import interactive, refuse, write
from launch.platforms.slurm.script import sbatch_script
from segtrain.errors import SegtrainError

ROOT = Path(__file__).parents[2]


def job(tmp_path: Path, **keys: Any) -> SlurmJob:
    return load_job(SlurmJob, {"output": str(tmp_path / "shared runs"), **keys}, {})


def options(script: str) -> dict[str, str]:
    """The flags of #SBATCH lines."""
    lines = [
        line.removeprefix("#SBATCH --")
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    ]
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    "keys",
    [
        {
            "gpus": "h100:8",
            "nodes": 2,
            "bind": "task",
            "cpus": 6,
            "interface": "eth0",
            "efa": True,
            "spot": "5s",
        },
        {
            "start": "node",
            "procs": 2,
            "cpus": 3,
            "setup": ["module load 'cuda'"],
            "environment": {"A": '"$HOME"'},
        },
        {"array": ["train.seed=1 'name=a b'", "optim.lr=0.1"], "at_once": 1},
        {
            "settings": {"train.steps": 3, "data.root": "/a b"},
            "config": "",
            "sbatch": ["--comment=a b"],
        },
    ],
)
def test_the_script_is_shell(tmp_path, keys):
    script = sbatch_script(job(tmp_path, **keys))
    assert "@" not in script.replace("USR1@", "").replace("$@", "").replace("[@]", "").replace(
        "$#@", ""
    )
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"image": "nvcr.io/nvidia/pytorch"}, "not-on-slurm"),
        ({"requirements": "r.txt"}, "not-on-slurm"),
        ({"program": "mine.py"}, "not-on-slurm"),
        ({"gpus": {"count": -1}}, "value-invalid"),
        ({"start": "node", "bind": "task", "gpus": 2}, "bind-torchrun"),
        ({"partition": "gpu\n#SBATCH --exclusive"}, "flag-line-break"),
        ({"sbatch": ["--comment=a\nb"]}, "flag-line-break"),
        ({"array": ["train.seed=1"], "seeds": [1]}, "tasks-twice"),
        ({"array": ["train.seed=1", "train.seed=1"]}, "tasks-equal"),
        ({"settings": {"out": "runs/x"}}, "out-on-slurm"),
    ],
)
def test_jobs_that_cannot_be(tmp_path, keys, code):
    with refused(code):
        refuse(job(tmp_path, **keys))


def test_the_config_of_a_waiting_job_is_kept(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("train: {batch_size: 4}\n")
    script = write(job(tmp_path, config=str(config), name="kept"))
    config.write_text("train: {batch_size: 8}\n")
    kept, text = script.parent / "mine.yaml", script.read_text()
    for again in ({}, {"array": ["train.seed=1"]}, {"array": ["train.seed=2"]}, {"after": "7"}):
        assert write(job(tmp_path, config=str(config), name="kept", **again)) != script
    assert kept.read_text() == "train: {batch_size: 4}\n"
    assert str(kept) in text
    assert script.read_text() == text
    # trains from its own copy
    assert write(job(tmp_path, config=str(kept), name="kept")).parent / "mine.yaml" != kept


def test_a_script_that_cannot_be_written_leaves_no_half_one(tmp_path, monkeypatch):
    found = job(tmp_path, name="full")
    script = write(found)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    script.unlink()
    monkeypatch.setattr("os.replace", full)
    with refused("output-not-writable"):
        write(found)
    assert [path.name for path in script.parent.iterdir()] == ["scenes.yaml"]


def test_interactive_uses_the_allocation_that_is_there(tmp_path):
    found = job(tmp_path, nodes=2, gpus=1)
    assert interactive(found, inside=False)[0] == "salloc"
    inside = interactive(found, inside=True)
    assert inside[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(inside)
    assert interactive(found, inside=False)[-len(inside) :] == inside


def test_an_interactive_job_starts_one_process_per_gpu_without_torchrun(tmp_path):
    words = interactive(job(tmp_path, gpus=4, cpus=2, start="node"), inside=False)
    assert {"--ntasks-per-node=4", "--cpus-per-task=2"} <= set(words)
    assert words == interactive(job(tmp_path, gpus=4, cpus=2), inside=False)


@pytest.mark.parametrize("key", ["seeds: [1, 2]", "array: [train.seed=1]"])
def test_an_array_of_a_job_file_is_refused_in_a_terminal(key, tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text(f"{key}\n")
    for more in ([], ["--dry-run"]):
        assert slurm.main(["--job", str(file), "--interactive", *more]) == 2
        assert "--interactive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("7\n", "7"),
        ("7;seg\n", "7"),
        ("Welcome to the cluster\n12\n", "12"),
        ("\n", ""),
        ("5 jobs", ""),
    ],
)
def test_the_number_of_a_submitted_job(monkeypatch, said, number):
    """Without a number, ``scontrol show job`` would show all jobs of the cluster."""
    monkeypatch.setattr(tools, "ask", lambda *_: said)
    if number:
        assert tools.submit(Path("job.sh")) == number
        return
    with refused("sbatch-answer"):
        tools.submit(Path("job.sh"))


def test_a_submission_without_an_answer_may_have_happened(monkeypatch):
    def silent(*_: str) -> str:
        raise SegtrainError("sbatch gave no answer within 60 s", code="slurm-away")

    monkeypatch.setattr(tools, "ask", silent)
    with pytest.raises(SegtrainError, match="squeue --me") as caught:
        tools.submit(Path("job.sh"))
    assert caught.value.code == "slurm-away"


def test_ctrl_c_says_what_may_have_been_submitted_or_stopped(monkeypatch, capsys, tmp_path):
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "online", lambda *_, **__: [])
    monkeypatch.setattr(slurm, "write", lambda job: tmp_path / "script")
    monkeypatch.setattr("launch.slurm.submit", interrupt)
    monkeypatch.setattr("launch.platforms.slurm.follow.stop", interrupt)
    assert slurm.main(["--output", str(tmp_path)]) == 130
    assert "may have been submitted" in capsys.readouterr().err
    assert slurm.main(["--stop", "7"]) == 130
    assert "7 may not have been told to stop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("array", [""]),
        ("array", ["train.seed=1", " "]),
        ("output", "a\nb"),
    ],
)
def test_values_that_would_break_the_script_are_refused(tmp_path, key, value):
    with refused("value-invalid", key=f"the job: {key}"):
        job(tmp_path, **{key: value})


def test_the_name_of_a_run_folder_is_never_too_long(tmp_path):
    tasks = [f"data.root=/{'x' * 300} train.seed={seed}" for seed in (1, 2)]
    runs = job(tmp_path, array=tasks).runs()
    assert len(set(runs)) == 2
    assert max(len(run.name) for run in runs) < 130


def test_values_of_variables_reach_the_node(tmp_path):
    texts = {"A": "$HOME", "B": "$(id)", "C": "1$2`id`", "D": '"'}
    script = sbatch_script(job(tmp_path, environment=texts))
    lines = [
        line
        for line in script.splitlines()
        if line.startswith(tuple(f'export {key}="' for key in texts))
    ]
    said = subprocess.run(
        ["bash", "-uc", "\n".join([*lines, 'echo "$A|$B|$C|$D"'])],
        env={"HOME": "/h"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == '/h|$(id)|1$2`id`|"'


def test_lines_of_the_site_may_use_variables_that_are_not_set(tmp_path):
    script = sbatch_script(
        job(tmp_path, setup=['[ -z "$PS1" ] && echo "no prompt"'], environment={"A": "$UNSET"})
    )
    head, _, rest = script.partition("\ntrain=(")
    assert rest
    said = subprocess.run(
        ["bash", "-c", head], env={"SLURM_JOB_ID": "1"}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "no prompt\n"


def test_a_percent_sign_in_a_folder_is_no_pattern(tmp_path):
    found = options(sbatch_script(job(tmp_path, output="/x/100%jobs", name="a")))
    assert found["output"] == "/x/100%%jobs/a/slurm/%j.log"


@pytest.mark.parametrize(
    "words", [["--stop", ""], ["--attach", ""], ["--stop", "abc"], ["--attach=-1"]]
)
def test_only_the_number_of_one_job_is_taken(words, capsys):
    """``scontrol show job ""`` lists all jobs of the cluster."""
    assert slurm.main(words) == 2
    assert "must be the number of a job" in capsys.readouterr().err


def test_a_dry_run_says_how_to_submit_its_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path / 'none'}:/usr/bin:/bin")
    slurm.main(["--dry-run", "--output", str(tmp_path / "my runs"), "--name", "a", "--after", "7"])
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if line.startswith("to submit it by hand")]
    command, _, submit = line.partition(": ")[2].rpartition(" && ")
    assert submit == "sbatch --dependency=afterok:7 --kill-on-invalid-dep=yes FILE"
    subprocess.run(["bash", "-c", command], check=True)
    log = Path(options(said.out)["output"])
    assert log.parent == tmp_path / "my runs/a/slurm"
    (copy,) = log.parent.glob("*/scenes.yaml")
    assert copy.read_text() == (ROOT / "configs/scenes.yaml").read_text()
    assert f"'{copy}'" in said.out
