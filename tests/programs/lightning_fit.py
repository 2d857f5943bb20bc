"""A Lightning script with a loader that keeps its state.

torchrun lightning_fit.py --steps 100 --save_every 10 --step_seconds 0.2 [--ckpt_path FILE]
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SAMPLES, BATCH = 256, 4
WORLD, LOCAL_WORLD = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])


class Samples(torch.utils.data.Dataset):
    """Samples that follow from their index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


class Sum(lightning.LightningModule):
    """Learns the sum of eight numbers."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.step_seconds, self.layer = step_seconds, torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, prog_bar=True)
        time.sleep(self.step_seconds)
        return loss

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], *_: object) -> None:
        if self.global_rank == 0:
            print(f"\nstep {self.global_step}/{self.trainer.max_steps} loss {outputs['loss'].item():.8f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--save_every", type=int)
    parser.add_argument("--step_seconds", type=float, default=0.0)
    parser.add_argument("--ckpt_path")
    args = parser.parse_args()
    lightning.seed_everything(1)
    sampler = StatefulDistributedSampler(Samples(), num_replicas=WORLD, rank=int(os.environ["RANK"]), seed=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=LOCAL_WORLD,
        num_nodes=WORLD // LOCAL_WORLD,
        strategy="ddp",
        max_steps=args.steps,
        max_epochs=-1,
        use_distributed_sampler=False,
        log_every_n_steps=1,
        callbacks=[TQDMProgressBar(), ModelCheckpoint(every_n_train_steps=args.save_every, save_top_k=-1)],
    )
    loader = StatefulDataLoader(Samples(), batch_size=BATCH, sampler=sampler)
    trainer.fit(Sum(args.step_seconds), loader, ckpt_path=args.ckpt_path)


if __name__ == "__main__":
    main()
