"""Megatron-LM: `iter_N` folders and a tracker file that names the newest. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.run.programs.kind import Kind, Progress, SavedCheckpoint, by_itself

_FOLDER = re.compile(r"iter_(\d{7,18})")
#: Written after all ranks have saved.
TRACKER = "latest_checkpointed_iteration.txt"


def _judge(path: Path) -> SavedCheckpoint | None:
    name = _FOLDER.fullmatch(path.name)
    if name is None or not path.is_dir():
        return None
    newest = _tracked(path.parent / TRACKER)
    problem = None
    if newest is None:
        problem = f"no {TRACKER} names it"
    elif int(name[1]) > newest:
        problem = f"its save was interrupted ({TRACKER} names iteration {newest})"
    return SavedCheckpoint(int(name[1]), path, problem)


def _tracked(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _no_progress(_: str) -> Progress | None:
    return None


KIND = Kind(
    name="megatron-lm",
    launch="torchrun",
    saves_on="SIGTERM",
    checkpoints="*/iter_*",
    progress=_no_progress,
    judge=_judge,
    resume=by_itself,
    saves_with="--exit-signal-handler",
)
