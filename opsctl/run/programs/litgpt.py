"""litgpt: `step-N` folders with one file of weights, and a line for each logged iteration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import CommandLine, Kind, Progress, numbered_folder
from opsctl.run.programs.saved_files import torn_zip

_LINE = re.compile(
    r"Epoch \d{1,9} \| iter (?P<iteration>\d{1,18}) step (?P<step>\d{1,18}) \| loss train: (?P<loss>[-+\d.e]+|nan|inf),"
    r".*?iter time: (?P<ms>[\d.]+) ms"
)
_WEIGHTS = "lit_model.pth"
#: Written after the weights.
_LAST = "model_config.yaml"


def _progress(line: str) -> Progress | None:
    match = _LINE.search(line)
    if match is None:
        return None
    step, iteration = int(match["step"]), int(match["iteration"])
    of_each = iteration / step if step else 1  # micro-batches of a step
    return Progress(step, loss=float(match["loss"]), seconds_per_iteration=float(match["ms"]) / 1000 * of_each)


def _problem(folder: Path, _: int) -> str | None:
    if problem := torn_zip(folder / _WEIGHTS):
        return problem
    return None if (folder / _LAST).is_file() else f"its save was interrupted (no {_LAST})"


def _resume(checkpoint: Path) -> Sequence[str]:
    return ("--resume", str(checkpoint / _WEIGHTS))


KIND = Kind(
    name="litgpt",
    launch="ranks",
    saves_on=None,
    checkpoints="*/step-*",
    progress=_progress,
    judge=numbered_folder(r"step-(\d{1,18})", _problem),
    resume=_resume,
    takes_torn=True,
    command_line=CommandLine(
        lambda words: words[:1] == ("litgpt",),
        output="out_dir",
        saves="step-*",
        steps="train.max_steps",
        left_out=("resume",),
    ),
)
