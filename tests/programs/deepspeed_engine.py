"""A script with DeepSpeed's engine: ZeRO stage 1, a checkpoint every few steps, no signal handled.

    torchrun deepspeed_engine.py STEPS SAVE_EVERY SECONDS_PER_STEP

It resumes from the folder that OPSCTL_CHECKPOINT names. Each step's data follows from its number.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main() -> None:
    steps, save_every, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    rank, world = dist.get_rank(), dist.get_world_size()
    if checkpoint := os.environ.get("OPSCTL_CHECKPOINT"):
        engine.load_checkpoint("saved", tag=Path(checkpoint).name)
    for step in range(engine.global_steps + 1, steps + 1):
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (engine(data) - data.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}/{steps} loss {mean.item() / world:.8f}", flush=True)
        time.sleep(seconds)
        if step % save_every == 0 or step == steps:
            engine.save_checkpoint("saved", tag=f"global_step{step}")


if __name__ == "__main__":
    main()
