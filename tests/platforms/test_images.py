"""Tests of the choice of an image for each SageMaker type, and of what is said against a pair, with
source and date.
"""

from __future__ import annotations

import importlib.util
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from launch.platforms.sagemaker.images import (
    IMAGES,
    OLDEST_TORCH,
    choose,
    find,
    runs_on,
    uri,
    version,
)
from launch.platforms.sagemaker.instances import INSTANCES, about_type
from launch.platforms.sagemaker.regions import ACCOUNTS

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 21)
NEWEST = "2.14-cu133-amzn2023-sagemaker"
NEWEST_CPU = "2.14-cpu-amzn2023-sagemaker"


def tag(address: str) -> str:
    return address.rpartition(":")[2]


@pytest.mark.parametrize(
    ("image", "name", "runs"),
    [
        ("2.8.0-gpu-py312", "ml.p3.16xlarge", True),  # CUDA 12.9 kept sm_70, 12.8 and 13 did not
        ("2.7.1-gpu-py312", "ml.p3.16xlarge", False),
        ("2.9.0-gpu-py312", "ml.p3.16xlarge", False),
        ("2.6.0-gpu-py312", "ml.g6e.xlarge", True),  # code for sm_86 runs on sm_89
        ("2.6.0-gpu-py312", "ml.p6-b200.48xlarge", False),
        (NEWEST, "ml.p6-b300.48xlarge", True),  # sm_100 on sm_103
        (NEWEST, "ml.c5.xlarge", False),
        ("2.13-cpu-amzn2023-sagemaker", "ml.c5.xlarge", True),
        ("2.13-cpu-amzn2023-sagemaker", "ml.g5.xlarge", False),
    ],
)
def test_what_runs_on_what(image, name, runs):
    row = find(f"public.ecr.aws/deep-learning-containers/pytorch:{image}") or find(
        f"pytorch-training:{image}"
    )
    assert row is not None
    assert runs_on(row, INSTANCES[name]) is runs


CHOICES = [  # type, strategy, image, level and code of each finding
    ("ml.g5.12xlarge", "ddp", NEWEST, []),
    ("ml.p4d.24xlarge", "fsdp", NEWEST, []),
    ("ml.m5.xlarge", "ddp", NEWEST_CPU, []),
    (
        "ml.p3.16xlarge",
        "smddp",
        "2.5.1-gpu-py311",
        ["warning retired-type", "error smddp-type", "warning image-unpatched"],
    ),
    ("ml.p3dn.24xlarge", "smddp", "2.5.1-gpu-py311", ["warning image-unpatched"]),
    ("ml.p6e-gb200.36xlarge", "ddp", NEWEST, ["error unfit-type"]),
]


@pytest.mark.parametrize(("name", "strategy", "image", "codes"), CHOICES)
def test_the_picked_image(name, strategy, image, codes, monkeypatch):
    monkeypatch.setattr(
        "launch.platforms.sagemaker.instances.allowed", lambda _: False
    )  # as botocore says, which need not be here
    choice = choose(name, strategy, "us-east-1", today=TODAY)
    assert tag(choice.uri) == image
    assert [f"{finding.level} {finding.code}" for finding in choice.findings] == codes
    assert choice.why
    assert all(name in finding.message or image in finding.message for finding in choice.findings)


@pytest.mark.parametrize("strategy", ["ddp", "smddp"])
def test_every_type_gets_an_image_that_runs_segtrain(strategy):
    for name, instance in INSTANCES.items():
        image = choose(name, strategy, "us-west-2", today=TODAY).image
        assert image is not None
        assert runs_on(image, instance)
        assert version(image.torch) >= OLDEST_TORCH
        fit = [one for one in IMAGES if runs_on(one, instance)]
        if strategy == "smddp" and instance.smddp:
            assert image.smddp
        elif strategy == "ddp":
            assert image.patched_until == max(one.patched_until for one in fit if one.patched_until)


def test_an_image_is_left_for_a_patched_one_when_its_time_is_over():
    late = choose("ml.g5.xlarge", "ddp", "us-east-1", today=date(2027, 12, 1))
    assert tag(late.uri) == NEWEST  # none is patched: the newest
    assert [finding.code for finding in late.findings] == ["images-old", "image-unpatched"]
    assert "2027-09-28" in late.findings[1].message


