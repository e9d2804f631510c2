"""Polygons of predicted areas, as labelme, COCO, and GeoJSON store them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segtrain.data.labels.space import LabelSpace, is_background
from segtrain.errors import MissingExtra

FORMATS = ("labelme", "coco", "geojson")
# Rings int (n, 2) of x and y, corners of pixels: the outline of an area, then its holes.
Rings = list[np.ndarray]
# Of an image in a file of COCO: its name, (height, width), and annotations without their ids.
CocoImage = tuple[str, tuple[int, int], list[dict[str, Any]]]


@dataclass(frozen=True)
class Place:
    """Where a GeoTIFF lies: pixels to coordinates, float (2, 3), and their system, "EPSG:32633" or
    WKT.
    """

    to_map: np.ndarray
    crs: str


def areas(ids: np.ndarray, labels: LabelSpace) -> list[tuple[int, Rings]]:
    """The areas of one class whose pixels are connected by their sides, each with its train id.
    Pixels that are background or ignored are in none.
    """
    classes = [i for i in range(labels.num_classes) if not is_background(labels.names, i)]
    return [(train_id, rings) for train_id in classes for rings in _outlines(ids == train_id)]


def _outlines(pixels: np.ndarray) -> Iterator[Rings]:
    count, numbers, boxes, _ = cv2.connectedComponentsWithStats(
        pixels.astype(np.uint8), connectivity=4
    )
    for number, (left, top, width, height) in enumerate(boxes[1:count, :4].tolist(), start=1):
        area = numbers[top : top + height, left : left + width] == number
        # A contour runs through the centers of pixels. At twice the size, the two centers beside a
        # corner give the place of the corner.
        doubled = area.repeat(2, axis=0).repeat(2, axis=1).astype(np.uint8)
        contours, tree = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
        rings = []
        for index in np.argsort(tree[0, :, 3], kind="stable"):  # the parent of an outline is -1
            corners = (contours[index][:, 0] + 1) // 2 + (left, top)
            rings.append(corners[(corners != np.roll(corners, 1, axis=0)).any(1)])
        yield rings


def _joined(rings: Rings) -> np.ndarray:
    """One ring of an outline and its holes, which bridges without width connect: even-odd, it has
    the same pixels.
    """
    ring = rings[0]
    for hole in rings[1:]:
        near = int(np.abs(ring - hole[0]).sum(1).argmin())
        ring = np.concatenate([ring[: near + 1], hole, hole[:1], ring[near:]])
    return ring


def labelme(image: Path, file: Path, ids: np.ndarray, labels: LabelSpace) -> dict[str, Any]:
    """The content of ``file`` in the form of labelme, with the path from there to the image."""
    shapes = [
        {
            "label": labels.names[train_id],
            "points": _joined(rings).tolist(),
            "shape_type": "polygon",
        }
        for train_id, rings in areas(ids, labels)
    ]
    return {
        "version": "5.0.0",
        "shapes": shapes,
        "imagePath": Path(os.path.relpath(image.resolve(), file.parent.resolve())).as_posix(),
        "imageData": None,
        "imageHeight": ids.shape[0],
        "imageWidth": ids.shape[1],
    }


def coco_image(name: str, ids: np.ndarray, labels: LabelSpace) -> CocoImage:
    """What an image adds to a file of COCO."""
    annotations = []
    for train_id, rings in areas(ids, labels):
        (left, top), (right, bottom) = rings[0].min(0).tolist(), rings[0].max(0).tolist()
        area, *holes = (cv2.contourArea(ring.astype(np.int32)) for ring in rings)
        annotations.append(
            {
                "category_id": train_id + 1,
                "segmentation": [_joined(rings).ravel().tolist()],
                "area": area - sum(holes),
                "bbox": [left, top, right - left, bottom - top],
                "iscrowd": 0,
            }
        )
    return name, (ids.shape[0], ids.shape[1]), annotations


def coco(images: Sequence[CocoImage], labels: LabelSpace) -> dict[str, Any]:
    """One file in the form of COCO."""
    annotations = [
        {**annotation, "image_id": number}
        for number, (_, _, of_image) in enumerate(images, start=1)
        for annotation in of_image
    ]
    return {
        "images": [
            {"id": number, "file_name": name, "height": size[0], "width": size[1]}
            for number, (name, size, _) in enumerate(images, start=1)
        ],
        "categories": [
            {"id": train_id + 1, "name": name}
            for train_id, name in enumerate(labels.names)
            if not is_background(labels.names, train_id)
        ],
        "annotations": [{"id": id_, **item} for id_, item in enumerate(annotations, start=1)],
    }


def geojson(ids: np.ndarray, labels: LabelSpace, place: Place | None) -> dict[str, Any]:
    """A GeoJSON layer of an image, in the coordinates of its GeoTIFF, or else in pixels."""
    features = []
    for train_id, rings in areas(ids, labels):
        closed = [np.concatenate([ring, ring[:1]]) for ring in rings]
        if place:
            closed = [ring @ place.to_map[:, :2].T + place.to_map[:, 2] for ring in closed]
        features.append(
            {
                "type": "Feature",
                "properties": {"class": labels.names[train_id]},
                "geometry": {"type": "Polygon", "coordinates": [r.tolist() for r in closed]},
            }
        )
    crs = {"crs": {"type": "name", "properties": {"name": place.crs}}} if place else {}
    return {"type": "FeatureCollection", **crs, "features": features}


def place_of(image: Path) -> Place | None:
    """The place of a GeoTIFF; None for other images. Raises MissingExtra."""
    if image.suffix.lower() not in (".tif", ".tiff"):
        return None
    try:
        import rasterio
    except ImportError:
        raise MissingExtra("rasterio", "geo", "polygons of GeoTIFF images") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(image) as source:
            if source.crs is None:
                return None
            return Place(np.array(source.transform).reshape(3, 3)[:2], source.crs.to_string())
