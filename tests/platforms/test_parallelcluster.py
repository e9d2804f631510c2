"""Tests of the ParallelCluster recipes: planted mistakes are named, sound ones pass, and
ParallelCluster agrees.

ParallelCluster's own schema and dry run need packages that do not fit beside those of segtrain.
`make test-clusters` installs them into .venv-clusters; elsewhere these tests are skipped. No test
reaches AWS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import refused
from golden_findings import check_findings

from launch import cluster
from launch.platforms.parallelcluster import schema
from launch.platforms.parallelcluster.recipe import read
from launch.platforms.parallelcluster.storage import standing_cost

ROOT = Path(__file__).parents[2]
RECIPES = {name: ROOT / f"configs/clusters/{name}.yaml" for name in ("research", "block", "cpu")}
PROGRAM = ROOT / ".venv-clusters/bin/pcluster"
Recipe = dict[str, Any]


def queue(recipe: Recipe, name: str) -> Recipe:
    return next(one for one in recipe["Scheduling"]["SlurmQueues"] if one["Name"] == name)


def resource(recipe: Recipe, name: str) -> Recipe:
    return queue(recipe, name)["ComputeResources"][0]


def fsx(recipe: Recipe) -> Recipe:
    return recipe["SharedStorage"][0]["FsxLustreSettings"]


def settings(recipe: Recipe) -> Recipe:
    return recipe["Scheduling"]["SlurmSettings"]


def link(recipe: Recipe, **more: Any) -> None:
    own = {"Name": "more", "FileSystemPath": "/more", "DataRepositoryPath": "s3://my-bucket/more"}
    fsx(recipe)["DataRepositoryAssociations"].append({**own, "AutoImportPolicy": ["NEW"], **more})


HEAD_ROLE = {"InstanceRole": "arn:aws:iam::123456789012:role/head"}
# A change that makes no finding.
FINE: list[Callable[[Recipe], Any]] = [
    lambda r: (r["HeadNode"]["Ssh"].pop("KeyName"), r["HeadNode"].update(Iam=HEAD_ROLE)),
    lambda r: (
        r["HeadNode"]["Ssh"].pop("KeyName"),
        r["HeadNode"].update(Iam={}, CustomActions={}),
        r.update(DirectoryService={"DomainName": "corp"}),
    ),
]


@pytest.mark.parametrize("number", range(len(FINE)))
def test_a_sound_change_has_no_finding(number):
    recipe = read(RECIPES["research"])
    FINE[number](recipe)
    assert [one for one in cluster.check(recipe) if one.level != "note"] == []


def test_a_file_system_of_unknown_price_is_named():
    recipe = read(RECIPES["research"])
    fsx(recipe).update(DeploymentType="PERSISTENT_1")
    dollars, words = standing_cost(recipe)
    assert dollars == 0
    assert len(words) == 1
    assert "PERSISTENT_1" in words[0]


# the code of the finding, and what makes it
PLANTS: list[tuple[str, Callable[[Recipe], Any]]] = [
    ("type-retired", lambda r: resource(r, "ondemand").update(InstanceType="p3.8xlarge")),
    ("type-driver", lambda r: resource(r, "ondemand").update(InstanceType="p3dn.24xlarge")),
    ("type-unfit", lambda r: resource(r, "try").update(InstanceType="trn1.2xlarge")),
    ("type-unknown", lambda r: resource(r, "try").update(InstanceType="g6.12xlage")),
    ("os-python", lambda r: r["Image"].update(Os="alinux2023")),
    ("gpu-always-on", lambda r: r["LoginNodes"]["Pools"][0].update(InstanceType="g5.12xlarge")),
    ("head-small", lambda r: r["HeadNode"].update(InstanceType="t3.micro")),
    ("count-least", lambda r: resource(r, "try").update(MinCount="1")),
    ("kill-wait", lambda r: settings(r)["CustomSlurmSettings"][1].update(KillWait="5")),
    ("efa-off", lambda r: resource(r, "ondemand").pop("Efa")),
    ("spot-one-type", lambda r: resource(r, "spot")["Instances"].pop()),
    ("spot-strategy", lambda r: queue(r, "spot").pop("AllocationStrategy")),
    ("block-unnamed", lambda r: queue(r, "ondemand").update(CapacityType="CAPACITY_BLOCK")),
    ("queue-none", lambda r: r["Scheduling"].update(SlurmQueues=[])),
    ("queue-empty", lambda r: queue(r, "try").update(ComputeResources=[])),
    ("recipe-shape", lambda r: r.update(SharedStorage={"Name": "workspace"})),
    ("share-none", lambda r: r.pop("SharedStorage")),
    ("share-ebs", lambda r: r["SharedStorage"][0].update(StorageType="Ebs")),
    ("fsx-old-link", lambda r: fsx(r).update(ImportPath="s3://my-bucket")),
    ("fsx-scratch", lambda r: fsx(r).pop("DeploymentType")),
    ("fsx-deleted", lambda r: fsx(r).pop("DeletionPolicy")),
    ("fsx-unlinked", lambda r: fsx(r).pop("DataRepositoryAssociations")),
    ("fsx-link-idle", lambda r: link(r, AutoImportPolicy=[])),
    ("fsx-link-empty", lambda r: link(r)),
    ("fsx-link-overlap", lambda r: link(r, FileSystemPath="/data/more")),
    ("fsx-link-overlap", lambda r: link(r, DataRepositoryPath="s3://my-bucket/runs/")),
    ("fsx-unexported", lambda r: fsx(r)["DataRepositoryAssociations"].pop()),
    ("fsx-group", lambda r: r["SharedStorage"][0].update(FsxLustreSettings={"FileSystemId": "fs-0123"})),
    ("slurm-value", lambda r: settings(r)["CustomSlurmSettings"].append({"PreemptMode": "OFFF"})),
    ("slurm-value", lambda r: queue(r, "spot").update(CustomSlurmSettings={"PreemptMode": "REQUEU"})),
    ("preempt-apart", lambda r: queue(r, "spot").update(CustomSlurmSettings={"PriorityTier": 1})),
    ("requeue-off", lambda r: settings(r)["CustomSlurmSettings"][0].update(JobRequeue=0)),
    ("idle-long", lambda r: settings(r).update(ScaledownIdletime=-1)),
    ("ssh-open", lambda r: r["HeadNode"]["Ssh"].pop("AllowedIps")),
    ("no-way-in", lambda r: [r["HeadNode"].pop("Ssh"), r["HeadNode"]["Iam"].pop("AdditionalIamPolicies")]),
    ("imds-v1", lambda r: r["Imds"].update(ImdsSupport="v1.0")),
    ("imds-open", lambda r: r["HeadNode"]["Imds"].update(Secured=False)),
    ("script-place", lambda r: action(r).update(Script="/workspace/head.sh")),
    ("script-rights", lambda r: action(r).update(Script="s3://my-bucket/other/head.sh")),
    ("budget-tag", lambda r: r.pop("Tags")),
]  # fmt: skip


def action(recipe: Recipe) -> Recipe:
    return recipe["HeadNode"]["CustomActions"]["OnNodeConfigured"]


def planted(change: Callable[[Recipe], Any]) -> Recipe:
    # The text is read again each time: aliases of YAML would let one change reach several queues.
    recipe = json.loads(json.dumps(read(RECIPES["research"])))
    change(recipe)
    return dict(recipe)


def test_findings_of_mistakes_in_a_recipe():
    recipes = {f"{number} {code}": change for number, (code, change) in enumerate(PLANTS)}
    findings = {name: cluster.check(planted(change)) for name, change in recipes.items()}
    check_findings(
        "findings/parallelcluster", findings, cluster.check(planted(lambda recipe: None))
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ((ROOT / "configs/clusters/budget.cfn.yaml").read_text(), "cluster-template"),
        ("train: {batch_size: 3}", "cluster-none"),
        ("[1, 2]", "job-not-keys"),
        ("a: [", "yaml-invalid"),
    ],
)
def test_a_file_that_is_no_recipe_is_said(text, code, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with refused(code):
        read(file)


@pytest.mark.parametrize(
    "name", ["HeadNode", "Scheduling", "LoginNodes", "SharedStorage", "Image", "Tags", "Imds"]
)
@pytest.mark.parametrize(
    "value", [None, [], {}, "text", [None], 3, {"Pools": 3}, {"SlurmQueues": [{"Name": 1}]}]
)
def test_no_shape_of_a_section_breaks_the_check(name, value):
    recipe = planted(lambda recipe: recipe.update({name: value}))
    assert cluster.check(recipe) is not None


def test_a_given_program_that_is_not_there_is_said(monkeypatch):
    with refused("pcluster-missing", found="/nowhere/pcluster"):
        schema.python_of("/nowhere/pcluster")
    monkeypatch.setenv(schema.VARIABLE, "/nowhere/other")
    with refused("pcluster-missing", found="/nowhere/other"):
        schema.python_of()
    with refused("pcluster-failed"):
        schema.ask(Path(sys.executable), [], "us-east-1")  # it has no ParallelCluster


def test_what_the_schema_says_is_passed_on(tmp_path):
    """A stand-in for ParallelCluster's Python: it answers as the real one did."""
    python = tmp_path / "python"
    messages = {"HeadNode": {"Ssh": {"KeyNam": ["Unknown field."]}}}
    answer = json.dumps({"version": "3.17.0", "answers": [messages, None]})
    python.write_text(f"#!/bin/sh\necho noise\necho '{answer}'\n")
    python.chmod(0o755)
    first, second = schema.ask(python, [tmp_path, tmp_path], "us-east-1")
    assert [(one.code, one.level) for one in first] == [
        ("schema", "error"),
        ("schema-version", "note"),
    ]
    assert first[0].message == "HeadNode/Ssh/KeyNam: Unknown field."
    assert [one.code for one in second] == ["schema-version"]


