"""mmsegmentation's pipeline of transforms with torch's DataLoader, without its data preprocessor, which normalizes on the device.

PhotoMetricDistortion stands for the color jitter, as in its configs. The whole of mmcv is not needed for transforms:
its compiled part, which importing mmseg's data sets asks for, is replaced by an empty module.
"""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

import torch
from common import FLIP, IGNORE, SCALE, arguments, draw_scale, many_pairs
from measure import measure
from torch.utils.data import DataLoader, Dataset


class _Nothing(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.modules["mmcv.ops"] = _Nothing("mmcv.ops")

from mmcv.transforms import Compose, LoadImageFromFile, RandomFlip, RandomResize  # noqa: E402
from mmengine.dataset import pseudo_collate  # noqa: E402
from mmseg.datasets.transforms import LoadAnnotations, PackSegInputs, PhotoMetricDistortion, RandomCrop  # noqa: E402


class LogUniformResize(RandomResize):
    """RandomResize itself draws uniformly."""

    @staticmethod
    def _random_sample_ratio(scale: tuple, ratio_range: tuple[float, float]) -> tuple:
        factor = draw_scale(random.random(), uniform=False)
        return int(scale[0] * factor), int(scale[1] * factor)


class Pictures(Dataset):
    """Item: mmseg's dict with ``inputs`` uint8 (3, h, w) BGR and ``data_samples`` with the mask int64 (1, h, w)."""

    def __init__(self, pairs: list[tuple[str, str]], pipeline: Compose) -> None:
        self.pairs, self.pipeline = pairs, pipeline

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, mask = self.pairs[index]
        return self.pipeline(
            {"img_path": image, "seg_map_path": mask, "seg_fields": [], "reduce_zero_label": False, "label_map": None}
        )


def main() -> None:
    args = arguments()
    import cv2

    height, width = cv2.imread(many_pairs(args)[0][0]).shape[:2]
    resize = RandomResize if args.uniform else LogUniformResize
    pipeline = Compose(
        [
            LoadImageFromFile(),
            LoadAnnotations(),
            resize(scale=(width, height), ratio_range=SCALE, keep_ratio=True),
            RandomCrop(crop_size=tuple(args.crop), ignore_index=IGNORE),
            RandomFlip(prob=FLIP),
            PhotoMetricDistortion(),
            PackSegInputs(),
        ]
    )

    def look(batch: dict[str, Any]) -> tuple[Any, Any]:
        # A scaled image below the crop's size stays so until the preprocessor pads it, with 0 and 255.
        def padded(picture: torch.Tensor, value: int) -> torch.Tensor:
            down, right = args.crop[0] - picture.shape[-2], args.crop[1] - picture.shape[-1]
            return torch.nn.functional.pad(picture, (0, right, 0, down), value=value)

        images = torch.stack([padded(image, 0)[[2, 1, 0]] for image in batch["inputs"]])
        return images, torch.stack([padded(s.gt_sem_seg.data[0], IGNORE) for s in batch["data_samples"]])

    loader = DataLoader(
        Pictures(many_pairs(args), pipeline), args.batch, shuffle=True, num_workers=args.workers, drop_last=True,
        persistent_workers=args.workers > 0, collate_fn=pseudo_collate,
    )  # fmt: skip
    measure(args, loader, look)


if __name__ == "__main__":
    main()
