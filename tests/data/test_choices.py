"""Tests of data sets in which files or folders are ambiguous, and of advice that holds in all
splits.
"""

from __future__ import annotations

import resource
import shlex
import shutil
import sys
import tarfile
from pathlib import Path
from subprocess import run

import pytest
from conftest import refused
from data_files import ids, picture, run_check, sample_names

from segtrain.cli import main
from segtrain.config import Data, load_config
from segtrain.data.cache import refuse_cache
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect_files import are_alike
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.reading import PLAIN
from segtrain.errors import SegtrainError

CLASSES = "data.classes=[a, b]"


def write(root: Path, images: str, *masks: str, count: int = 3) -> Path:
    """Images and masks of train and val; ``#`` is the number of the image."""
    for split in ("train", "val"):
        for number in range(count):
            paths = [
                root / text.replace("{split}", split).replace("#", f"{split}{number}")
                for text in (images, *masks)
            ]
            picture(paths[0], seed=number + 9 * (split == "val"))
            for path in paths[1:]:
                ids(path)
    return root


# images, masks, another folder, whether it stops the check, and a setting that chooses
OTHERS = {
    "labels": (
        "{split}/images/#.png",
        "{split}/masks/#.png",
        "{split}/labels",
        "data.masks='{split}/labels'",
    ),
    "annotator": (
        "{split}/images/#.png",
        "{split}/mask/#.png",
        "{split}/2nd",
        "data.masks='{split}/2nd'",
    ),
    "raw": (
        "images/{split}/#.png",
        "masks/{split}/#.png",
        "images_raw/{split}",
        "data.images=images/{split}",
    ),
    "infrared": (
        "{split}/rgb/#.png",
        "{split}/gt/#.png",
        "{split}/ir",
        "data.images='{split}/rgb'",
    ),
    "no split": ("img/#.png", "label/#.png", "depth", "data.masks=label"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_second_folder_of_images_or_masks_is_chosen_by_the_user(tmp_path, name):
    images, masks, other, setting = OTHERS[name]
    root = str(write(tmp_path / "set", images, masks, f"{other}/#.png"))
    with refused("folders-ambiguous", found=[other]):
        run_check(root, CLASSES)
    checked = run_check(root, CLASSES, *shlex.split(setting))
    assert not any(report.failed for report in checked.reports)
    key, _, value = shlex.split(setting)[0].partition("=")
    assert getattr(checked.data, key.removeprefix("data.")) == value.strip("'")


def test_what_the_files_settle_is_chosen_with_a_reason(tmp_path):
    """DRIVE's folders: the camera's field of view is the same in all images, the second annotator
    has no mask for training, and val has no mask at all.
    """
    names = "{split}/images/#_tr.png", "{split}/mask/#_tr_mask.png", "{split}/1st_manual/#_by.png"
    root = write(tmp_path / "set", *names)
    for number, path in enumerate(sorted(root.glob("*/1st_manual/*"))):
        ids(path, (0,) * number + (1,) + (0,) * (7 - number))
    shutil.copytree(root / "val/1st_manual", root / "val/2nd_manual")
    checked = run_check(root)
    assert checked.data.masks == "{split}/1st_manual"
    assert not checked.failed
    why = " ".join(finding.message for finding in checked.reports[0].findings)
    assert "the masks in {split}/mask are nearly the same in all images" in why
    assert '{split}/2nd_manual has no mask for train (to read it: "data.masks=' in why
    # The names of the splits have another order.
    for old, new in (("train", "training"), ("val", "test")):
        (root / old).rename(root / new)
    assert run_check(root).data.masks == "{split}/1st_manual"
    for old, new in (("train", "training"), ("val", "test")):
        (root / new).rename(root / old)
    # Other values are ids of classes, and a video changes only after some masks.
    video = [str(ids(tmp_path / f"video/{n}.png", (0,) * (n // 4) + (1,) * 7)) for n in range(8)]
    other = [str(ids(tmp_path / f"ids/{n}.png", (1 + n // 4,))) for n in range(8)]
    assert are_alike(video[:4])
    assert not any(map(are_alike, (video[::2], other[::2])))
    shutil.rmtree(root / "val/1st_manual")
    checked = run_check(root)
    assert [*checked.datasets] == ["train"]
    assert checked.data.split_by.of == "train"


def test_folders_with_fewer_images_and_of_other_splits_are_no_choice(tmp_path):
    root = write(
        tmp_path / "set",
        "{split}/images/#.png",
        "{split}/masks/#.png",
        "{split}/overlays/#.png",
        "{split}/SegmentationObject/#.png",
        count=4,
    )
    for number in range(8):
        picture(root / f"test/images/{number}.png")
        picture(root / f"train/samples/{number}.png") if number < 2 else None
    assert not any(report.failed for report in run_check(root, CLASSES).reports)


@pytest.mark.parametrize("places", [["{split}", "old/{split}"], ["{split}"]])
def test_each_choice_can_be_pasted_or_says_what_it_lacks(tmp_path, places):
    for place in places:
        names = "images/#_tr.png", "mask/#_tr_mask.png", "1st_manual/#_by.png"
        write(tmp_path, *(f"{place}/{name}" for name in names))
    (tmp_path / "train/mask/train2_tr_mask.png").unlink()
    with refused("folders-ambiguous") as caught:
        run_check(tmp_path, CLASSES)
    proposals = [line.split("  #") for line in str(caught.value).splitlines()[1:]]
    assert len(proposals) == 2 * len(places)
    assert [lacks for _, *lacks in proposals].count([" 1 image without a mask: not labeled"]) == 1
    for line, *_ in proposals:
        assert main(shlex.split(line)[1:]) == 0


def test_a_second_folder_of_masks_in_a_bucket(server):
    pytest.importorskip("obstore")
    write(
        server.folder / "bkt/set",
        "{split}/images/#.png",
        "{split}/masks/#.png",
        "{split}/labels/#.png",
    )
    with refused("folders-ambiguous", found=["{split}/labels"]):
        run_check("s3://bkt/set", CLASSES)


@pytest.mark.parametrize("layout", [[], ["data.layout=folders", "data.images='{split}/images'"]])
def test_a_proposed_pair_fits_in_every_split(tmp_path, layout, capsys):
    root = write(tmp_path / "set", "{split}/images/im_#_{split}.png", "{split}/masks/#_first.png")
    words = [
        "data",
        "check",
        str(root),
        CLASSES,
        *layout,
        *["data.masks='{split}/masks'"] * bool(layout),
    ]
    if layout:
        assert main(words) == 2
        pair = capsys.readouterr().err.rpartition("the names differ: ")[2].rpartition(" pairs ")[0]
        words += shlex.split(pair)
    assert main(words) == 0
    if layout:
        return
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("segtrain train ")
    )
    pasted = load_config(None, shlex.split(line)[2:]).data
    assert [len(open_dataset(pasted, split)) for split in ("train", "val")] == [3, 3]


def test_a_pair_that_fits_in_one_split_is_not_proposed(tmp_path):
    root = write(tmp_path / "set", "images/{split}/#_x.png", "masks/{split}/#_y.png")
    for number, path in enumerate(sorted((root / "masks/val").iterdir())):
        path.rename(path.with_name("abc"[number] + ".png"))
    data = Data(layout="folders", root=str(root), classes=("a", "b"))
    with refused("files-unpaired") as caught:
        open_dataset(data, "train")
    assert "data.pair=" not in str(caught.value)
    with refused("files-unpaired"):
        run_check(root, CLASSES)


def test_a_folder_for_each_image_has_several_masks(tmp_path):
    for name in ("3f", "a8", "d0"):
        picture(tmp_path / f"set/{name}/images/x.png")
        for number in range(2):
            ids(tmp_path / f"set/{name}/masks/{number}.png", (0, 1, 2))
    (report,) = run_check(tmp_path / "set").reports
    assert len(report.faults) == 3
    assert "more than two values" in report.faults[0][1]


@pytest.mark.parametrize("pair", [[], ["data.pair=['{name}.png', '{name}_m.png']"]])
def test_masks_without_an_image_can_be_left_out(tmp_path, pair):
    end = "_m.png" if pair else ".png"
    root = write(tmp_path / "set", "images/{split}/#.png", f"masks/{{split}}/#{end}")
    ids(root / f"masks/train/HD/train0{end}", (1,))
    ids(root / f"masks/train/extra{end}", (1,))
    words = ["data.layout=folders", CLASSES, *pair]
    with refused("files-unpaired", masks=2, images=0) as caught:
        run_check(root, *words)
    assert "data.faults=skip" in str(caught.value) or pair
    data = run_check(root, *words, "data.faults=skip").data
    dataset = open_dataset(data, "train")
    assert [Path(entry.mask or "").name for entry in dataset.entries] == [
        f"train{n}{end}" for n in range(3)
    ]
    assert any("extra" in note for note in dataset.notes)
    (root / f"masks/train/train1{end}").unlink()
    with refused("files-unpaired", images=1):
        open_dataset(data, "train")
    with refused("files-unpaired", images=1, masks=2) as caught:
        run_check(root, *words)
    assert "data.absent_mask=leave-out data.faults=skip" in str(caught.value)


def test_a_second_set_of_masks_below_the_first_is_refused(tmp_path):
    root = write(tmp_path / "set", "images/#.png", "masks/#.png", "masks/HD/#.png")
    with refused("files-unpaired", masks=6):
        run_check(root, CLASSES)
    assert len(open_dataset(run_check(root, CLASSES, "data.masks=masks/HD").data, "train")) > 0


def test_the_memory_of_a_cache_is_that_of_all_images(monkeypatch):
    class Sizes:
        reading, labels = PLAIN, LabelSpace(("a",), {0: 0})

        def __init__(self, *sizes: int) -> None:
            self.sizes = sizes

        def __len__(self) -> int:
            return len(self.sizes)

        def size(self, index: int) -> tuple[int, int]:
            return self.sizes[index], 1000

    monkeypatch.setattr("segtrain.data.cache.memory_limit", lambda: (10**8, ""))
    for sizes in ((9000, *[10] * 100), (100,) * 200, (9000, *[10] * 1000)):
        refuse_cache(Sizes(*sizes))  # type: ignore[arg-type]
    for sizes in ((10, *[1000] * 30), (10,) * 10 + (1000,) * 200):
        with refused("cache-too-large"):
            refuse_cache(Sizes(*sizes))  # type: ignore[arg-type]


def shard(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name in names:
            for file in (
                picture(path.parent / f"{name}.png"),
                ids(path.parent / f"{name}.mask.png"),
            ):
                tar.add(file, file.name)
                file.unlink()


def test_dots_in_the_keys_of_shards_are_named(tmp_path):
    shard(tmp_path / "set/train-000000.tar", "img.001", "img.002")
    with refused("samples-incomplete", "001.mask.png", "dot"):
        open_dataset(Data(layout="shards", root=str(tmp_path / "set"), classes=("a", "b")), "train")


def test_a_command_raises_the_limit_of_open_files():
    code = "import resource as r, segtrain.cli as c; c._prepare_process(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = run(
        [
            sys.executable,
            "-c",
            f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, {hard})); {code}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(hard)] * 2


def test_a_folder_without_a_layout_names_the_check(tmp_path):
    with pytest.raises(SegtrainError) as caught:
        load_config(None, [f"data.root={tmp_path}/my set"])
    assert f"segtrain data check '{tmp_path}/my set'" in str(caught.value)


def test_a_printed_label_map_has_numbers_as_keys(tmp_path, capsys):
    root = write(tmp_path / "set", "images/{split}/#.png", "masks/{split}/#.png")
    assert main(["data", "check", str(root), CLASSES, "data.label_map={0: 0, 1: 1, 7: -1}"]) == 0
    assert capsys.readouterr().out.count("{0: 0, 1: 1, 7: -1}") == 2


def test_folders_of_pairs_are_read_on_request_also_from_a_bucket(server):
    root = server.folder / "bkt/areas"
    for area in ("Rural", "Urban"):
        write(root, f"{{split}}/{area}/images/#.png", f"{{split}}/{area}/masks/#_m.png")
    for place in (str(root), "s3://bkt/areas"):
        with refused("folders-ambiguous", found=["{split}/Rural", "{split}/Urban"]) as caught:
            run_check(place, CLASSES)
        every, one = (shlex.split(line)[5:] for line in str(caught.value).splitlines()[1:])
        for settings, count in ((every, 6), (one, 3)):
            dataset = run_check(place, CLASSES, *settings).datasets["train"]
            assert len(dataset) == count
        names = ["Rural/train0", "Rural/train1", "Rural/train2", "Urban/train0"]
        dataset = run_check(place, CLASSES, *every).datasets["train"]
        assert sample_names(dataset)[:4] == names
        assert dataset.entries[3].mask.endswith("train/Urban/masks/train0_m.png")


def test_a_second_pair_of_folders_stands_beside_the_one_of_the_root(tmp_path):
    for home in ("", "discards/"):
        write(tmp_path, f"{home}images/#.png", f"{home}masks/#.png")
        write(tmp_path, f"{home}images_IR/#.png")
    with refused("folders-ambiguous", "discards, . have images", found=["discards", "."]):
        run_check(tmp_path, CLASSES)
