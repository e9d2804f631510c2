"""Files are written whole or not at all, in one way for the whole package."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, refused

from segtrain.base import files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), files.writing(path) as stream:
        stream.write(b"half %d" % (1 // (len(os.listdir(tmp_path)) - 2)))
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_new_file_has_the_usual_rights_and_any_name(tmp_path):
    (tmp_path / "usual").touch()
    longest = tmp_path / ("ü" * 127)  # 254 bytes; a file system takes 255
    with files.writing(longest, sync=True) as stream:
        stream.write(b"whole")
        assert all(path.match(files.PARTIAL) for path in tmp_path.iterdir() if path.name != "usual")
    assert longest.read_bytes() == b"whole"
    assert longest.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_writers_of_one_file_do_not_meet(tmp_path):
    path, barrier = tmp_path / "a", threading.Barrier(4)

    def write(letter: bytes) -> None:
        with files.writing(path) as stream:
            barrier.wait()
            stream.write(letter * 1000)
            barrier.wait()

    threads = [threading.Thread(target=write, args=(bytes([65 + k]),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in [bytes([65 + k]) * 1000 for k in range(4)]
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_of_a_run_does_not_bring_a_removed_run_folder_back(tmp_path):
    with refused("file-not-written", file=str(tmp_path / "gone/best.json")):
        files.write_atomically(tmp_path / "gone/best.json", b"{}")
    assert not (tmp_path / "gone").exists()


def test_nobody_else_renames_a_finished_file():
    """The others: a set of files that appears together, the lock of a run, which is no content, a
    fetched file that may turn out not to be needed, and an entry of a cache, where each microsecond
    counts."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("segtrain", "launch")
        for path in (ROOT / folder).rglob("*.py")
        if "os.replace(" in path.read_text(encoding="utf-8")
    }
    assert found == {
        "segtrain/base/files.py",
        "segtrain/infer/export.py",
        "segtrain/runfolder/lock.py",
        "segtrain/runfolder/mirror.py",
        "segtrain/data/bucket/cache_entry.py",
    }


def not_files(folder: Path) -> Iterator[Path]:
    """A pipe, a device, a link to one, a folder, and a file that is too large."""
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    with open(folder / "large", "wb") as stream:
        stream.truncate(files.MOST_LINES + 1)
    yield from folder.iterdir()


def test_only_regular_files_of_a_possible_size_are_read(tmp_path):
    for path in not_files(tmp_path):
        for read in (files.open_file, files.read_text):
            with pytest.raises(OSError, match=path.name):
                read(path)
    (tmp_path / "text").write_text("é\n", encoding="utf-8")
    assert files.read_text(tmp_path / "text") == "é\n"
    with files.open_file(tmp_path / "text", 3) as stream:
        assert stream.read() == "é\n".encode()
    with pytest.raises(OSError, match="larger"):
        files.open_file(tmp_path / "text", 2)
