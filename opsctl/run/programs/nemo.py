"""NeMo: Lightning's names and log, with a marker file for each checkpoint that is not complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.run.programs import lightning
from opsctl.run.programs.kind import CommandLine, SavedCheckpoint, by_itself, options_in

_UNFINISHED = "-unfinished"


def _judge(path: Path) -> SavedCheckpoint | None:
    saved = lightning.KIND.judge(path)
    marker = path.with_name(path.name.removesuffix(".ckpt") + _UNFINISHED)
    if saved is not None and marker.exists():
        return replace(saved, problem=f"its save was interrupted ({marker.name})")
    return saved


def _is_its(words: Sequence[str]) -> bool:
    return words[:1] == ("nemo",) or any(name.startswith("exp_manager.") for name in options_in(words))


KIND = replace(
    lightning.KIND,
    name="nemo",
    saves_on="SIGTERM",
    checkpoints="*/checkpoints/*.ckpt",
    judge=_judge,
    resume=by_itself,
    lacks=("It saves on request only with its PreemptionCallback, and resumes only with resume_if_exists=True.",),
    command_line=CommandLine(
        _is_its,
        imports=("nemo",),
        output="exp_manager.explicit_log_dir",
        saves="checkpoints/*.ckpt",
        steps="trainer.max_steps",
    ),
)
