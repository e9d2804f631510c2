"""Tests of the store of the local disk. (Tests of buckets compare other stores with it.)"""

from __future__ import annotations

import os
import pickle

from conftest import refused

from segtrain.data.storage import LOCAL


def test_the_local_disk_refuses_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden.tar").touch()
    for name, kind in (("pipe", "a FIFO"), ("folder", "a folder")):
        with refused("file-not-regular", found=kind):
            LOCAL.read(str(tmp_path / name))
        with refused("file-not-regular", found=kind), LOCAL.open(str(tmp_path / name)):
            pass
    assert LOCAL.read(str(tmp_path / "file"), 1, 3) == b"234"
    assert LOCAL.read(str(tmp_path / "file"), 2) == b"345"
    with refused("file-ends-early", found=5, expected=6):
        LOCAL.read(str(tmp_path / "file"), 3, 3)
    assert LOCAL.list(str(tmp_path), "/") == ["folder/"]
    assert LOCAL.list(str(tmp_path), "e") == ["file"]  # the FIFO "pipe" is not a file
    assert LOCAL.list(str(tmp_path), ".tar") == LOCAL.list(str(tmp_path / "gone"), ".tar") == []
    assert pickle.loads(pickle.dumps(LOCAL)) is LOCAL
