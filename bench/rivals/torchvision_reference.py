"""Training as torchvision's segmentation reference does it.

Those scripts are in torchvision's repository and in no package, so their documented structure is
rebuilt here in own words: a model that answers with a dict of outputs, cross-entropy summed over it
with ignore index 255, SGD (lr 0.02, momentum 0.9, weight decay 1e-4), a polynomial schedule stepped
every iteration, a logger that takes ``loss.item()`` and the learning rate each step and prints
every tenth, 16 loader processes (bounded by the cores), batches padded to a common size.
SyncBatchNorm, which the scripts switch on with several ranks, has no CPU kernel and is left out.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque

import torch
from common import IGNORE, Marks, arguments, smp_model, workers
from pil_data import Pictures
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler


class Named(torch.nn.Module):
    """torchvision's segmentation models answer with ``{"out": logits}``."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.net(images)}


class Meter:
    """Running means over the last 20 values; prints every ``every`` steps."""

    def __init__(self, every: int = 10) -> None:
        self.values: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=20))
        self.every, self.count, self.last = every, 0, time.time()

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values[name].append(value)
        self.values["time"].append(time.time() - self.last)
        self.last = time.time()
        if self.count % self.every == 0:
            print(
                "  ".join(f"{name}: {sum(v) / len(v):.4f}" for name, v in self.values.items()),
                flush=True,
            )
        self.count += 1


def padded(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack pictures of possibly different sizes: zeros fill images, 255 fills masks."""
    height, width = (max(image.shape[axis] for image, _ in batch) for axis in (1, 2))
    images = batch[0][0].new_zeros(len(batch), 3, height, width)
    masks = batch[0][1].new_full((len(batch), height, width), IGNORE)
    for index, (image, mask) in enumerate(batch):
        images[index, :, : image.shape[1], : image.shape[2]] = image
        masks[index, : mask.shape[0], : mask.shape[1]] = mask
    return images, masks


def loss_of(outputs: dict[str, torch.Tensor], masks: torch.Tensor) -> torch.Tensor:
    losses = {
        name: cross_entropy(logits, masks, ignore_index=IGNORE) for name, logits in outputs.items()
    }
    return losses["out"] + 0.5 * losses["aux"] if "aux" in losses else losses["out"]


def main() -> None:
    args = arguments()
    data, model = Pictures(args.data, args.crop), Named(smp_model(args))
    sampler = RandomSampler(data)
    if args.world > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(
        data,
        args.local_batch,
        sampler=sampler,
        num_workers=workers(args, 16),
        collate_fn=padded,
        drop_last=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(
        optimizer, total_iters=30 * len(loader), power=0.9
    )
    meter, mark = Meter(), Marks(args)
    model.train()
    while True:
        for images, masks in loader:
            loss = loss_of(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            meter.add(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
            mark()
            if mark.step == args.steps:
                return


if __name__ == "__main__":
    main()