# ParallelCluster itself


@pytest.fixture(scope="module")
def program() -> Path:
    found = os.environ.get(schema.VARIABLE) or (
        str(PROGRAM) if PROGRAM.exists() else shutil.which("pcluster")
    )
    if not found:
        pytest.skip(
            "aws-parallelcluster is not installed: make test-clusters installs it into .venv-clusters"
        )
    return Path(found)


def test_the_schema_takes_the_recipes_and_refuses_what_it_knows(program, tmp_path):
    """One start of its Python: the recipes pass, and so do four mistakes that only our rules
    find.
    """
    plants: dict[str, Callable[[Recipe], Any]] = {
        "login-key": lambda r: r["LoginNodes"]["Pools"][0]["Ssh"].update(KeyName="my-key"),
        "alinux2": lambda r: r["Image"].update(Os="alinux2"),
        "unknown": lambda r: queue(r, "spot").update(Gpus=4),
        "p3": lambda r: resource(r, "ondemand").update(InstanceType="p3.8xlarge"),
        "efa": lambda r: resource(r, "try").update(Efa={"Enabled": True}),
        "import": lambda r: fsx(r).update(ImportPath="s3://my-bucket"),
        "suspend": lambda r: settings(r)["CustomSlurmSettings"].append({"SuspendTime": 60}),
        "mode": lambda r: settings(r)["CustomSlurmSettings"].append({"PreemptMode": "OFFF"}),
    }
    files = list(RECIPES.values())
    for name, change in plants.items():
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(planted(change)))
    answers = schema.ask(program.absolute().parent / "python", files, "us-east-1")
    refused_by_it = {
        file.stem
        for file, found in zip(files, answers)
        if any(one.code == "schema" for one in found)
    }
    assert refused_by_it == {"login-key", "alinux2", "unknown"}
    ours = {
        name
        for name, change in plants.items()
        if any(one.level == "error" for one in cluster.check(planted(change)))
    }
    assert ours == {"p3", "import", "mode"}


