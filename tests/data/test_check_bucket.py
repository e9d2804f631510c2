"""Tests that a bucket is checked like its folder, with many requests at a time, and what a random
sample says.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer
from conftest import refused
from data_files import blocks, files, quiet
from PIL import Image

from segtrain.bucket.faults import outage
from segtrain.config import Data
from segtrain.data.audit import check as checks
from segtrain.data.audit.audit import audit
from segtrain.data.audit.check import check_folder
from segtrain.data.audit.statistics import AuditSample
from segtrain.data.datasets import open_dataset
from segtrain.data.file_dataset import FileDataset
from segtrain.errors import EXIT_RESUMABLE
from segtrain.insight.report.data_check import render

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")

CAMVID = ["data.layout=camvid", "data.outage_s=0.5"]


@pytest.fixture
def folder(server: BucketServer) -> Path:
    """Splits train and val in the bucket, with three faults of different kinds."""
    root = server.folder / "bkt/set"
    files(root, 20)
    files(root, 7, split="val")
    whole = (root / "train/s6.x.jpg").read_bytes()
    (root / "train/s6.x.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "trainannot/s9.x.png").write_bytes(b"")
    Image.fromarray(blocks(3)[:-1]).save(root / "trainannot/s3.x.png")
    return root


@pytest.mark.parametrize("layout", ["camvid", "shards"])
def test_a_bucket_has_the_report_of_its_folder(server, folder, layout):
    if layout == "shards":
        for split in ("train", "val"):
            source = open_dataset(Data(layout="camvid", root=str(folder)), split)
            quiet(source, folder.parent / "shards", shard_mb=0.02, skip_faults=True)
        folder = folder.parent / "shards"
    url, settings = f"s3://bkt/{folder.name}", [f"data.layout={layout}"]
    here = check_folder(str(folder), None, settings)
    server.fault = 0.1
    there = check_folder(url, None, settings)
    assert there.text().replace(url, str(folder)) == here.text()
    pictures = [re.findall('src="[^"]+"', render(checked)) for checked in (here, there)]
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) > 12
    ours, theirs = (
        json.dumps([report.to_dict() for report in checked.reports]) for checked in (here, there)
    )
    assert theirs.replace(url, str(folder)) == ours
    assert server.failed


def test_damage_of_a_shard_is_found_without_reading_it_twice(server, folder):
    shards = folder.parent / "shards"
    source = open_dataset(Data(layout="camvid", root=str(folder)), "train")
    quiet(source, shards, shard_mb=0.02, skip_faults=True)
    path = shards / "train-000001.tar"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    server.asked.clear()
    report = check_folder("s3://bkt/shards", ["train"], ["data.layout=shards"]).reports[0]
    ((file, says),) = report.faults
    assert file.startswith("s3://bkt/shards/train-000001.tar: ")
    assert "checksum" in says
    # Samples were read, and no whole shard.
    ranges = [
        asked.removeprefix("bytes=").split("-")
        for path, asked in server.asked
        if path.endswith(".tar") and asked
    ]
    assert ranges
    assert max(int(last) - int(first) for first, last in ranges) < len(content) // 2
    path.write_bytes(content + bytes(512))
    with refused("shard-size-differs"):
        check_folder("s3://bkt/shards", ["train"], ["data.layout=shards"])


def test_an_audit_has_many_requests_in_flight_and_reads_each_file_once(server, folder, no_repeats):
    for index in range(100):
        shutil.copy(folder / "val/s0.x.jpg", folder / f"val/t{index}.jpg")
        shutil.copy(folder / "valannot/s0.x.png", folder / f"valannot/t{index}.png")
    dataset = open_dataset(Data(layout="camvid", root="s3://bkt/set"), "val")
    server.requests.clear()
    server.asked.clear()
    server.gather(10)
    report = audit(dataset, workers=2)
    assert not report.faults
    assert server.gathered
    assert server.requests.keys() == {"GET"}
    assert len({path for path, _ in server.asked}) == 2 * len(dataset)
    # A worker may take its file so late that the read-ahead has dropped it, and then reads it
    # again.
    assert server.requests.total() < 2 * len(dataset) * 1.1


@pytest.mark.parametrize(
    "code", ["bucket-unreachable", "bucket-denied", "bucket-refused", "stopped-in-outage"]
)
def test_an_error_that_is_not_about_a_file_ends_the_check_and_is_no_fault(
    server, folder, monkeypatch, code
):
    dataset = open_dataset(Data(layout="camvid", root="s3://bkt/set", outage_s=0.2), "train")
    if code == "stopped-in-outage":
        monkeypatch.setattr("segtrain.bucket.client._SAID_S", 0.0)
        monkeypatch.setattr("segtrain.base.stopping.requested.is_set", lambda: True)
    # S3 answers 400 if a token has expired.
    server.status = {"bucket-denied": 403, "bucket-refused": 400}.get(code, 0)
    server.down = not server.status
    with refused(code) as error:
        audit(dataset, workers=2)
    assert (error.value.exit_code == EXIT_RESUMABLE) == (code == "stopped-in-outage")
    server.status, server.down = 0, False
    assert len(audit(dataset, workers=2).faults) == 3


def test_a_bucket_that_was_removed_is_no_fault_of_its_files(server, folder):
    dataset = open_dataset(Data(layout="camvid", root="s3://bkt/set"), "train")
    (folder / "train/s0.x.jpg").unlink()
    assert len(audit(dataset, workers=2).faults) == 4
    shutil.rmtree(server.folder / "bkt")
    with refused("bucket-missing"):
        audit(dataset, workers=2)


@pytest.mark.parametrize("when", ["stamps", "image_bytes"])
def test_an_outage_during_the_comparison_of_splits_is_not_hidden(server, folder, monkeypatch, when):
    def gone(*_: object) -> None:
        raise outage("s3://bkt/set", "connection", 1, 1.0, 1.0)

    shutil.copy(folder / "train/s2.x.jpg", folder / "val/again.jpg")
    shutil.copy(folder / "trainannot/s2.x.png", folder / "valannot/again.png")
    overlap = checks.overlap_finding

    def compared(*arguments: Any) -> object:
        monkeypatch.setattr(FileDataset, when, gone)
        return overlap(*arguments)

    monkeypatch.setattr(checks, "overlap_finding", compared)
    with refused("bucket-unreachable"):
        check_folder("s3://bkt/set", None, CAMVID)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_sample_reads_few_images_and_says_how_sure_it_is(server, folder, place):
    root = "s3://bkt/set" if place == "bucket" else str(folder)
    checked = check_folder(root, None, CAMVID, sample=5, seed=3)
    train, val = checked.reports
    assert (train.images, val.images) == (5, 5)
    assert train.sample == AuditSample(5, 20, len(train.bad), 3)
    assert val.sample == AuditSample(5, 7, 0, 3)
    assert (
        "none of 5 checked images has a fault: with 95 % confidence, fewer than 43.4 % of all 7 images"
        in val.table()
    )
    assert val.to_dict()["sample"]["faulty_share"] == [0.0, pytest.approx(3.8415 / 8.8415, 1e-4)]
    if place == "bucket":
        # Images and masks of the sample, and what two splits are compared by: two places of images
        # of equal size.
        assert server.requests["GET"] <= 2 * 10 + 4
    # Another seed draws other images; a sample of all is the whole split.
    assert (
        len(
            {
                check_folder(root, ["train"], CAMVID, 5, seed).reports[0].fingerprint
                for seed in (3, 3, 4)
            }
        )
        == 2
    )
    with refused("number-out-of-range", key="--sample"):
        check_folder(root, None, CAMVID, sample=0)
    every = check_folder(root, ["train"], CAMVID, sample=20).reports[0]
    assert every.sample is None
    assert len(every.faults) == 3


def test_a_sample_finds_images_of_two_splits(folder):
    shutil.copy(folder / "train/s2.x.jpg", folder / "val/again.jpg")
    shutil.copy(folder / "trainannot/s2.x.png", folder / "valannot/again.png")
    checked = check_folder(str(folder), None, CAMVID, sample=7)
    assert any(finding.fatal for finding in checked.reports[1].findings)


def test_the_interval_is_that_of_wilson():
    """Of all shares p, those with |faulty - n p| <= z sqrt(n p (1 - p))."""
    for checked, faulty in ((400, 0), (400, 37), (400, 399), (400, 400), (7, 3)):
        bounds = AuditSample(checked, 10**6, faulty, 0).interval
        for share in (bound for bound in bounds if 0 < bound < 1):
            reach = 1.96 * (checked * share * (1 - share)) ** 0.5
            assert abs(faulty - checked * share) == pytest.approx(reach, rel=1e-4)
        assert bounds[0] <= faulty / checked <= bounds[1]
