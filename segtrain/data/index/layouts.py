"""The table of layouts, in the order in which ``detect`` tries them on a folder."""

from __future__ import annotations

from segtrain.data.annotations.coco import COCO, PANOPTIC
from segtrain.data.annotations.cvat import CVAT
from segtrain.data.annotations.geojson import GEOJSON
from segtrain.data.annotations.kaggle_rle import KAGGLE_RLE
from segtrain.data.annotations.label_studio import LABEL_STUDIO
from segtrain.data.annotations.labelme import LABELME
from segtrain.data.annotations.objects import OBJECTS
from segtrain.data.annotations.supervisely import SUPERVISELY
from segtrain.data.annotations.via import VIA
from segtrain.data.annotations.yolo import YOLO
from segtrain.data.generated import SCENES
from segtrain.data.index.folders import FOLDERS
from segtrain.data.index.lists import LIST
from segtrain.data.index.published import ADE20K, CAMVID, CITYSCAPES, VOC
from segtrain.data.shards.layout import SHARDS

# Layouts that one folder may have at the same time: ``detect`` stops where several fit.
RIVALS = (
    COCO,
    PANOPTIC,
    YOLO,
    CVAT,
    LABEL_STUDIO,
    KAGGLE_RLE,
    LABELME,
    VIA,
    SUPERVISELY,
    GEOJSON,
    FOLDERS,
)
LAYOUTS = {
    layout.name: layout
    for layout in (SCENES, SHARDS, CITYSCAPES, ADE20K, VOC, CAMVID, OBJECTS, *RIVALS, LIST)
}
