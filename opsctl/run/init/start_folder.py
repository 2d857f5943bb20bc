"""The folder in which a script starts, and the texts of the script that depend on it. Pure."""

from __future__ import annotations

import posixpath
import re

from opsctl.run.init.draft import Draft
from opsctl.run.init.shell_script import Command
from opsctl.run.init.shell_values import FOLDER, is_known_but_for_variables

#: A job starts in the folder in which sbatch was typed.
_SUBMITTED_IN = re.compile(r"\$\{?SLURM_SUBMIT_DIR\b\}?")
#: The output of a command, with up to two commands within it.
_OUTPUT = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")
_OF_SCRIPT = re.compile(r"\bdirname\b.*\$\{?(?:0\b|BASH_SOURCE)", re.DOTALL)


def settled(text: str, start: str, script_folder: str) -> str:
    """Return the text with the names of the folders in which the job starts and the script is stored as paths."""

    def of_script(match: re.Match[str]) -> str:
        return script_folder if _OF_SCRIPT.search(match[0]) and ".." not in match[0] else match[0]

    text = FOLDER.sub(lambda _: start, _SUBMITTED_IN.sub(lambda _: start, text))
    return _OUTPUT.sub(of_script, text)


def placed_from(start: str, folder: str | None, path: str) -> str:
    """Return the path from `folder`, which is relative to `start` itself; None: `start`."""
    base = start if folder is None else folder if _is_placed(folder) else f"{start}/{folder}"
    return path if _is_placed(path) else posixpath.normpath(f"{base}/{path}")


def working_folder(draft: Draft, command: Command, start: str, script_folder: str) -> str:
    """Return the folder in which the script starts the training, as far as it is known."""
    into = command.state.folder
    if into is None:
        return start
    into = settled(into, start, script_folder)
    if not is_known_but_for_variables(into):
        draft.note(command.line, f"its folder is not known: relative paths are taken to start at {start}")
        return start
    text = into.rstrip("/") or "/"
    return posixpath.normpath(text) if _is_placed(text) else f"{start}/{text}"


def _is_placed(path: str) -> bool:
    return path.startswith(("/", "~/", "${"))
