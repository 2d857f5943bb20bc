"""The environment that a launch script makes for its training. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from opsctl.run.config.values import is_launchers, variable_problem
from opsctl.run.init.draft import Draft
from opsctl.run.init.shell_script import Command
from opsctl.run.init.shell_values import SetUp, is_known_but_for_variables, why_open
from opsctl.run.init.start_folder import placed_from, settled

#: Variables that only a job on its node has.
_OF_A_JOB = re.compile(r"\$\{?(?:SLURM|SLURMD|CUDA|HOSTNAME|TMPDIR)_?\w*")
_SOURCES = ("source", ".")


def take_environment(draft: Draft, command: Command, program: str, start: str, script_folder: str) -> None:
    """Set `[run] environment` and `[env]`, or write both into a script next to the run file, in the script's order.

    command: the one that starts the training `program`. start: the folder in which the script starts.
    """
    set_up = [_settled(one, start, script_folder) for one in command.state.set_up]
    made = [one for one in set_up if not one.exports or _is_exported(draft, one, command, program)]
    commands = [one for one in made if not one.exports or _is_own(one)]
    is_one_file = len(commands) == 1 and commands[0].words[0] in _SOURCES and len(commands[0].words) == 2
    for one in commands:
        if not one.is_sure and not one.exports:
            draft.note(one.line, f"{one.words[0]}: done under a condition that the script does not decide")
    if is_one_file and made[0] is commands[0] and made[0].is_sure:
        draft.set("run", "environment", made.pop(0).words[1], f"line {commands[0].line}")
    elif commands:
        draft.environment_script = [_line(one) for one in made]
        draft.set("run", "environment", "environment.sh", "next to this file; every node sources it")
        return
    for one in made:
        draft.set("env", one.exports, one.words[1].partition("=")[2], f"line {one.line}")


def _settled(one: SetUp, start: str, script_folder: str) -> SetUp:
    """Return it with the folders that it names as paths, and its sourced file as one."""
    words = tuple(settled(word, start, script_folder) for word in one.words)
    if words[0] in _SOURCES and len(words) > 1 and is_known_but_for_variables(words[1]):
        folder = None if one.folder is None else settled(one.folder, start, script_folder)
        words = (words[0], placed_from(start, folder, words[1]), *words[2:])
    return replace(one, words=words)


def _is_exported(draft: Draft, one: SetUp, command: Command, program: str) -> bool:
    """Return whether the training is to have this export; note why not."""
    state, name, value = command.state, one.exports, one.words[1].partition("=")[2]
    variable = state.variables.get(name)
    if variable is None or not variable.is_exported or re.search(r"(^|\s)--[A-Za-z]", value) or value == program:
        return False  # taken back, or a piece of the training's command line
    if variable.value is None:
        draft.note(one.line, f"export {name}: {state.why_unknown(name)}")
    elif is_launchers(name):
        draft.note(one.line, f"{name} is set for every rank by Slurm and the launcher")
    elif not is_known_but_for_variables(value) and not _is_own(one):
        draft.note(one.line, f"export {name}={value}: {why_open(value)}")
    elif problem := variable_problem(name, value):
        draft.note(one.line, problem.removeprefix("[env] "))
    else:
        return True
    return False


def _is_own(one: SetUp) -> bool:
    """Return whether an export extends the variable's value from before the script, or needs a job's own variables."""
    extends = re.search(rf"\$\{{?{one.exports}\b", one.words[1])
    return bool(one.exports) and (extends or _OF_A_JOB.search(one.words[1])) is not None


def _line(one: SetUp) -> str:
    if one.exports:
        return f"export {one.exports}={_quoted(one.words[1].partition('=')[2])}"
    return " ".join(_quoted(word) for word in one.words)


def _quoted(text: str) -> str:
    """Quote as a shell's word in which variables are still expanded."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", text):
        return text
    return '"' + re.sub(r'([\\"`])', r"\\\1", text) + '"'
