"""To DeepSpeed's universal format, beside DeepSpeed's own conversion on the same state: equal bits, time, memory."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.looks import met

#: TP2 x PP2 x DP2, bf16: 92 million parameters, 1.4 GB of states; the largest parameter is the embedding.
MODEL: dict[str, Any] = {
    "num_layers": 24,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "seq_length": 128,
    "vocab_size": 32_700,
    "position_embedding_type": "alibi",
    "bf16": True,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
}
DATA_RANKS = 2
ROUNDS = 2
GOAL = 3.0
#: One state of the largest parameter in each worker, and as much for buffers, files opened and the allocator.
MEMORY_GOAL, AROUND_BYTES = 1.0, 24 << 20
POLL_S = 0.004

# What each does once everything is imported.
_OURS = """
import sys, time
from pathlib import Path
from trainer.core.preload import set_process_defaults
set_process_defaults(2)
from trainer.convert.conversion import to_universal
from trainer.convert.sources import open_source
from trainer.convert.workers import default_workers
begun = time.monotonic()
to_universal(open_source(Path(sys.argv[1])), Path(sys.argv[2]), default_workers())
print(time.monotonic() - begun)
"""
_THEIRS = """
import argparse, sys, time
from deepspeed.checkpoint import ds_to_universal
begun = time.monotonic()
ds_to_universal.main(argparse.Namespace(input_folder=sys.argv[1], output_folder=sys.argv[2], num_extract_workers=4,
    num_merge_workers=2, keep_temp_folder=False, strict=True, inject_missing_state=False))
print(time.monotonic() - begun)
"""


@dataclass(frozen=True)
class Conversion:
    """One conversion: from the process' start to its end, of that without importing, and what a worker took at most."""

    whole_s: float
    work_s: float
    worker_bytes: int


def main() -> dict[str, Any]:
    """Measure, print and return all of it."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        return _measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path) -> dict[str, Any]:
    from tests.made_checkpoint import bytes_of_largest_state, make_checkpoint
    from trainer.formats.checkpoint.manifest import read_manifest

    native = make_checkpoint(folder / "native", data=DATA_RANKS, **MODEL)
    state_bytes = sum(path.stat().st_size for path in native.glob("*optim_states.pt"))
    ours, theirs = [], []
    for number in range(ROUNDS):
        theirs.append(_converted(_THEIRS, native, folder / f"theirs{number}" / "universal"))
        ours.append(_converted(_OURS, native, folder / f"ours{number}" / "universal"))
        if number:
            shutil.rmtree(folder / f"theirs{number}")
            shutil.rmtree(folder / f"ours{number}")
    different = _different(folder / "ours0" / "universal", folder / "theirs0" / "universal")
    largest = bytes_of_largest_state(read_manifest(native))
    result: dict[str, Any] = {"state_bytes": state_bytes, "files_that_differ": len(different)}
    print(f"{state_bytes / 1e6:.0f} MB of states, TP2 x PP2 x DP2: {len(different)} files differ: {met(not different)}")
    for name, what in (("work_s", "without imports"), ("whole_s", "as a command, with imports")):
        mine, other = (statistics.median(getattr(one, name) for one in all_) for all_ in (ours, theirs))
        ratio = other / mine
        print(
            f"to universal, {what}: {mine:.2f} s, ds_to_universal {other:.2f} s: {ratio:.1f}x"
            f" of the goal of >= {GOAL:.0f}x: {met(ratio >= GOAL)}"
        )
        result[name] = {"ours": mine, "ds_to_universal": other, "ratio": ratio}
    mine, other = (max(one.worker_bytes for one in all_) for all_ in (ours, theirs))
    limit = MEMORY_GOAL * largest + AROUND_BYTES
    print(
        f"memory that a worker adds at most: {mine / 1e6:.0f} MB, ds_to_universal {other / 1e6:.0f} MB; one state of"
        f" the largest parameter is {largest / 1e6:.0f} MB,"
        f" the goal that and {AROUND_BYTES >> 20} MiB: {met(mine <= limit)}"
    )
    return result | {"worker_bytes": mine, "ds_worker_bytes": other, "largest_state_bytes": largest}


def _converted(code: str, native: Path, target: Path) -> Conversion:
    """Convert in a process of its own, watching the processes that it forks."""
    target.parent.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    begun = time.monotonic()
    words = [sys.executable, "-c", code, str(native), str(target)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        first: dict[int, int] = {}
        most: dict[int, int] = {}
        while process.poll() is None:
            for worker in _children(process.pid):
                resident, peak = _resident(worker)
                first.setdefault(worker, resident)
                most[worker] = max(peak, most.get(worker, 0))
            time.sleep(POLL_S)
        whole_s = time.monotonic() - begun
        output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors[-2000:])
    added = max((most[worker] - first[worker] for worker in most), default=0)
    return Conversion(whole_s, float(output.split()[-1]), added)


def _children(parent: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _resident(process: int) -> tuple[int, int]:
    """(bytes resident now, the most there ever were)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return int(found.get("VmRSS", 0)) * 1024, int(found.get("VmHWM", 0)) * 1024


def _different(one: Path, other: Path) -> list[str]:
    """Files of tensors that are not in both with the same keys, shapes, types and bits."""
    import torch

    names = [{str(path.relative_to(folder)) for path in folder.glob("zero/*/*.pt")} for folder in (one, other)]
    found = sorted(names[0] ^ names[1])
    for name in sorted(names[0] & names[1]):
        mine, theirs = (torch.load(folder / name, weights_only=True) for folder in (one, other))
        mine, theirs = (value if isinstance(value, dict) else {"": value} for value in (mine, theirs))
        if list(mine) != list(theirs) or not all(_same(mine[key], theirs[key]) for key in mine):
            found.append(name)
    return found


def _same(one: Any, other: Any) -> bool:
    import torch

    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    bits = [value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
