"""Tests of the config that `segtrain data check --write` writes, and of what it says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import ids, picture

from segtrain.cli import main
from segtrain.config import load_config, make_config
from segtrain.data.audit.check import check_folder
from segtrain.data.audit.overlap import test_finding as finding_of_test
from segtrain.data.datasets import open_dataset
from segtrain.errors import EXIT_ERROR
from segtrain.training.start.faults import check_splits

CLASSES = "data.classes=[a, b]"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A set with the splits train and test, and a config to write."""
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    for seed in range(8):
        folder = tmp_path / "set" / ("train" if seed < 6 else "test")
        picture(folder / f"images/{seed}.png", seed=seed)
        ids(folder / f"masks/{seed}.png")
    return tmp_path / "set", tmp_path / "mine.yaml"


def test_skipped_faults_do_not_stop_the_config(files: tuple[Path, Path]) -> None:
    root, file = files
    (root / "train/images/0.png").write_bytes(b"")
    words = ["data", "check", str(root), CLASSES, "--write", str(file)]
    assert main(words) == EXIT_ERROR
    assert not file.exists()
    assert main([*words, "data.faults=skip"]) == 0
    assert load_config(file).data.faults == "skip"
    for image in (root / "test/images").iterdir():
        image.write_bytes(b"")  # no image is left
    assert check_folder(str(root), None, [CLASSES, "data.faults=skip"]).failed


def test_a_config_is_replaced_until_a_class_has_a_name(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = files
    words = ["data", "check", str(root), "--write", str(file)]
    assert main(words) == EXIT_ERROR
    assert main([*words, "data.layout=voc"]) == EXIT_ERROR
    assert f"{file} was not written" in capsys.readouterr().err
    named = file.read_text().replace("?1", "road")
    file.write_text(named)
    assert main([*words, CLASSES]) == EXIT_ERROR
    assert file.read_text() == named
    file.write_text(named.replace("road", "?1"))
    assert main([*words, CLASSES]) == 0
    assert load_config(file).data.classes == ("a", "b")


def test_a_test_split_that_takes_the_place_of_val_is_named(files: tuple[Path, Path]) -> None:
    checked = check_folder(str(files[0]), None, [CLASSES])
    (finding,) = checked.reports[0].findings
    assert "'test' is the validation split" in finding.message
    settings = {"data.split_by": {"of": "train", "val": 1}, "data.split": "val"}
    assert finding.settings == settings
    assert not finding.fatal
    config = make_config({"data": checked.data.model_dump(exclude_unset=True)}, "the test")
    train, test = (open_dataset(checked.data, split) for split in ("train", "test"))
    assert f"note: {finding.text()}" in check_splits(config, train, test).remarks
    divided = checked.data.model_copy(update={"split": "val"})
    assert not finding_of_test(divided, open_dataset(divided, "train"))


def test_a_set_that_the_config_divides_is_no_warning(files: tuple[Path, Path]) -> None:
    root, _ = files
    (root / "test").rename(root.with_name("elsewhere"))
    (report,) = check_folder(str(root), None, [CLASSES]).reports
    assert not report.warning_count
    assert "no split 'val', only train: data.split_by divides train" in report.table()
