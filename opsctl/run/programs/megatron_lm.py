"""Megatron-LM: `iter_N` folders and a tracker file that names the newest. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.programs.kind import Kind, by_itself, no_progress, numbered_folder

#: Written after all ranks have saved.
TRACKER = "latest_checkpointed_iteration.txt"


def _problem(folder: Path, iteration: int) -> str | None:
    newest = _tracked(folder.parent / TRACKER)
    if newest is None:
        return f"no {TRACKER} names it"
    return f"its save was interrupted ({TRACKER} names iteration {newest})" if iteration > newest else None


def _tracked(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


KIND = Kind(
    name="megatron-lm",
    launch="torchrun",
    saves_on="SIGTERM",
    checkpoints="*/iter_*",
    progress=no_progress,
    judge=numbered_folder(r"iter_(\d{7,18})", _problem),
    resume=by_itself,
    saves_with="--exit-signal-handler",
)
