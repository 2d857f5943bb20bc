"""Lightning: one `.ckpt` file for each checkpoint, and a bar that counts the batches of an epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import Kind, Progress, SavedCheckpoint
from opsctl.run.programs.saved_files import number_after, pickle_in_zip, torn_zip

_BAR = re.compile(
    r"Epoch (?P<epoch>\d{1,9}):\s+\d{1,3}%\|.*?\| (?P<done>\d{1,18})/(?P<total>\d{1,18}) "
    r"\[.*?(?P<rate>[\d.]+)it/s(?P<rest>[^\]]*)\]"
)
_LOSS = re.compile(r"\b(?:train_)?loss=(?P<loss>[-+\d.e]+|nan|inf)")
_STEP = re.compile(r"step=(\d{1,18})")


def _progress(line: str) -> Progress | None:
    bars = list(_BAR.finditer(line))
    if not bars:
        return None
    bar = bars[-1]
    loss, rate = _LOSS.search(bar["rest"]), float(bar["rate"])
    return Progress(
        iteration=int(bar["epoch"]) * int(bar["total"]) + int(bar["done"]),
        loss=float(loss["loss"]) if loss else None,
        seconds_per_iteration=1 / rate if rate else None,
    )


def _judge(path: Path) -> SavedCheckpoint | None:
    if path.suffix != ".ckpt":
        return None
    if path.is_dir():  # sharded: torch's distributed checkpoint
        step = _STEP.search(path.name)
        problem = None if (path / ".metadata").is_file() else "its save was interrupted (no .metadata)"
        return SavedCheckpoint(int(step[1]), path, problem) if step else None
    if problem := torn_zip(path):
        step = _STEP.search(path.name)
        return SavedCheckpoint(int(step[1]) if step else 0, path, problem)
    step_inside = number_after(pickle_in_zip(path), "global_step")
    return None if step_inside is None else SavedCheckpoint(step_inside, path)


def _resume(checkpoint: Path) -> Sequence[str]:
    return ("--ckpt_path", str(checkpoint))


KIND = Kind(
    name="lightning",
    launch="torchrun",  # under torchrun Lightning does not requeue jobs by itself
    saves_on=None,
    checkpoints="lightning_logs/version_*/checkpoints/*.ckpt",
    progress=_progress,
    judge=_judge,
    resume=_resume,
    counts="batches",
    lacks=(
        "It does not save when it is stopped, unless the script uses opsctl_hook or ModelCheckpoint("
        "save_on_exception=True): the work since the last checkpoint is lost at each stop.",
        "A resume within an epoch continues at the right step but shuffles the data again, unless the loader "
        "keeps its state.",
    ),
)
