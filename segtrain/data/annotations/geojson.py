"""GeoJSON over GeoTIFF images: one layer of polygons for all images, or one for each split.

https://datatracker.ietf.org/doc/html/rfc7946
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.read import json_of, label_key, reading
from segtrain.data.annotations.shapes import UNNAMED, Annotated, Annotations, Shape, Size, polygon
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import MASK_WORDS
from segtrain.data.index.layout import Detected
from segtrain.data.index.walk import images_below
from segtrain.data.storage import Store
from segtrain.errors import MissingExtra

# Without a member "crs", coordinates are longitude and latitude (RFC 7946, section 4).
_WGS84 = "OGC:CRS84"


def _detect(root: str, store: Store) -> Detected | None:
    paths = [
        path
        for ending in (".geojson", ".json")
        for path, head in find.files(root, store, ending)
        if '"FeatureCollection"' in head and 'Polygon"' in head and not find.tool_of(head)
    ]
    return find.detected(root, store, paths, lambda _: _geotiffs(root, store)) if paths else None


def _geotiffs(folder: str, store: Store) -> Iterator[str]:
    """Paths of TIFF files below a folder, without rasters of labels."""
    for path in images_below(folder, store):
        stem, ending = os.path.splitext(os.path.basename(path).lower())
        if ending in (".tif", ".tiff") and stem not in MASK_WORDS:
            yield path


def _read(where: Where) -> Annotations:
    content = json_of(where.annotations)
    features = [f for f in content["features"] if f["geometry"] is not None]
    properties = [
        {key: value for key, value in (f["properties"] or {}).items() if isinstance(value, str)}
        for f in features
    ]
    key = label_key(properties, where)
    names = [str(values.get(key, UNNAMED)) for values in properties]
    crs = content.get("crs", {}).get("properties", {}).get("name", _WGS84)
    geometries = [feature["geometry"] for feature in features]
    in_crs: dict[str, list[dict[str, Any]]] = {}
    images = []
    for image in sorted(_geotiffs(where.images, where.store)):
        path = os.path.join(where.images, image)
        with reading(path), _rasterio().open(local_copy(path)) as source:
            size, own = (source.height, source.width), source.crs
            if own is None:
                raise ValueError("the image has no coordinate system")
            if str(own) not in in_crs:
                in_crs[str(own)] = _rasterio().warp.transform_geom(crs, own, geometries)
            to_pixels = np.array(~source.transform).reshape(3, 3)
        shapes = [
            shape
            for geometry, name in zip(in_crs[str(own)], names)
            if (shape := _shape(geometry, name, to_pixels, size))
        ]
        images.append(Annotated(image, where.annotations, shapes, size, upright=False))
    if features and not any(image.shapes for image in images):
        raise ValueError(f"no polygon lies in an image, by its coordinates in {crs}")
    return Annotations(images, dict.fromkeys(names, 0))


def _rasterio() -> Any:
    try:
        import rasterio.warp
    except ImportError:
        raise MissingExtra("rasterio", "geo", "GeoJSON") from None
    return rasterio


def _shape(
    geometry: dict[str, Any], name: str, to_pixels: np.ndarray, size: Size
) -> Shape | str | None:
    """The polygons of a geometry that lie in an image; None if none does."""
    kind, polygons = geometry["type"], geometry.get("coordinates") or []
    if kind == "Polygon":
        polygons = [polygons]
    elif kind != "MultiPolygon":
        return str(kind)
    inside, holes = list[np.ndarray](), list[np.ndarray]()
    for part in polygons:
        outline, *inner = (
            np.array(ring)[:, :2] @ to_pixels[:2, :2].T + to_pixels[:2, 2] for ring in part
        )
        if (outline.max(0) > 0).all() and (outline.min(0) < size[::-1]).all():
            inside.append(outline)
            holes += inner
    return polygon(name, inside, holes) if inside else None


GEOJSON = Format("geojson", "a GeoJSON file of polygons, and GeoTIFF images", _detect, _read).layout
