"""Training with SMP and Lightning, arranged like SMP's CamVid example.

As there: albumentations, no loader processes, mean and std as buffers of the module, a class
prediction by softmax and argmax and SMP's ``get_stats`` at every training step, kept until the
epoch ends; Adam 2e-4 with a cosine schedule stepped every iteration; the Trainer's defaults
(logger, checkpoints, progress bar, model summary) with ``log_every_n_steps=1``. The loss is
cross-entropy, as for all in this race (the example's Dice loss costs more).
"""

from __future__ import annotations

import lightning.pytorch as pl
import segmentation_models_pytorch as smp
import torch
from common import IGNORE, MEAN, STD, Marks, arguments, smp_model, workers
from cv_data import Pictures
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Segmenter(pl.LightningModule):
    def __init__(self, net: torch.nn.Module, classes: int, steps: int) -> None:
        super().__init__()
        self.net, self.classes, self.steps = net, classes, steps
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1) * 255)
        self.stats: list[dict[str, torch.Tensor]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net((images - self.mean) / self.std)

    def training_step(
        self, batch: tuple[torch.Tensor, torch.Tensor], index: int
    ) -> dict[str, torch.Tensor]:
        images, masks = batch
        logits = self(images)
        loss = cross_entropy(logits, masks, ignore_index=IGNORE)
        classes = logits.softmax(dim=1).argmax(dim=1)
        counts = smp.metrics.get_stats(
            classes, masks, mode="multiclass", num_classes=self.classes, ignore_index=IGNORE
        )
        result = {"loss": loss, **dict(zip(("tp", "fp", "fn", "tn"), counts))}
        self.stats.append(result)
        return result

    def on_train_epoch_end(self) -> None:
        tp, fp, fn, tn = (
            torch.cat([item[name] for item in self.stats]) for name in ("tp", "fp", "fn", "tn")
        )
        self.log(
            "train_iou", smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro"), prog_bar=True
        )
        self.stats.clear()

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=self.steps, eta_min=1e-5
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 1},
        }


class MarkSteps(pl.Callback):
    def __init__(self, mark: Marks) -> None:
        self.mark = mark

    def on_train_batch_end(self, *_: object) -> None:
        self.mark()


def main() -> None:
    args = arguments()
    loader = DataLoader(
        Pictures(args.data, args.crop, normalize=False),
        args.local_batch,
        shuffle=True,
        num_workers=workers(args, 0),
    )
    several = {"devices": args.world, "strategy": "ddp"} if args.world > 1 else {}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        log_every_n_steps=1,
        callbacks=[MarkSteps(Marks(args))],
        **several,
    )
    trainer.fit(Segmenter(smp_model(args), args.classes, 1000), train_dataloaders=loader)


if __name__ == "__main__":
    main()
