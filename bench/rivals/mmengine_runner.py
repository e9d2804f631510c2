"""Training with mmengine's Runner, in an iteration-based loop as mmsegmentation configures it.

SGD 0.01, poly schedule per step, log every 50 steps, 4 loader processes (at most one per core),
mmcv's transforms, and the SMP network as a BaseModel. The Runner cannot start several ranks on a
machine without CUDA (it selects a GPU while it makes the process group), so the group is made
before, with gloo.
"""

from __future__ import annotations

import numpy as np
import torch
from common import IGNORE, MEAN, STD, Marks, arguments, pairs, smp_model, workers
from mmcv.transforms import BaseTransform, Compose, LoadAnnotations, LoadImageFromFile, RandomFlip
from mmengine.hooks import Hook
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.runner import Runner
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset


class RandomCrop(BaseTransform):
    """mmcv has none: a random window of image and mask."""

    def __init__(self, crop: int) -> None:
        self.crop = crop

    def transform(self, results: dict) -> dict:
        height, width = results["img"].shape[:2]
        top = np.random.randint(0, height - self.crop + 1)
        left = np.random.randint(0, width - self.crop + 1)
        window = slice(top, top + self.crop), slice(left, left + self.crop)
        results["img"], results["gt_seg_map"] = (
            results["img"][window],
            results["gt_seg_map"][window],
        )
        return results


class Pictures(Dataset):
    """Item: ``inputs`` uint8 (3, crop, crop) BGR, ``data_samples`` mask int64 (crop, crop)."""

    def __init__(self, root: str, crop: int) -> None:
        self.pairs = pairs(root)
        self.pipeline = Compose(
            [
                LoadImageFromFile(),
                LoadAnnotations(with_bbox=False, with_label=False, with_seg=True),
                RandomCrop(crop),
                RandomFlip(prob=0.5),
            ]
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, mask = self.pairs[index]
        results = self.pipeline({"img_path": image, "seg_map_path": mask, "seg_fields": []})
        pixels = np.ascontiguousarray(results["img"].transpose(2, 0, 1))
        labels = np.ascontiguousarray(results["gt_seg_map"]).astype(np.int64)
        return {"inputs": torch.from_numpy(pixels), "data_samples": torch.from_numpy(labels)}


class Segmenter(BaseModel):
    def __init__(self, net: torch.nn.Module) -> None:
        mean, std = ([255 * value for value in values] for values in (MEAN, STD))
        super().__init__(data_preprocessor=ImgDataPreprocessor(mean=mean, std=std, bgr_to_rgb=True))
        self.net = net

    def forward(self, inputs: torch.Tensor, data_samples: list[torch.Tensor], mode: str = "tensor"):
        logits = self.net(inputs)
        if mode == "loss":
            return {
                "loss_ce": cross_entropy(logits, torch.stack(data_samples), ignore_index=IGNORE)
            }
        return logits


class MarkSteps(Hook):
    priority = "LOWEST"

    def __init__(self, mark: Marks) -> None:
        self.mark = mark

    def after_train_iter(self, *_: object, **__: object) -> None:
        self.mark()


def main() -> None:
    args = arguments()
    several = {}
    if args.world > 1:
        torch.distributed.init_process_group("gloo")
        # The wrapper that it makes by default, without the GPU number it would add.
        wrapper = {
            "type": "MMDistributedDataParallel",
            "device_ids": None,
            "broadcast_buffers": False,
        }
        several = {"launcher": "pytorch", "cfg": {"model_wrapper_cfg": wrapper}}
    count = workers(args, 4)
    runner = Runner(
        model=Segmenter(smp_model(args)),
        work_dir="work_dir",
        train_dataloader={
            "batch_size": args.local_batch,
            "num_workers": count,
            "persistent_workers": count > 0,
            "sampler": {"type": "InfiniteSampler", "shuffle": True},
            "dataset": Pictures(args.data, args.crop),
        },
        train_cfg={"by_epoch": False, "max_iters": args.steps, "val_interval": 4000},
        optim_wrapper={
            "optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
        },
        param_scheduler={
            "type": "PolyLR",
            "eta_min": 1e-4,
            "power": 0.9,
            "begin": 0,
            "end": 40000,
            "by_epoch": False,
        },
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": 50, "log_metric_by_epoch": False},
            "checkpoint": {"type": "CheckpointHook", "by_epoch": False, "interval": 4000},
        },
        custom_hooks=[MarkSteps(Marks(args))],
        **several,
    )
    runner.train()


if __name__ == "__main__":
    main()
