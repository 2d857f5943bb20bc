"""A plain torchrun script: DDP, a checkpoint every few steps, and a save on SIGTERM.

    torchrun plain_ddp.py STEPS SAVE_EVERY SECONDS_PER_STEP [hook | single]

With "single" it writes each checkpoint over the one before, as nanoGPT does. It resumes from the file that
OPSCTL_CHECKPOINT names. Each step's data follows from its number.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HOOKED, SINGLE = (sys.argv[4:] == [word] for word in ("hook", "single"))
if HOOKED:
    from opsctl_hook import saved, should_stop

FOLDER = Path("saved")


def main() -> None:
    steps, save_every, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    asked: list[int] = []
    if not HOOKED:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = 0
    if checkpoint := os.environ.get("OPSCTL_CHECKPOINT"):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]

    def save(step: int) -> None:
        if rank == 0:
            FOLDER.mkdir(exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, FOLDER / ("ckpt.pt" if SINGLE else "unfinished"))
            if not SINGLE:
                (FOLDER / "unfinished").rename(FOLDER / f"step-{step}.pt")
        dist.barrier()

    for step in range(done + 1, steps + 1):
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}/{steps} loss {mean.item() / world:.8f}", flush=True)
        time.sleep(seconds)
        leaves = torch.tensor(int(should_stop()) if HOOKED else len(asked))
        dist.all_reduce(leaves)
        if leaves or step % save_every == 0 or step == steps:
            save(step)
        if leaves:
            if HOOKED:
                saved()
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
