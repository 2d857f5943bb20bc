"""`opsctl init --from-script`: a launch script read into a run file, and what of it could not be taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: No launch script is larger; whatever is, is something else.
_LARGEST = 4 << 20


def make_from_script(folder: Path, run_name: str, script: Path, said: dict[str, Any]) -> None:
    """Make the run. said: keys of `[slurm]` as the caller has them. Raises UsageError, OpsctlError."""
    from opsctl.beginning.begun import run_text
    from opsctl.beginning.from_script import from_script
    from opsctl.cli.init import make_run, say_next
    from opsctl.errors import UsageError
    from opsctl.output import message
    from opsctl.runs.load import load_run_file

    place = script.absolute()
    text = _text(place)
    if text is None:
        raise UsageError(f"{script} cannot be read, or is no script: a text file of at most {_LARGEST >> 20} MiB")
    begun = from_script(text, run_name, str(place.parent), said, lambda path: _text(Path(path)))
    head = (
        f"{run_name}: read from {place} by opsctl init --from-script, which has run nothing of it.",
        "Behind each value stands the line that it is from; at the end stands what was not taken.",
    )
    beside = {}
    if begun.environment_script:
        first = f"# What {place} does to its shell before it starts the training."
        beside["environment.sh"] = "\n".join([first, *begun.environment_script]) + "\n"
    make_run(folder, run_name, run_text(begun, head), beside, check=load_run_file)
    if begun.notes:
        message(f"{script}: not taken:")
        for note in sorted(set(begun.notes)):
            message(f"  {note}")
    steps = [
        ("what was not taken stands at its end", "${EDITOR:-vi} run.toml"),
        ("what it comes to, and what is missing", "opsctl plan"),
        ("what is missing here", "opsctl doctor"),
        ("a chain of ten tasks, one at a time", "opsctl submit"),
    ]
    say_next(folder, steps)


def _text(path: Path) -> str | None:
    """The file's text; None where it is none that can be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError:
        return None
    if len(raw) > _LARGEST or b"\0" in raw:
        return None
    return raw.decode(errors="replace").replace("\r\n", "\n")
