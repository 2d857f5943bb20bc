"""The folder of `opsctl_hook`, which is put on a program's PYTHONPATH, and what both sides name alike."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.programs.hook.opsctl_hook import SAVED, STOP_VARIABLE

__all__ = ["HOOK_FOLDER", "SAVED", "STOP_VARIABLE"]
HOOK_FOLDER = Path(__file__).parent
