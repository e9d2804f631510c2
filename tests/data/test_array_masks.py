"""Tests of masks in files of NumPy and MATLAB."""

from __future__ import annotations

import io
import pickle
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import FORMATS, needs_formats, opened
from conftest import refused
from data_files import picture
from PIL import Image

from segtrain.cli import main
from segtrain.config import load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels.array_mask import array_mask
from segtrain.errors import EXIT_ERROR

IDS = np.array([[0, 1, 2, 2, 2], [2, 1, 0, 0, 0]])
PLANES = np.arange(3)[:, None, None] == IDS


def npy(array: Any, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


def npz(*arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, *arrays)
    return stream.getvalue()


@needs_formats
@pytest.mark.parametrize(
    ("folder", "file", "reference"),
    [
        ("npy/labels", "a.npy", "npy"),
        ("npy/labels", "c.npy", "npy"),
        ("CrackForest/groundTruth", "001.mat", "crackforest"),
        ("sbd/cls", "2008_000002.mat", "sbd"),
    ],
)
def test_the_samples(folder, file, reference):
    content = (FORMATS / "mat-npy" / folder / file).read_bytes()
    expected = np.array(Image.open(FORMATS / f"mat-npy/mask_{reference}.png"))
    ids = array_mask(content, file)
    assert np.array_equal(ids - ids.min(), expected - expected.min())


@needs_formats
def test_regions_in_matlab_are_refused():
    with refused("mask-array-invalid"):
        array_mask((FORMATS / "mat-npy/BSDS/groundTruth/2018.mat").read_bytes(), "2018.mat")


def test_other_variables_of_matlab_are_no_mask():
    from scipy.io import savemat

    stream = io.BytesIO()
    savemat(stream, {"ids": IDS, "names": np.array(["a", "b"], object), "scale": 0.5})
    assert array_mask(stream.getvalue(), "a.mat").tolist() == IDS.tolist()


def matlab_73(path: Path, **arrays: np.ndarray) -> None:
    """Write a file of MATLAB 7.3."""
    h5py = pytest.importorskip("h5py", reason="h5py reads and writes MATLAB 7.3 and HDF5")
    with h5py.File(path, "w", userblock_size=512) as file:
        for key, array in arrays.items():
            file[key] = array.T
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")


def test_masks_of_matlab_73(tmp_path):
    matlab_73(tmp_path / "a.mat", **{"s/image": IDS * 9, "s/tumorMask": IDS, "s/edge": IDS[:1]})
    assert array_mask((tmp_path / "a.mat").read_bytes(), "a.mat").tolist() == IDS.tolist()
    (tmp_path / "a.mat").write_bytes((tmp_path / "a.mat").read_bytes()[:900])
    with refused("mask-array-invalid", file="a.mat"):
        array_mask((tmp_path / "a.mat").read_bytes(), "a.mat")


@pytest.mark.parametrize(
    "array",
    [IDS, IDS.astype(np.float64), PLANES, np.moveaxis(PLANES, 0, 2), IDS[None], IDS[..., None]],
)
def test_ids_and_planes(array):
    ids = array_mask(npy(array), "a.npy")
    assert (ids.dtype, ids.tolist()) == (np.uint8, IDS.tolist())
    assert array_mask(npz(array), "a.npz").tolist() == IDS.tolist()


def test_wide_ids_and_colors_keep_their_values():
    assert array_mask(npy(IDS * 1000), "a.npy").dtype == np.uint16
    colors = np.stack([IDS * 9, IDS, IDS], -1).astype(np.uint8)
    assert np.array_equal(array_mask(npy(colors), "a.npy"), colors)


class Harm:
    def __reduce__(self) -> Any:
        return (sys.exit, (3,))


def bomb() -> bytes:
    """An archive whose one array unpacks to far more than the largest image."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", b"")
    content = bytearray(stream.getvalue())
    at = content.index(b"PK\x01\x02") + 24  # the size in the directory
    content[at : at + 4] = (0xF0000000).to_bytes(4, "little")
    return bytes(content)


HOSTILE = {
    "half ids.npy": npy(IDS / 2),
    "negative.npy": npy(IDS - 1),
    "not finite.npy": npy(np.where(IDS, np.nan, 1)),
    "deep.npy": npy(IDS * 100_000),
    "overlapping planes.npy": npy(PLANES | PLANES[:1]),
    "free pixels.npy": npy(PLANES[1:]),
    "objects.npy": npy(np.array([[Harm()]], object), True),
    "pickle.npy": pickle.dumps(Harm()),
    "empty.npy": npy(np.zeros((0, 4))),
    "flat.npy": npy(np.zeros(4)),
    "cut.npy": npy(IDS)[:-3],
    "huge.npy": npy(IDS).replace(b"(2, 5), }        ", b"(2999, 999999), }"),
    "two.npz": npz(IDS, IDS),
    "bomb.npz": bomb(),
    "text.mat": b"no matrix",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_other_content_is_refused(name):
    with refused("mask-array-invalid", file=name):
        array_mask(HOSTILE[name], name)


def test_arrays_are_masks_where_no_image_is(tmp_path):
    picture(tmp_path / "images/a.png", size=(2, 5))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.npy").write_bytes(npy(IDS))
    dataset = opened(tmp_path, "data.classes=[a, b, c]")
    assert dataset.read_mask(0).tolist() == IDS.tolist()
    Image.fromarray(IDS.astype(np.uint8)[::-1]).save(tmp_path / "labels/a.png")
    assert opened(tmp_path, "data.classes=[a, b, c]").read_mask(0).tolist() == IDS[::-1].tolist()


@pytest.mark.parametrize(("package", "content"), [("scipy.io", b""), ("h5py", b"MATLAB 7.3")])
def test_matlab_needs_packages(package, content, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with refused("missing-package", package=package.partition(".")[0]):
        array_mask(content, "a.mat")


def _mat(array: np.ndarray) -> bytes:
    savemat = pytest.importorskip("scipy.io", reason="scipy writes .mat").savemat
    stream = io.BytesIO()
    savemat(stream, {"mask": array})
    return stream.getvalue()


def _png(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("values", [(1, 2), (0, 255), (0, 7, 255)])
@pytest.mark.parametrize("kind", ["png", "npy", "mat"])
def test_a_config_of_ids_without_names_trains(kind, values, tmp_path, capsys):
    """It divides the set, too. Near ids may be one class: then one of two commands writes it."""
    root, file = tmp_path / "set", tmp_path / "mine.yaml"
    (root / "masks").mkdir(parents=True)
    for seed in range(6):
        array = np.resize(np.array(values, np.uint8), (12, 16))
        picture(root / f"images/{seed}.png", seed=seed)
        content = {"png": _png, "npy": npy, "mat": _mat}[kind](array)
        (root / f"masks/{seed}.{kind}").write_bytes(content)
    words = ["data", "check", str(root), "--write", str(file)]
    if 7 in values:
        assert main(words) == EXIT_ERROR
        *_, one, each = capsys.readouterr().err.splitlines()
        assert '"data.label_map={0: 0, 7: 0, 255: 1}"' in one
        words = shlex.split(each)[1:]
    assert main(words) == 0
    assert f"{file} has these settings" in capsys.readouterr().out
    data = load_config(file).data
    assert data.classes == tuple(f"class_{value}" for value in values)
    mask = open_dataset(data, "train").read_mask(0)
    assert mask[0, : len(values)].tolist() == list(range(len(values)))
    assert len(open_dataset(data, "train")) + len(open_dataset(data, "val")) == 6
