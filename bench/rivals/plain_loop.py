"""Training without a trainer: a DataLoader, cross-entropy, AdamW, and nothing else in the loop."""

from __future__ import annotations

import torch
from common import IGNORE, Marks, arguments, smp_model, workers
from pil_data import Pictures
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    args = arguments()
    model, data, sampler = smp_model(args), Pictures(args.data, args.crop), None
    if args.world > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(
        data, args.local_batch, shuffle=sampler is None, sampler=sampler, num_workers=workers(args, 2), drop_last=True
    )
    optimizer, mark = torch.optim.AdamW(model.parameters(), lr=1e-3), Marks(args)
    while True:
        for images, masks in loader:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(images), masks, ignore_index=IGNORE).backward()
            optimizer.step()
            mark()
            if mark.step == args.steps:
                return


if __name__ == "__main__":
    main()
