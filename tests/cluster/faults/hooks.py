"""A group's own module that the ranks load: it looks at every micro-batch, and has one of the faults of such code.

`SITE_FAULT=NAME:RANK` chooses it; it comes with that rank's 45th micro-batch. Written into a run's `hooks` folder as
`token_filter.py`, with a `sitecustomize.py` that loads it into launchers only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import torch

from trainer.loop.batches import EngineItems
from trainer.model.pipeline import EngineItem

AT = 45
LANGUAGES = {0: "en", 1: "fr"}
seen = 0
read_next = EngineItems.__next__


def language_of(item: object) -> str:
    return LANGUAGES[7]


def keyerror(item: object) -> None:
    language_of(item)


def segfault(item: object) -> None:
    ctypes.string_at(0)


def abort(item: object) -> None:
    os.abort()


def out_of_memory(item: object) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), mapped + (1 << 30)))
    kept = []
    while True:
        kept.append(np.ones(1 << 28, np.uint8))


def torch_out_of_memory(item: object) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    torch.empty(1 << 36).sum()


def stuck(item: object) -> None:
    while True:  # waits for a word that never comes
        time.sleep(1)


def bad_shape(item: object) -> None:
    weights = torch.ones(16, 32)
    (weights @ torch.ones(16, 4)).sum()


def index_error(item: object) -> None:
    torch.nn.functional.embedding(torch.tensor([300, 512]), torch.ones(300, 4))


def division(item: object) -> None:
    print(sum(LANGUAGES) / (len(LANGUAGES) - 2))


def exits(item: object) -> None:
    raise SystemExit("token_filter: more than 5 % of this batch is padding, giving up")


def grow(item: object) -> None:
    kept = []
    while True:
        kept.append(torch.ones(8 << 20))
        time.sleep(0.01)


def bus_error(item: object) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def looked_at(items: EngineItems) -> EngineItem:
    global seen
    item = read_next(items)
    seen += 1
    name, rank = os.environ["SITE_FAULT"].split(":")
    if seen == AT and rank in ("all", os.environ["RANK"]):
        globals()[name](item)
    return item


EngineItems.__next__ = looked_at  # type: ignore[method-assign, assignment]
