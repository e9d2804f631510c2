"""Tests of GeoJSON over GeoTIFF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_sets import FORMATS, masks_of, needs_formats, opened, referenced
from conftest import refused

rasterio = pytest.importorskip("rasterio", reason="the extra 'geo' is not installed")
pytest.importorskip("rasterio.warp")


def tile(path: Path, left: float, crs: str | None = "EPSG:32633") -> None:
    """20 x 30 pixels of 2 m, whose upper left corner is at (``left``, 5,400,000)."""
    transform = rasterio.Affine(2, 0, left, 0, -2, 5_400_000)
    form = {"driver": "GTiff", "width": 30, "height": 20, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", crs=crs, transform=transform, **form) as target:
        target.write(np.zeros((3, 20, 30), np.uint8))


def layer(root: Path, boxes: list[tuple[float, float, str]], geometry: str = "Polygon") -> None:
    """Squares of 8 m, by their upper left corners in EPSG:32633, written as longitude and latitude;
    each has a hole of 4 m in its middle.
    """
    features = []
    for x, y, name in boxes:
        rings = [
            [(x + a, y - a), (x + b, y - a), (x + b, y - b), (x + a, y - b), (x + a, y - a)]
            for a, b in ((0.1, 8.1), (2.1, 6.1))
        ]
        one = rasterio.warp.transform_geom(
            "EPSG:32633", "OGC:CRS84", {"type": "Polygon", "coordinates": rings}
        )
        if geometry == "MultiPolygon":
            one = {"type": geometry, "coordinates": [one["coordinates"]]}
        features.append({"geometry": one, "properties": {"fid": 7, "landuse": name}})
    content = {"type": "FeatureCollection", "features": features}
    (root / "labels.geojson").write_text(json.dumps(content))


@pytest.mark.parametrize("geometry", ["Polygon", "MultiPolygon"])
def test_one_layer_covers_several_tiles(tmp_path, geometry):
    for name, left in (("west", 500_000), ("east", 500_060), ("far", 600_000)):
        tile(tmp_path / f"{name}.tif", left)
    layer(tmp_path, [(500_056, 5_399_990, "field"), (500_010, 5_399_970, "wood")], geometry)
    dataset: Any = opened(tmp_path)
    assert dataset.labels.names == ("background", "field", "wood")
    masks = masks_of(dataset)
    # The field lies in two tiles: 2 columns of 4 pixels, of which the hole takes 2, in each.
    assert [int((masks[name] == 1).sum()) for name in ("west", "east", "far")] == [6, 6, 0]
    assert [int((masks[name] == 2).sum()) for name in ("west", "east", "far")] == [12, 0, 0]
    assert masks["west"][5, 28] == 1
    assert masks["west"][15, 5] == 2


def test_what_no_image_shows_is_refused(tmp_path):
    tile(tmp_path / "a.tif", 500_000)
    layer(tmp_path, [(700_000, 5_399_990, "field")])
    with refused("annotation-invalid"):
        opened(tmp_path)
    tile(tmp_path / "a.tif", 500_000, crs=None)
    with refused("annotation-invalid", file=str(tmp_path / "a.tif")):
        opened(tmp_path)


@needs_formats
def test_the_sample_differs_only_where_edges_run_through_centers():
    dataset: Any = opened(FORMATS / "geojson-geotiff")
    names = {1: "road", 2: "car", 3: "traffic sign"}
    for reference, most in (("mask_geojson.png", 10), ("mask.png", 23)):
        expected = referenced(dataset, FORMATS / "geojson-geotiff" / reference, names)
        assert int((masks_of(dataset)["scene"] != expected).sum()) <= most
