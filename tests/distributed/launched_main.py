"""Mains for launcher tests: `python -m trainer.launch --main tests.distributed.launched_main ... -- WHAT [RANK]`."""

from __future__ import annotations

import os
import signal
import time


def main(arguments: list[str]) -> int:
    import torch
    import torch.distributed as dist

    what = arguments[0]
    victim = int(arguments[1]) if len(arguments) > 1 else 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    print(f"rank {rank} of {dist.get_world_size()} says {what}, pid {os.getpid()}", flush=True)
    if rank == victim:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise ValueError("the seventh token is odd")
        if what == "exit":
            return 7
    if what == "end":
        return 0
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
