"""Training with Composer's Trainer at its defaults.

DecoupledSGDW, MIoU and cross-entropy metrics during training (which its segmentation model logged),
and a PIL input pipeline with 8 loader processes (at most one per core).
"""

from __future__ import annotations

import torch
from common import IGNORE, Marks, arguments, smp_model, workers
from composer import Callback, ComposerModel, Trainer
from composer.metrics import CrossEntropy, MIoU
from composer.optim import DecoupledSGDW
from composer.utils import dist
from pil_data import Pictures
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Segmenter(ComposerModel):
    def __init__(self, net: torch.nn.Module, classes: int) -> None:
        super().__init__()
        self.net = net
        self.metrics = {"MIoU": MIoU(classes, IGNORE), "CrossEntropy": CrossEntropy(IGNORE)}

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.net(batch[0])

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(outputs, batch[1], ignore_index=IGNORE)

    def get_metrics(self, is_train: bool) -> dict:
        return self.metrics

    def update_metric(self, batch, outputs, metric) -> None:
        metric.update(outputs, batch[1])


class MarkSteps(Callback):
    def __init__(self, mark: Marks) -> None:
        self.mark = mark

    def batch_end(self, *_: object) -> None:
        self.mark()


def main() -> None:
    args = arguments()
    data = Pictures(args.data, args.crop)
    if args.world > 1:
        dist.initialize_dist("cpu")
    loader = DataLoader(
        data,
        args.local_batch,
        sampler=dist.get_sampler(data, shuffle=True, drop_last=True),
        num_workers=workers(args, 8),
        drop_last=True,
    )
    model = Segmenter(smp_model(args), args.classes)
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        max_duration=f"{args.steps}ba",
        optimizers=DecoupledSGDW(model.parameters(), lr=0.01, momentum=0.9, weight_decay=2e-5),
        device="cpu",
        callbacks=[MarkSteps(Marks(args))],
    )
    trainer.fit()


if __name__ == "__main__":
    main()
