"""Label spaces of known data sets: class names in order, raw ids, and colors.

CamVid in the 11-class form of SegNet (Badrinarayanan et al. 2017), Cityscapes (Cordts et al. 2016),
ADE20K in the 150-class form of the scene parsing challenge (Zhou et al. 2017), Pascal VOC 2012
(Everingham et al. 2010), and the generated street scenes of ``segtrain.data.scenes.scene``.
"""

from __future__ import annotations

from segtrain.data.labels.space import LabelSpace, code, color_wheel, plain_space, voc_colored

VOID = 255

_camvid = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "signsymbol": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
CAMVID11 = LabelSpace(
    tuple(_camvid),
    tuple(_camvid.values()),
    VOID,
    {**{index: index for index in range(11)}, 11: VOID, VOID: VOID},
    {**{code(color): index for index, color in enumerate(_camvid.values())}, code((0, 0, 0)): VOID},
)

# Raw ids of the 19 classes that are scored. The other ids from -1 to 33 are ignored.
_cityscapes = {
    "road": (7, (128, 64, 128)),
    "sidewalk": (8, (244, 35, 232)),
    "building": (11, (70, 70, 70)),
    "wall": (12, (102, 102, 156)),
    "fence": (13, (190, 153, 153)),
    "pole": (17, (153, 153, 153)),
    "traffic light": (19, (250, 170, 30)),
    "traffic sign": (20, (220, 220, 0)),
    "vegetation": (21, (107, 142, 35)),
    "terrain": (22, (152, 251, 152)),
    "sky": (23, (70, 130, 180)),
    "person": (24, (220, 20, 60)),
    "rider": (25, (255, 0, 0)),
    "car": (26, (0, 0, 142)),
    "truck": (27, (0, 0, 70)),
    "bus": (28, (0, 60, 100)),
    "train": (31, (0, 80, 100)),
    "motorcycle": (32, (0, 0, 230)),
    "bicycle": (33, (119, 11, 32)),
}
CITYSCAPES19 = LabelSpace(
    tuple(_cityscapes),
    tuple(color for _, color in _cityscapes.values()),
    VOID,
    {
        **dict.fromkeys((*range(-1, 34), VOID), VOID),
        **{raw: index for index, (raw, _) in enumerate(_cityscapes.values())},
    },
)

_ade20k = """
wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person,
earth, door, table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea,
mirror, rug, field, armchair, seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion,
base, box, column, signboard, chest of drawers, counter, sand, sink, skyscraper, fireplace,
refrigerator, grandstand, path, stairs, runway, case, pool table, pillow, screen door, stairway,
river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop, stove,
palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light,
truck, tower, chandelier, awning, streetlight, booth, television, airplane, dirt track, apparel,
pole, land, bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain,
conveyor belt, canopy, washer, plaything, swimming pool, stool, barrel, basket, waterfall, tent,
bag, minibike, cradle, oven, ball, food, step, tank, trade name, microwave, pot, animal, bicycle,
lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan,
pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock, flag
"""
_names = tuple(" ".join(name.split()) for name in _ade20k.split(","))
ADE20K150 = LabelSpace(
    _names,
    color_wheel(150),
    VOID,
    # 0 is "other objects", which is not scored.
    {0: VOID, **{index + 1: index for index in range(150)}},
)

_voc = (
    "background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, "
    "dog, horse, motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"
)
VOC21 = voc_colored(plain_space(tuple(_voc.split(", ")), VOID))

_scenes = "sky, building, road, sidewalk, vegetation, pole, traffic sign, car, person, bicycle"
SCENES = plain_space(
    tuple(_scenes.split(", ")),
    VOID,
    tuple(_cityscapes[name][1] for name in _scenes.split(", ")),
)
