"""`opsctl init --from-script`: read a launch script into a run file, and list what of it is not taken."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opsctl.run.init.draft import Draft

#: No launch script is larger.
_LARGEST = 4 << 20


def make_from_script(
    folder: Path,
    run_name: str,
    script: Path,
    given: dict[str, Any],
    arguments: Sequence[str] = (),
    kind: str | None = None,
) -> None:
    """Make the run. Raises UsageError, OpsctlError.

    given: keys of `[slurm]` from the command line. arguments: those of the script; empty if they are not known.
    kind: "trainer" or a kind of program; None: as the script shows.
    """
    from opsctl.cli.new_run import make_run, say_next
    from opsctl.core.errors import UsageError
    from opsctl.core.output import message
    from opsctl.run.config.load import load_run_file
    from opsctl.run.init.draft import run_text
    from opsctl.run.init.launch_script import from_script

    place = script.absolute()
    text = _text(place)
    if text is None:
        raise UsageError(f"{script} cannot be read, or is no script: a text file of at most {_LARGEST >> 20} MiB")
    draft = from_script(
        text,
        run_name,
        str(place.parent),
        given,
        lambda path: _text_of_file(Path(path)),
        arguments or None,
        kind,
        os.getcwd(),  # noqa: PTH109 - links stay as written
        str(folder),
    )
    called = f", as called with {shlex.join(arguments)}" if arguments else ""
    head = (
        f"{run_name}: read from {place}{called} by opsctl init --from-script, which has run nothing of it.",
        "Each value has its line in the script. Lines that were not copied are listed at the end.",
    )
    beside = dict(draft.files)
    if draft.environment_script:
        first = f"# What {place} does to its shell before it starts the training."
        beside["environment.sh"] = "\n".join([first, *draft.environment_script]) + "\n"
    make_run(folder, run_name, run_text(draft, head), beside, check=load_run_file)
    _say_what_is_started(draft, script)
    for title, found in (
        ("not taken", map(str, sorted(set(draft.notes)))),
        ("to replace or do by hand", map(str, sorted(set(draft.fill_in)))),
        ("to set in run.toml, where each is a comment with an example", map(str, draft.unset)),
    ):
        if lines := list(found):
            message(f"{title}:")
            for line in lines:
                message(f"  {line}")
    is_complete = not draft.fill_in and not draft.unset
    edit = "read the list at its end" if is_complete else "set the missing values, and read the lists at its end"
    steps = [
        (edit, "${EDITOR:-vi} run.toml"),
        ("print how it is started, and problems", "opsctl plan"),
        ("check this machine and the cluster", "opsctl doctor"),
        ("submit a chain of ten jobs, one at a time", "opsctl submit"),
    ]
    say_next(folder, steps)


def _say_what_is_started(draft: Draft, script: Path) -> None:
    """Print which program the run starts, and how to choose the other one where a script may mean both."""
    from opsctl.core.output import message

    command, other = draft.value("program", "command"), "megatron-lm"
    if command is not None:
        kind = draft.value("program", "kind")
        message(f'{script}: made a run of that program, of kind "{kind}": {shlex.join(command[:3])} ...')
        other = "trainer" if kind == "megatron-lm" else ""
    else:
        message(f"{script}: made a run of opsctl's trainer, with the script's options")
    if other:
        instead = "with opsctl's trainer" if other == "trainer" else "with the script's own program"
        message(f"  to train {instead}: add --kind {other}")


def _text(path: Path) -> str | None:
    """Return the file's text; None if it cannot be read or is no text."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError:
        return None
    if len(raw) > _LARGEST or b"\0" in raw:
        return None
    return raw.decode(errors="replace").replace("\r\n", "\n")


def _text_of_file(path: Path) -> str | None:
    """Return the text of a file that the script names, which may be a pipe or a device."""
    return _text(path) if path.is_file() else None
