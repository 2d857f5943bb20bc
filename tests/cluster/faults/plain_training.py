"""A small training of torch alone, as a student writes it, with one of the faults that such programs have.

    torchrun ... train.py FAULT [RANK]

Two layers and DDP over gloo. It imports nothing of ours; a copy of it is what the jobs run.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY, WIDTH, LENGTH = 1000, 32, 128


class Tokens(Dataset[torch.Tensor]):
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.meta = {str(place): {"domain": "web"} for place in range(4000) if place != 1777}

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.fault == "worker-keyerror" and place > 1000:
            assert self.meta["1777"]["domain"]
        if self.fault == "worker-killed" and place > 2000:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "worker-decode" and place > 1000:
            json.loads(Path("shard-0007.jsonl").read_text().splitlines()[3])
        if self.fault == "worker-truncated" and place > 1000:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        size = 4_000_000 if self.fault == "shm" else LENGTH
        return torch.randint(0, VOCABULARY, (size,))[: size if self.fault == "shm" else LENGTH]


class Model(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embedding = nn.Embedding(VOCABULARY // 2 if fault == "embedding" else VOCABULARY, WIDTH)
        self.hidden = nn.Linear(WIDTH, 2 * WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH) if fault == "unused" else None
        self.out = nn.Linear(WIDTH if fault == "shapes" else 2 * WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(torch.relu(self.hidden(self.embedding(tokens))))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800.0)
    options = parser.parse_args()
    rank, fault = int(os.environ["RANK"]), options.fault
    mine = fault if options.rank in (-1, rank) else ""
    if mine == "import":
        import flash_attn  # noqa: F401
    if mine == "late":
        time.sleep(3600)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))
    torch.manual_seed(1)
    if rank == 0:
        print(
            f"> world size {dist.get_world_size()}, {sum(p.numel() for p in Model(fault).parameters())} parameters",
            flush=True,
        )
    if mine == "load-missing":
        torch.load("checkpoints/step_2000.pt")
    if mine == "load-corrupt":
        torch.load("broken.pt")
    if mine == "load-safetensors":
        from safetensors.torch import load_file

        load_file("broken.safetensors")
    if mine == "tokenizer":
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained("/scratch/llm/models/bloom-tokenizer-v2", local_files_only=True)
    if mine == "state-dict":
        old = Model("").state_dict() | {"out.weight": torch.zeros(VOCABULARY + 24, 2 * WIDTH)}
        Model("").load_state_dict(old)
    if mine == "config":
        width = json.loads('{"model": {"hidden_size": 32}}')["model"]["num_layers"]
        print(width)
    model = DistributedDataParallel(Model(fault))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    data = Tokens(mine)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=options.workers)
    step = 0
    while step < options.steps:
        for tokens in loader:
            step += 1
            begin = time.monotonic()
            logits = model(tokens[:, :LENGTH])
            loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:LENGTH].reshape(-1))
            if mine == "nan" and step == 40:
                loss = loss * float("nan")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if fault == "nan" and not torch.isfinite(model.module.out.weight).all():
                raise RuntimeError(f"loss is {loss.item()} at step {step}, stopping")
            if step == 30 and mine:
                cause(mine)
            if rank == 0 and step % 10 == 0:
                took = time.monotonic() - begin
                print(
                    f"step {step:6d} | loss {loss.item():.4f} | lr {options.lr:.1e} | {1000 * took:.1f} ms/step",
                    flush=True,
                )
            time.sleep(0.05)
            if step >= options.steps:
                break
    dist.destroy_process_group()


def cause(fault: str) -> None:
    if fault == "keyerror":
        print({"en": 0.5, "fr": 0.5}["de"])
    elif fault == "assert":
        assert torch.ones(4).sum() == 5, "loss mask does not sum to the number of targets"
    elif fault == "segfault":
        ctypes.string_at(0)
    elif fault == "exit":
        sys.exit(7)
    elif fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "alloc":
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        torch.empty(1 << 36).sum()
    elif fault == "memory-error":
        bytearray(1 << 46)
    elif fault == "grow":
        kept = []
        while True:
            kept.append(torch.ones(8 << 20))
    elif fault == "skips-collective":
        time.sleep(3600)
    elif fault == "extra-collective":
        dist.all_reduce(torch.ones(7))
    elif fault == "disk-full":
        torch.save(torch.ones(8 << 20), "checkpoints/step_30.pt")
    elif fault == "save-denied":
        torch.save(torch.ones(8), "checkpoints/step_30.pt")
    elif fault == "files":
        opened = [os.fdopen(os.open("/dev/null", os.O_RDONLY)) for _ in range(1 << 21)]
        print(len(opened))
    elif fault == "recursion":
        cause(fault)
    elif fault == "log-full":
        Path("checkpoints/metrics.jsonl").write_text("x" * (64 << 20))


if __name__ == "__main__":
    main()
