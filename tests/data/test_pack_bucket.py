"""Tests that a pack in a bucket is the pack of a folder, appears whole, continues after a kill, and
is verified.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer
from conftest import refused
from data_files import batches, files, quiet

from segtrain.config import Data
from segtrain.data.convert import convert_folder
from segtrain.data.datasets import open_dataset
from segtrain.data.shards import pack_bucket
from segtrain.data.shards.pack_sample import Packing

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")

URL = "s3://bkt/a/shards"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def objects(server: BucketServer) -> dict[str, str]:
    folder = server.folder / "bkt/a/shards"
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def local(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def in_bucket(source: Any, choice: Packing | None = None, url: str = URL, **settings: Any) -> Any:
    return quiet(source, url, choice, **{"shard_mb": 0.009, **settings})


def from_bucket(root: str = URL) -> Any:
    return open_dataset(Data(layout="shards", root=root), "train")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_objects_are_the_files_of_a_local_pack(tmp_path, server, scratch, scheme):
    source, url = files(tmp_path / "files", 9), URL.replace("s3", scheme)
    server.fault = 0.1
    server.gather(3, r"PUT .*\.tar")
    done = in_bucket(source, url=url, workers=2)
    server.fault = 0.0
    quiet(source, tmp_path / "local", shard_mb=0.009)
    assert objects(server) == local(tmp_path / "local")
    assert done.kept == 0
    assert server.failed
    # Several shards are uploaded at the same time.
    assert server.gathered
    assert batches(from_bucket(url), 2) == batches(source)
    assert not list(scratch.iterdir())
    server.requests.clear()
    again = in_bucket(source, url=url)
    assert (again.kept, again.bytes) == (done.shards, done.bytes)
    assert not server.requests["PUT"]


def test_a_bucket_is_packed_into_a_bucket(tmp_path, server, scratch):
    files(server.folder / "bkt/files", 9)
    source = open_dataset(Data(layout="camvid", root="s3://bkt/files"), "train")
    server.delay = 0.01
    for form in ("keep", "png"):
        in_bucket(source, Packing(form), url=f"{URL}/{form}")
        quiet(
            open_dataset(Data(layout="camvid", root=str(server.folder / "bkt/files")), "train"),
            tmp_path / form,
            Packing(form),
            shard_mb=0.009,
        )
        stored = {
            name.removeprefix(f"{form}/"): sha
            for name, sha in objects(server).items()
            if name.startswith(form)
        }
        made = local(tmp_path / form)
        # The index holds the times of the packed files, which a bucket does not have.
        assert {name: sha for name, sha in stored.items() if name.endswith(".tar")} == {
            name: sha for name, sha in made.items() if name.endswith(".tar")
        }
    for folder in ("s3://bkt/files/", "s3://bkt/files/train", "s3://bkt/files/trainannot/town/"):
        with refused("pack-into-source"):
            quiet(source, folder)


_KILLED = """
import os, signal
from segtrain.bucket.client import Client
from segtrain.config import Data
from segtrain.data.convert import convert_folder
from segtrain.data.datasets import open_dataset
from segtrain.data.shards import pack
from segtrain.data.shards.pack_sample import Packing

put, written = Client.put, []
def dying(self, key, content, *more):
    if key.endswith(".tar"):
        written.append(key)
        if len(written) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return put(self, key, content, *more)
Client.put = dying
pack.BucketTarget.uploads = 0
pack.pack(open_dataset(Data(layout="camvid", root="files"), "train"), "s3://bkt/a/shards", Packing(), shard_mb=0.009)
"""


def test_a_killed_pack_leaves_whole_objects_and_goes_on(tmp_path, server, scratch, zygote):
    source = files(tmp_path / "files", 9)
    process = zygote.start(
        code=_KILLED,
        cwd=tmp_path,
        SEGTRAIN_CACHE=str(tmp_path / "cache"),
        TMPDIR=str(scratch),
        **server.environment(),
    )
    assert process.wait() == -signal.SIGKILL, process.output
    there = objects(server)
    assert sorted(there) == [
        ".packing-train/000000.json",
        ".packing-train/000001.json",
        ".packing-train/plan.json",
        "train-000000.tar",
        "train-000001.tar",
    ]
    assert "train.index" not in there
    left = Path(pack_bucket.BucketTarget(URL, "train", 1, 60)._local, "train-000002.tar")
    left.parent.mkdir(exist_ok=True)
    left.touch()
    with refused("pack-unfinished", split="train"):
        open_dataset(Data(layout="shards", root="s3://bkt/a/shards"), "train")
    with refused("pack-differs", found=["image='keep', now 'raw'"]):
        in_bucket(source, Packing("raw"))
    assert not left.exists()
    # One of the two was replaced since: it is made again.
    (server.folder / "bkt/a/shards/train-000001.tar").write_bytes(b"other")
    server.requests.clear()
    done = in_bucket(source)
    assert done.kept == 1
    quiet(source, tmp_path / "local", shard_mb=0.009)
    assert objects(server) == local(tmp_path / "local")
    assert not list(scratch.iterdir())


def test_an_upload_is_verified_by_bytes_where_the_etag_is_no_md5(
    tmp_path, server, scratch, monkeypatch
):
    source = files(tmp_path / "files", 4)
    monkeypatch.setattr(pack_bucket, "_md5_etag", lambda path: "of another kind")
    monkeypatch.setattr(pack_bucket, "RANGE", 1 << 10)
    in_bucket(source)
    shutil.rmtree(server.folder / "bkt/a")
    put = pack_bucket.client_of("s3://bkt").__class__.put

    def damaged(self: Any, key: str, content: Any, *more: Any) -> str:
        if isinstance(content, Path):
            stored = bytearray(content.read_bytes())
            stored[-1] ^= 1
            content = bytes(stored)
        return put(self, key, content, *more)

    monkeypatch.setattr("segtrain.bucket.client.Client.put", damaged)
    with refused("upload-differs"):
        in_bucket(source)
    monkeypatch.setattr(
        "segtrain.bucket.client.Client.put",
        lambda self, key, content, *more: put(
            self, key, content.read_bytes()[:-1] if isinstance(content, Path) else content, *more
        ),
    )
    with refused("upload-differs", file=f"{URL}/train-000000.tar"):
        in_bucket(source)
    assert "train.index" not in objects(server)


def test_etags_of_large_files_are_those_of_their_parts(tmp_path, server):
    path = tmp_path / "large"
    path.write_bytes(os.urandom((32 << 20) + 5))
    parts = [hashlib.md5(path.read_bytes()[at : at + (32 << 20)]).digest() for at in (0, 32 << 20)]
    assert pack_bucket._md5_etag(str(path)) == f"{hashlib.md5(b''.join(parts)).hexdigest()}-2"
    path.write_bytes(b"small")
    assert pack_bucket._md5_etag(str(path)) == hashlib.md5(b"small").hexdigest()


def test_a_bucket_that_is_gone_is_one_error_and_the_pack_goes_on(tmp_path, server, scratch):
    source = files(tmp_path / "files", 9)
    server.down = True
    with refused("bucket-unreachable"):
        in_bucket(source, outage_s=0.2)
    assert not scratch.exists() or not list(scratch.iterdir())
    server.down = False
    assert in_bucket(source).kept == 0


@pytest.mark.parametrize("places", [("s3://bkt/files", "png"), ("files", "s3://bkt/png")])
def test_only_folders_are_converted(tmp_path, monkeypatch, places):
    monkeypatch.chdir(tmp_path)
    with refused("convert-in-bucket"):
        convert_folder(*places, None, [])
    assert not list(tmp_path.iterdir())
