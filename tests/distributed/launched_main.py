"""Mains for launcher tests: `python -m trainer.launch --main tests.distributed.launched_main ... -- WHAT [RANK]`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    import torch
    import torch.distributed as dist

    what = arguments[0]
    victim = int(arguments[1]) if arguments[1:] and arguments[1].isdecimal() else 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    print(f"rank {rank} of {dist.get_world_size()} says {what}, pid {os.getpid()}", flush=True)
    if rank == victim:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise ValueError("odd token")
        if what == "give up":
            raise SystemExit("too much padding")
        if what == "exit":
            return 7
    if what == "end":
        return 0
    if what == "end after":  # rank 0 goes with its launcher, the others end well when the file is there
        dist.destroy_process_group()
        if rank:
            print(f"rank {rank} of 2 waits", flush=True)
        while not rank or not Path(arguments[1]).exists():
            time.sleep(0.02)
        return 0
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
