"""Training with Hugging Face's Trainer at the defaults of its TrainingArguments.

Fused AdamW, clipping at 1.0, loading in the main process, progress bar; albumentations as in its
segmentation example; the SMP network behind its model protocol.
"""

from __future__ import annotations

import torch
from common import IGNORE, Marks, arguments, smp_model, workers
from cv_data import Pictures
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments


class Wrapped(torch.nn.Module):
    """Takes and gives what Trainer expects: keyword inputs, a dict with ``loss`` and ``logits``."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(pixel_values)
        return {"loss": cross_entropy(logits, labels, ignore_index=IGNORE), "logits": logits}


class Named(Pictures):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, mask = super().__getitem__(index)
        return {"pixel_values": image, "labels": mask}


class MarkSteps(TrainerCallback):
    def __init__(self, mark: Marks) -> None:
        self.mark = mark

    def on_step_end(self, *_: object, **__: object) -> None:
        self.mark()


def main() -> None:
    args = arguments()
    settings = TrainingArguments(
        "trainer_output",
        use_cpu=True,
        per_device_train_batch_size=args.local_batch,
        max_steps=args.steps,
        dataloader_num_workers=workers(args, 0),
        **({"ddp_backend": "gloo"} if args.world > 1 else {}),
    )
    trainer = Trainer(
        Wrapped(smp_model(args)),
        settings,
        train_dataset=Named(args.data, args.crop, normalize=True),
        callbacks=[MarkSteps(Marks(args))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
