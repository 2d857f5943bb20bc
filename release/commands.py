"""Programs that a release runs, each with a time-out and its own words where it fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.refusal import Refused

#: What leads a command of the wheel back to a checkout, or git to another one.
_LEFT_OUT = ("PYTHON", "OPSCTL", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def run(
    words: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> str:
    """Return what the command prints. Raises Refused with its last line where it fails or takes longer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    shown = " ".join(map(str, words))
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**kept, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"`{shown}` in {folder} took more than {timeout_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise Refused(f"`{shown}` in {folder} failed with exit code {done.returncode}: {said}")
    return done.stdout


def git(folder: Path, *words: str | Path) -> str:
    """A git command in `folder`."""
    return run(["git", *words], folder, timeout_s=120).rstrip("\n")
