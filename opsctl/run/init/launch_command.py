"""Which of a script's commands starts the training, and what else the script prepares for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.run.init.shell_commands import Command, Script
from opsctl.run.init.shell_within import handed_to_a_shell
from opsctl.run.init.traced_text import Traced
from trainer.recipe.options import BY_KEY

_PRINTING = frozenset(("echo", "printf", "cat", "tee", "mkdir", "ls", "rm", "cp", "ln", "logger", "grep"))
_LAUNCHERS_GPUS = frozenset(("nproc-per-node", "num-gpus"))
_LAUNCHERS_NODES = frozenset(("nnodes", "num-nodes"))
#: A program with fewer of the trainer's options is no training.
_LEAST_OPTIONS = 4
#: What a training's script does to its shell before it starts.
_SETTING_UP = frozenset(("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "ulimit"))
_OF_THE_SHELL = frozenset(("umask", "unset", "shopt"))
#: What may look at variables, or set them over: what is exported before it has to stand before it.
BRINGING = frozenset(("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "eval"))
#: What leaves nothing behind that a training could miss, or is followed as it stands.
_WITHOUT_TRACE = frozenset(
    (
        *(
            "set",
            "cd",
            "exit",
            "true",
            "false",
            ":",
            "wait",
            "sleep",
            "date",
            "clear",
            "hostname",
            "read",
            "mapfile",
            "let",
        ),
        *(
            "readarray",
            "getopts",
            "shift",
            "trap",
            "return",
            "break",
            "continue",
            "test",
            "[",
            "pwd",
            "unset",
            "eval",
            "pushd",
            "popd",
            "dirs",
            "",
        ),
    )
)


@dataclass(frozen=True)
class Launch:
    """The training: its program, the words after it, and what the launcher before it says of nodes and GPUs."""

    program: Traced
    words: tuple[Traced, ...]
    command: Command
    nodes: int | None
    gpus_per_node: int | None

    @property
    def is_sure(self) -> bool:
        """Whether the script decides that it is started."""
        return self.command.is_sure

    @property
    def name(self) -> str:
        """The program's, without its folder."""
        return self.program.text.rpartition("/")[2]


def launches(script: Script) -> list[Launch]:
    """Every command of the script that starts a training, in order."""
    return [found for command in script.commands if (found := _launch(script, command)) is not None]


def _launch(script: Script, command: Command) -> Launch | None:
    if command.name in _PRINTING or command.words[0].text in script.functions:  # what a function does is followed
        return None
    programs = [place for place, word in enumerate(command.words) if word.text.endswith(".py")]
    for place in programs:
        after = command.words[place + 1 :]
        names = {word.text.removeprefix("--").partition("=")[0].replace("-", "_") for word in after}
        if len(names & BY_KEY.keys()) >= _LEAST_OPTIONS:
            said = dict(_launcher_options(command.words[:place]))
            return Launch(
                command.words[place],
                after,
                command,
                next((said[name] for name in _LAUNCHERS_NODES if name in said), None),
                next((said[name] for name in _LAUNCHERS_GPUS if name in said), None),
            )
    return None


def _launcher_options(words: tuple[Traced, ...]) -> Iterator[tuple[str, int]]:
    """The launcher's options that are whole numbers: `--nproc_per_node 8`, `--nnodes=2`."""
    for number, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if not equals and number + 1 < len(words):
            value = words[number + 1].text
        if name.startswith("--") and re.fullmatch(r"\d+", value):
            yield name.removeprefix("--").replace("_", "-"), int(value)


def setting_up(script: Script, launch: Launch) -> list[Command]:
    """The commands that make the environment of the training, in order: those before it, in no shell but its own."""
    before = script.commands[: _place(script, launch)]
    shells = {launch.command.shell[:depth] for depth in range(len(launch.command.shell) + 1)}
    return [
        command
        for command in before
        if command.shell in shells and len(command.words) > 1 and _sets_up(command, launch)
    ]


def _place(script: Script, launch: Launch) -> int:
    return next(place for place, command in enumerate(script.commands) if command is launch.command)


def _sets_up(command: Command, launch: Launch) -> bool:
    if command.name == "unset":  # what is exported behind it is set before the environment is made
        return not any(word.text in launch.command.values.exported for word in command.words)
    if command.name == "eval":  # of what a command prints; a text that can be read is followed
        return any("$(" in word.text or "`" in word.text for word in command.words)
    return command.name in _SETTING_UP or command.name in _OF_THE_SHELL


def left_out(script: Script, launch: Launch) -> list[Command]:
    """The commands that neither make the environment, nor start a training, nor are of use to the script alone."""
    kept = {id(command) for command in setting_up(script, launch)}
    return [
        command
        for command in script.commands
        if id(command) not in kept
        and command.name not in _PRINTING
        and command.name not in _WITHOUT_TRACE
        and command.name not in script.functions
        and (command.name != "exec" or len(command.words) > 1)
        and command.name.isprintable()
        and "$" not in command.words[0].text
        and _launch(script, command) is None
        and handed_to_a_shell(command.words) is None
    ]