# The words of the table in docs/parallelcluster.md -> the change; the rows are in the order of
# the cluster's states: jobs run, queues are stopped, login nodes too, and never.
UPDATES: list[dict[str, Callable[[Recipe], Any]]] = [
    {
        "a higher `MaxCount`": lambda r: resource(r, "spot").update(MaxCount=16),
        "a new queue": lambda r: queues(r).append({**queue(r, "spot"), "Name": "more"}),
        "compute resource": lambda r: queue(r, "try")["ComputeResources"].append(
            {"Name": "l40s", "InstanceType": "g6e.xlarge", "MinCount": 0, "MaxCount": 2}
        ),
        "one more type for a spot resource": lambda r: resource(r, "spot")["Instances"].append(
            {"InstanceType": "g6e.12xlarge"}
        ),
        "`CustomSlurmSettings`": lambda r: settings(r)["CustomSlurmSettings"][1].update(
            KillWait=90
        ),
        "scripts": lambda r: queue(r, "try")["CustomActions"]["OnNodeConfigured"].update(
            Args=["/w"]
        ),
        "rights of a queue": lambda r: queue(r, "try")["Iam"]["S3Access"].append(
            {"BucketName": "my-bucket", "KeyName": "data/*"}
        ),
        "`AllowedIps`": lambda r: r["HeadNode"]["Ssh"].update(AllowedIps="198.51.100.0/24"),
        "the `Count` of login nodes": lambda r: pool(r).update(Count=2),
        "a further association with S3": lambda r: link(r),
        "a further file system": lambda r: r["SharedStorage"].append(
            {
                "Name": "b",
                "MountDir": "/b",
                "StorageType": "Efs",
                "EfsSettings": {"FileSystemId": FS},
            }
        ),
    },
    {
        "a lower `MaxCount`": lambda r: resource(r, "spot").update(MaxCount=4),
        "a queue less": lambda r: queues(r).pop(),
        "another `InstanceType` of a queue": lambda r: resource(r, "try").update(
            InstanceType="g6e.xlarge"
        ),
        "a type less": lambda r: resource(r, "spot")["Instances"].pop(),
        "`ScaledownIdletime`": lambda r: settings(r).update(ScaledownIdletime=30),
    },
    {
        "another `InstanceType` of login nodes": lambda r: pool(r).update(
            InstanceType="m6i.xlarge"
        ),
    },
    {
        "`InstanceType`": lambda r: r["HeadNode"].update(InstanceType="m6i.2xlarge"),
        "key": lambda r: r["HeadNode"]["Ssh"].update(KeyName="other"),
        "script of the head node": lambda r: action(r).update(Args=["/w"]),
        "`Os`": lambda r: r["Image"].update(Os="ubuntu2204"),
        "size": lambda r: fsx(r).update(StorageCapacity=2400),
        "throughput of the file system": lambda r: fsx(r).update(PerUnitStorageThroughput=250),
        "another file system as `/workspace`": lambda r: r["SharedStorage"][0].update(
            FsxLustreSettings={"FileSystemId": FS}
        ),
    },
]
FS = "fs-0123456789abcdef0"
PATCH = """
import json, sys
from types import SimpleNamespace
from pcluster.config.config_patch import ConfigPatch
base, changed = json.load(sys.stdin)
def allowed(target, nodes, logins):
    cluster = SimpleNamespace(
        name="research", stack_name="research", head_node_instance=SimpleNamespace(state="running"),
        has_running_capacity=lambda *_, **__: nodes, has_running_login_nodes=lambda *_, **__: logins)
    return ConfigPatch(cluster, base, target).check()[0]
states = ((True, True), (False, True), (False, False))
print(json.dumps({key: [allowed(target, *state) for state in states] for key, target in changed.items()}))
"""


def queues(recipe: Recipe) -> list[Recipe]:
    return recipe["Scheduling"]["SlurmQueues"]


def pool(recipe: Recipe) -> Recipe:
    return recipe["LoginNodes"]["Pools"][0]


def test_the_page_says_when_an_update_is_possible(program):
    """What `pcluster update-cluster --dryrun true` decides, in each state of a cluster."""
    page = (ROOT / "docs/parallelcluster.md").read_text()
    rows = page.partition("| when |")[2].splitlines()[2:6]
    changed = {}
    for number, (row, changes) in enumerate(zip(rows, UPDATES)):
        for words, change in changes.items():
            assert words in row
            changed[f"{number} {words}"] = planted(change)
    answer = subprocess.run(
        [str(program.absolute().parent / "python"), "-c", PATCH],
        input=json.dumps([planted(lambda recipe: None), changed]),
        capture_output=True,
        text=True,
        check=True,
    )
    allowed = json.loads(answer.stdout.splitlines()[-1])
    assert allowed == {key: [state >= int(key[0]) for state in range(3)] for key in changed}