def test_a_type_that_is_newer_than_the_table_is_a_note_and_one_that_nobody_knows_an_error(
    monkeypatch,
):
    def said(name: str, known: bool | None, **more: Any) -> list[str]:
        monkeypatch.setattr("launch.platforms.sagemaker.instances.allowed", lambda _: known)
        return [f"{finding.level} {finding.code}" for finding in about_type(name, **more)]

    assert said("ml.g9.xlarge", True) == ["note type-not-in-table"]
    assert said("ml.g9.xlarge", False) == ["error unknown-type"]
    assert said("ml.g9.xlarge", False, unknown_ok=True) == ["warning unknown-type"]
    # a Python without botocore cannot say more
    assert said("ml.g9.xlarge", None) == ["warning unknown-type"]
    assert said("ml.g9.xlage", None) == ["error unknown-type"]  # no name of a type
    assert said("ml.trn1.2xlarge", True) == ["error unfit-type"]
    assert said("ml.trn1.2xlarge", True, image="mine") == ["warning unfit-type"]
    monkeypatch.setattr("launch.platforms.sagemaker.instances.allowed", lambda _: True)
    [note] = about_type("ml.g9.xlarge")
    assert "ml.g5.xlarge" in note.cure
    assert "ml.p" not in note.cure
    assert not choose("ml.r9i.xlarge", "ddp", "us-east-1", today=TODAY).image.arches  # type: ignore[union-attr]
    assert choose("ml.g9.xlarge", "ddp", "us-east-1", today=TODAY).uri.endswith(NEWEST)


WANTED = [  # image, type, strategy, codes
    (
        "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.9.0-gpu-py312",
        "ml.p3.2xlarge",
        "ddp",
        "error image-gpu",
    ),
    (
        f"public.ecr.aws/deep-learning-containers/pytorch:{NEWEST}",
        "ml.c5.xlarge",
        "ddp",
        "warning image-gpu",
    ),
    (
        f"public.ecr.aws/deep-learning-containers/pytorch:{NEWEST}",
        "ml.p4d.24xlarge",
        "smddp",
        "error image-smddp",
    ),
    (
        "x.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:1.13.1-gpu-py39",
        "ml.p4d.24xlarge",
        "ddp",
        "error image-torch",
    ),
    (
        "x.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311",
        "ml.p4d.24xlarge",
        "smddp",
        "warning image-unpatched",
    ),
    (
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1",
        "ml.g5.xlarge",
        "ddp",
        "note image-unknown",
    ),
]


@pytest.mark.parametrize(("wanted", "name", "strategy", "code"), WANTED)
def test_an_asked_for_image_is_kept_and_judged(wanted, name, strategy, code):
    choice = choose(name, strategy, "eu-west-1", wanted, today=TODAY)
    assert choice.uri == wanted
    assert code in [f"{finding.level} {finding.code}" for finding in choice.findings]


def test_an_asked_for_image_that_fits_is_not_spoken_against():
    assert not choose(
        "ml.g5.xlarge", "ddp", "eu-west-1", f"x/pytorch:{NEWEST}", today=TODAY
    ).findings


def test_the_registry_is_that_of_the_region():
    image = IMAGES[0]
    assert (
        uri(image, "us-east-1") == f"763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:{NEWEST}"
    )
    assert uri(image, "eu-central-2").startswith("380420809688.dkr.ecr.eu-central-2.amazonaws.com/")
    assert uri(image, "cn-north-1").startswith("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/")
    assert all(re.fullmatch(r"\d{12}", account) for account in ACCOUNTS.values())
    assert uri(image, "me-west-1").startswith("124382933778.dkr.ecr.me-west-1.amazonaws.com/")


def test_a_type_that_the_region_lacks():
    findings = choose("ml.p5en.48xlarge", "ddp", "eu-west-1", today=TODAY).findings
    assert [finding.code for finding in findings] == ["region-type"]
    assert "us-east-2" in findings[0].cure
    assert not choose("ml.p5en.48xlarge", "ddp", "us-east-2", today=TODAY).findings


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location(
        "make_images_page", ROOT / "docs/make_images_page.py"
    )
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), (
        "run python docs/make_images_page.py"
    )
