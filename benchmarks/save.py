"""Measure how long a save stalls the training, synchronous and asynchronous, and the training's speed meanwhile.

A GPT of 30 million parameters in fp32 with AdamW, one process, a file system of this machine's own. The training has
one thread, so that a core is left for the writing, as beside a GPU. Saves take turns, each followed by plain steps;
ratios are of medians over turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 8, 512, 8, 128, 8192, 2
ROUNDS = 6
PLAIN_STEPS = 4
TARGET_STALL = 0.20


def main() -> dict[str, Any]:
    """Measure, print a table, and return the numbers by name for a JSON file."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from trainer.core.preload import import_engine

    import_engine()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return _report(*_turns(Path(folder)))


def _turns(folder: Path) -> tuple[list[float], list[float], list[float], list[float], int]:
    """Milliseconds of saves at once, of stalls and writes of those beside, ratios of speed, bytes of a save."""
    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.save import begin_save, save_checkpoint
    from trainer.core.files import HeldFolder
    from trainer.engine.snapshot import HostCopies

    engine, step = _training()
    destination, copies = Destination(HeldFolder(folder)), HostCopies()
    at_once, stalls, writes, speeds = [], [], [], []
    size, iteration = 0, 0
    for turn in range(ROUNDS + 1):  # the first one takes what memory all later ones use again
        iteration += 1
        at_once.append(save_checkpoint(engine, destination, _manifest(iteration), {}).stall)
        size = sum(path.stat().st_size for path in folder.glob(f"global_step{iteration}/*"))
        before = [_seconds(step) for _ in range(PLAIN_STEPS)]
        iteration += 1
        save = begin_save(engine, destination, _manifest(iteration), {}, copies)
        while_writing = [_seconds(step)]
        while not save.is_written():
            while_writing.append(_seconds(step))
        took = save.publish()
        after = [_seconds(step) for _ in range(PLAIN_STEPS)]
        stalls.append(took.stall)
        writes.append(took.background or 0.0)
        speeds.append(statistics.median(before + after) / statistics.mean(while_writing))
        print(
            f"turn {turn}: at once {at_once[-1]:.0f} ms; beside: stall {stalls[-1]:.0f} ms, {writes[-1]:.0f} ms of "
            f"writing in {len(while_writing)} steps at {speeds[-1]:.2f} of their speed",
            flush=True,
        )
        for old in folder.glob("global_step*"):
            if old.name != f"global_step{iteration}":
                shutil.rmtree(old)
    return at_once[1:], stalls[1:], writes[1:], speeds[1:], size


def _report(
    at_once: list[float], stalls: list[float], writes: list[float], speeds: list[float], size: int
) -> dict[str, Any]:
    ratio = statistics.median(stalls) / statistics.median(at_once)
    speed = statistics.median(speeds)
    print(f"a save of {size / 1e6:.0f} MB, at once: {statistics.median(at_once):.0f} ms without a step")
    print(f"beside the training: {statistics.median(stalls):.0f} ms, ratio {ratio:.3f} (goal <= {TARGET_STALL})")
    print(f"speed of the training while it is written: {speed:.2f} of that without")
    return {
        "bytes": size,
        "at_once_ms": at_once,
        "stall_ms": stalls,
        "background_ms": writes,
        "stall_ratio": ratio,
        "target_stall_ratio": TARGET_STALL,
        "speed_ratios": speeds,
        "speed_ratio": speed,
    }


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _manifest(iteration: int) -> Any:
    from trainer.formats.checkpoint.history import Progress
    from trainer.formats.checkpoint.manifest import Manifest

    counters = {**Progress.none().counters(), "iteration": iteration}
    return Manifest(**counters, precision="fp32", layout={}, model={}, learning_rate={}, files={})


def _training() -> tuple[Any, Callable[[], None]]:
    """An engine, and what takes a step of it on random samples."""
    import torch

    from trainer.engine.build import Vocabulary, build_engine, initialize, train_step
    from trainer.model.pipeline import engine_item
    from trainer.recipe.options import parse, to_arguments

    shape = {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": SEQUENCE}
    dropout = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    training = {"micro_batch_size": BATCH, "lr": 3e-4, "train_iters": 10_000, "vocab_size": VOCABULARY}
    options = parse(to_arguments({**shape, **dropout, **training, "position_embedding_type": "alibi"}), 1)
    engine = build_engine(options, initialize(options), Vocabulary.unpadded(VOCABULARY))
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        train_step(engine, iter([engine_item(tokens)]), options.lr)

    step()
    return engine, step


if __name__ == "__main__":
    main()
