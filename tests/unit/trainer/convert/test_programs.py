"""The conversion programs: memory and signals."""

from __future__ import annotations

import signal
import subprocess
import sys

from trainer.convert.workers import run_program

ONE_AFTER_ANOTHER = """
import random
import torch
from trainer.convert.workers import run_program

def resident_mib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1024

def work():
    draw, kept = random.Random(0), []
    before, most = resident_mib(), 0.0
    for _ in range(12):
        for mib in (3, 12, 1, 4, 16, 16):
            tensor = torch.ones(mib << 18)
            kept.append(torch.ones(draw.randrange(1, 9000)))
            most = max(most, resident_mib() - before)
            del tensor
    print(most)

raise SystemExit(run_program(work))
"""


def test_tensors_one_after_the_other_take_the_memory_of_the_largest() -> None:
    """And of what is kept meanwhile, some 2 MiB. Without its own care glibc's heap grows to several times that."""
    done = subprocess.run([sys.executable, "-c", ONE_AFTER_ANOTHER], capture_output=True, text=True, check=True)
    assert 16 <= float(done.stdout) < 24


def test_a_signal_means_to_whoever_runs_a_program_what_it_meant_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_program(lambda: None) == 0
    assert signal.getsignal(signal.SIGTERM) is before
