"""Tests of files of class names: each usual form gives the right names, ids, and colors, and any
other form stops.
"""

from __future__ import annotations

import pytest
from conftest import refused

from segtrain.data.labels.class_file import read_classes

# File name and content -> the name of each id in masks (None: ignored). The lines of most are out
# of order.
IDS: dict[str, tuple[str, str, dict[int, str | None]]] = {
    "byte order mark, and lines as Windows ends them": ("c.txt", "\ufefftree\r\nshrub\r\n", {0: "tree", 1: "shrub"}),
    "comments and empty lines": ("c.txt", "# trees\n\ntree\nshrub # low\n", {0: "tree", 1: "shrub"}),
    "names of several words, accents, and slashes": (
        "c.txt", "apple tree\nhêtre/hedge\nlane 1\nlane 2\n", {0: "apple tree", 1: "hêtre/hedge", 2: "lane 1", 3: "lane 2"}
    ),
    "ids of names that are numbers": ("c.txt", "1,2021\n0,2020\n", {0: "2020", 1: "2021"}),
    "quoted names with commas": ("c.csv", 'id,name\n1,"tree, old"\n0,"bare soil"\n', {0: "bare soil", 1: "tree, old"}),
    "Roboflow": ("_classes.csv", "Pixel Value, Class\n0, background\n2, lane 2\n1, lane 1\n", {0: "background", 1: "lane 1", 2: "lane 2"}),
    "id: name": ("c.txt", "1: tree\n0: soil\n", {0: "soil", 1: "tree"}),
    "name, id": ("c.csv", "label,value\ntree,7\nsoil,2\n", {2: "soil", 7: "tree"}),
    "name id": ("c.txt", "tree 1\nbare soil 0\n", {0: "bare soil", 1: "tree"}),
    "names that end in numbers": ("c.txt", "boeing 737\nairbus 320\n", {0: "boeing 737", 1: "airbus 320"}),
    "void first": ("c.txt", "void\ntree\nsoil\n", {0: None, 1: "tree", 2: "soil"}),
    "labelme": ("labels.txt", "__ignore__\n_background_\ntree\n", {0: "_background_", 1: "tree"}),
    "YAML list": ("c.yaml", "- void\n- tree\n- soil\n", {0: None, 1: "tree", 2: "soil"}),
    "YOLO mapping": ("data.yaml", "train: a\nnames:\n  1: tree\n  0: soil\n", {0: "soil", 1: "tree"}),
    "JSON ids to names, with tabs": ("c.json", '{\n\t"1": "tree",\n\t"0": "soil"\n}', {0: "soil", 1: "tree"}),
    "Supervisely's gray levels": (
        "obj_class_to_machine_color.json", '{"tree": [2, 2, 2], "soil": [1, 1, 1]}', {0: "background", 1: "soil", 2: "tree"}
    ),
    "JSON names to ids": ("c.json", '{"tree": 5, "soil": 3}', {3: "soil", 5: "tree"}),
    "COCO": ("c.json", '{"images": [], "categories": [{"id": 2, "name": "tree"}, {"id": 1, "name": "soil"}]}', {1: "soil", 2: "tree"}),
    "id2label": ("config.json", '{"id2label": {"0": "tree", "1": "soil"}}', {0: "tree", 1: "soil"}),
}  # fmt: skip
TREE, SOIL = 0x004000, 0x800000
# Colors of RGB masks -> names (None: ignored).
COLORS: dict[str, tuple[str, str, dict[int, str | None]]] = {
    "red green blue name": (
        "c.txt",
        "0 64 0 tree 2\n128 0 0\t\tbare soil\n",
        {TREE: "tree 2", SOIL: "bare soil"},
    ),
    "class_dict.csv": (
        "class_dict.csv",
        "name,r,g,b\nsoil,128,0,0\nVoid,0,0,0\ntree 2,0,64,0\n",
        {SOIL: "soil", 0: None, TREE: "tree 2"},
    ),
    "CVAT": (
        "labelmap.txt",
        "# label:color_rgb:parts:actions\nsoil:128,0,0::\ntree:0,64,0:leaf:\n",
        {SOIL: "soil", TREE: "tree"},
    ),
    "FreeSurfer": ("lut.txt", "1 tree 0 64 0 0\n4 soil 128 0 0 0\n", {SOIL: "soil", TREE: "tree"}),
    "JSON": (
        "c.json",
        '[{"name": "soil", "color": [128, 0, 0]}, {"name": "tree", "color": [0, 64, 0]}]',
        {SOIL: "soil", TREE: "tree"},
    ),
    "two colors of a class": ("c.txt", "0 64 0 tree\n128 0 0 tree\n", {SOIL: "tree", TREE: "tree"}),
}
REFUSED: dict[str, tuple[str, str, str]] = {
    "empty": ("c.txt", "# none\n\n", "classes-file-empty"),
    "an id for two names": ("c.txt", "0 tree\n0 soil\n", "class-id-repeated"),
    "a name twice": ("c.txt", "tree\nsoil\ntree\n", "class-name-repeated"),
    "a color twice": ("c.txt", "0 64 0 tree\n0 64 0 soil\n", "class-color-repeated"),
    "a line without an id": ("c.txt", "0 tree\nsoil\n", "classes-file-invalid"),
    "a line without a name": ("c.csv", "0,tree\n1,\n", "classes-file-invalid"),
    "commas in names without quotes": ("c.txt", "tree, old\nsoil\n", "classes-file-invalid"),
    "a column that nobody knows": (
        "c.csv",
        "id,name,kind\n0,tree,plant\n1,soil,ground\n",
        "classes-file-invalid",
    ),
    "numbers that nobody knows": (
        "c.csv",
        "tree,0,0,64,0\nsoil,1,128,0,0\n",
        "classes-file-invalid",
    ),
    "a web page": ("c.txt", "<html><body>not found</body></html>", "classes-file-invalid"),
    "YAML's yes and no": ("c.yaml", "- yes\n- no\n", "classes-file-invalid"),
    "nothing but void": ("c.txt", "void\n", "classes-count-invalid"),
}


@pytest.mark.parametrize("form", IDS)
def test_names_keep_their_ids(form, tmp_path):
    file, content, expected = IDS[form]
    (tmp_path / file).write_bytes(content.encode())
    space = read_classes(tmp_path / file)
    named = {
        raw: None if train == 255 else space.names[train]
        for raw, train in space.raw_to_train.items()
    }
    assert named == {255: None, **expected}
    assert space.names == tuple(name for _, name in sorted(expected.items()) if name)


@pytest.mark.parametrize("form", COLORS)
def test_names_keep_their_colors(form, tmp_path):
    file, content, expected = COLORS[form]
    (tmp_path / file).write_text(content)
    space = read_classes(tmp_path / file, 254)
    assert {
        color: None if train == 254 else space.names[train] for color, train in space.colors.items()
    } == expected


@pytest.mark.parametrize("form", REFUSED)
def test_any_other_content_stops(form, tmp_path):
    file, content, code = REFUSED[form]
    (tmp_path / file).write_text(content)
    with refused(code):
        read_classes(tmp_path / file)


def test_another_encoding_stops(tmp_path):
    (tmp_path / "c.txt").write_bytes("hêtre\n".encode("utf-16"))
    with refused("classes-file-unreadable", file=str(tmp_path / "c.txt")):
        read_classes(tmp_path / "c.txt")
