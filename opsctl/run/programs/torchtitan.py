"""torchtitan: `step-N` folders of torch's distributed checkpoint. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.run.programs.kind import Kind, Progress, SavedCheckpoint, by_itself
from opsctl.run.programs.saved_files import pickled_strings

_FOLDER = re.compile(r"step-(\d{1,18})")
#: Written last; it names all other files.
METADATA = ".metadata"


def _judge(path: Path) -> SavedCheckpoint | None:
    name = _FOLDER.fullmatch(path.name)
    return SavedCheckpoint(int(name[1]), path, distributed_problem(path)) if name and path.is_dir() else None


def distributed_problem(folder: Path) -> str | None:
    """Return why torch's distributed checkpoint cannot be loaded; None for a complete one."""
    try:
        metadata = (folder / METADATA).read_bytes()
    except FileNotFoundError:
        return f"its save was interrupted (no {METADATA})"
    except OSError as error:
        return f"{METADATA}: {error.strerror}"
    named = {str(one) for one in pickled_strings(metadata) if str(one).endswith(".distcp")}
    missing = sorted(one for one in named if not (folder / Path(one).name).is_file())
    return f"{missing[0]} is missing" if missing else None if named else f"{METADATA} is damaged"


def _no_progress(_: str) -> Progress | None:
    return None


KIND = Kind(
    name="torchtitan",
    launch="torchrun",
    saves_on=None,
    checkpoints="*/checkpoint/step-*",
    progress=_no_progress,
    judge=_judge,
    resume=by_itself,
    lacks=("It does not save when it is stopped: the work since the last checkpoint is lost at each stop.",),
)
