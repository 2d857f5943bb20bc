"""Any other program, described by the table `[program]` alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import Kind, Progress, SavedCheckpoint, no_progress
from opsctl.run.programs.saved_files import number_after, pickle_in_zip, torn_safetensors, torn_zip

#: The last number in a name is its iteration.
_NUMBER = re.compile(r"(\d{1,18})(?!.*\d)")
#: Files of torch.save, and the names of the step inside a single one.
_ZIPS = (".pt", ".pth", ".ckpt")
_STEP_NAMES = ("iter_num", "global_step", "iteration", "step")


def kind_of(
    stop: str | None, complete: Sequence[str], progress: str | None, resume: Sequence[str], is_single: bool = False
) -> Kind:
    """Return the kind that the values of `[program]` describe.

    progress: a pattern with named groups. is_single: the program has one checkpoint, which it writes over.
    """
    pattern = re.compile(progress) if progress else None

    def _progress(line: str) -> Progress | None:
        match = pattern.search(line) if pattern else None
        values = {name: value for name, value in match.groupdict().items() if value} if match else {}
        if not values:
            return None
        try:
            return Progress(
                iteration=int(values["iteration"]) if "iteration" in values else None,
                total_iterations=int(values["total"]) if "total" in values else None,
                loss=float(values["loss"]) if "loss" in values else None,
                learning_rate=float(values["learning_rate"]) if "learning_rate" in values else None,
                grad_norm=float(values["grad_norm"]) if "grad_norm" in values else None,
                seconds_per_iteration=float(values["seconds"]) if "seconds" in values else None,
            )
        except ValueError:
            return None

    def _judge(path: Path) -> SavedCheckpoint | None:
        if is_single and path.is_file():
            return _single_file(path)
        number = _NUMBER.search(path.stem if path.is_file() else path.name)
        return SavedCheckpoint(int(number[1]), path, _problem(path, complete)) if number else None

    def _resume(checkpoint: Path) -> Sequence[str]:
        return [word.replace("{checkpoint}", str(checkpoint)) for word in resume]

    lacks = [] if progress else ["[program] progress is not set: no progress is shown."]
    reads = _progress if pattern else no_progress
    return Kind("command", "torchrun", stop, None, reads, _judge, _resume, takes_torn=True, lacks=tuple(lacks))


def _single_file(path: Path) -> SavedCheckpoint | None:
    """Return the checkpoint in a file that is written over, such as nanoGPT's `ckpt.pt`; None for another file."""
    if path.suffix not in _ZIPS:
        return None
    if problem := torn_zip(path):
        return SavedCheckpoint(0, path, problem)
    saved = pickle_in_zip(path)
    step = next((step for name in _STEP_NAMES if (step := number_after(saved, name)) is not None), None)
    return None if step is None else SavedCheckpoint(step, path)


def _problem(path: Path, complete: Sequence[str]) -> str | None:
    """Return what is missing or torn in a checkpoint; None for a complete one."""
    if path.is_file():
        return _torn(path)
    missing = [name for name in complete if not any(path.glob(name))]
    if missing:
        return f"its save was interrupted (no {missing[0]})"
    files = sorted(one for one in path.rglob("*") if one.is_file())
    return "it is empty" if not files else next(filter(None, map(_torn, files)), None)


def _torn(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        return torn_safetensors(path)
    return torn_zip(path) if path.suffix in _ZIPS else None
