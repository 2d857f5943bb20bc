"""NeMo: Lightning's names and log, with a marker file for each checkpoint that is not complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.run.programs import lightning, megatron_lm
from opsctl.run.programs.kind import CommandLine, Progress, SavedCheckpoint, by_itself, options_in

_UNFINISHED = "-unfinished"
_STEP = re.compile(r"step=(\d{1,18})")
#: A line of its ProgressPrinter or a state of its bar. Both show the values that its models log.
_LINE = re.compile(r"Training epoch \d+, iteration \d+/\d+ \| |Epoch \d+: :? +\d+%\|[^|]*\| \d+/\d+ \[[\d:]+<[\d:?]+, ")
_VALUE = re.compile(
    r"(?P<name>lr|global_step|reduced_train_loss|train_step_timing in s)(?:=|: )"
    r"(?P<number>[-+\d.]+(?:e[-+]?\d+)?|nan|inf)"
)


def _logged(line: str) -> Progress | None:
    found = None
    for start in _LINE.finditer(line):
        found = start
    if found is None:
        return None
    values = {one["name"]: float(one["number"]) for one in _VALUE.finditer(line, found.end())}
    step = values.get("global_step")  # steps before this one
    if step is None:
        return None
    return Progress(
        int(step) + 1,
        loss=values.get("reduced_train_loss"),
        learning_rate=values.get("lr"),
        seconds_per_iteration=values.get("train_step_timing in s"),
    )


def _follow(start: int, batches: int) -> Callable[[str], Progress | None]:
    bars = lightning.Bars(start, batches)
    return lambda line: _logged(line) or bars.progress(line)


def _judge(path: Path) -> SavedCheckpoint | None:
    saved = lightning.KIND.judge(path) if path.suffix == ".ckpt" and path.is_file() else _folder(path)
    marker = path.with_name(path.name.removesuffix(".ckpt") + _UNFINISHED)
    if saved is not None and marker.exists():
        return replace(saved, problem=f"its save was interrupted ({marker.name})")
    return saved


def _folder(path: Path) -> SavedCheckpoint | None:
    """Judge a distributed checkpoint: a folder with the name of a file without `.ckpt`, since NeMo 2 with `weights`."""
    step = _STEP.search(path.name)
    if step is None or not path.is_dir():
        return None
    weights = path / "weights" if (path / "weights").is_dir() else path
    problem = megatron_lm.core_problem(weights) if any(weights.iterdir()) else "it is empty"
    return SavedCheckpoint(int(step[1]), path, problem)


def _is_its(words: Sequence[str]) -> bool:
    return words[:1] == ("nemo",) or any(name.startswith("exp_manager.") for name in options_in(words))


KIND = replace(
    lightning.KIND,
    name="nemo",
    saves_on="SIGTERM",
    checkpoints="*/checkpoints/*",
    progress=lambda line: _logged(line) or lightning.single_bar(line),
    follow=_follow,
    judge=_judge,
    resume=by_itself,
    lacks=("It saves on request only with its PreemptionCallback, and resumes only with resume_if_exists=True.",),
    command_line=CommandLine(
        _is_its,
        imports=("nemo",),
        output="exp_manager.explicit_log_dir",
        saves="checkpoints/*",
        steps="trainer.max_steps",
    ),
)
