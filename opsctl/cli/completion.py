"""`opsctl completion`, and the answers when a user presses Tab: commands, options and values, within a second.

A value is completed by its name in the help: `RUN` is completed with runs, whatever the command. Nothing is printed
but what fits; an error prints nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from opsctl.cli import COMPLETION_VARIABLE
from opsctl.core.output import show_text

SHELLS = ("bash", "zsh", "fish")
#: Longest wait in seconds, and the variable that sets another; Slurm has most of it.
SECONDS_VARIABLE = "OPSCTL_COMPLETION_SECONDS"
_MOST_S, _OF_THEM_SLURM = 1.0, 0.7

Params = Mapping[str, Any]
Values = Callable[[Params], Iterable[tuple[str, str]]]  # each value, and a word about it


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the shell script that enables completion with Tab.

    \b
      bash   opsctl completion bash > ~/.local/share/bash-completion/completions/opsctl
      zsh    opsctl completion zsh > DIR/_opsctl          where DIR is one of $fpath
      fish   opsctl completion fish > ~/.config/fish/completions/opsctl.fish

    It completes commands, options, runs, jobs, nodes and checkpoints. For this shell only: source <(opsctl completion
    bash). Answers that take longer than a second are not offered;
    $OPSCTL_COMPLETION_SECONDS sets another limit.
    """  # noqa: D301 - click looks for that very character
    show_text(_shell(shell, click.Command("opsctl")).source())


def answer(root: click.Group, commands: Mapping[str, str], instruction: str) -> None:
    """Print what fits, and never an error. commands: those of `root` with a line about each."""
    # Imported modules may warn, and Slurm may complain: none of it belongs on a prompt.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _most_s())
    name, _, what = instruction.partition("_")
    text = ""
    with contextlib.suppress(Exception):
        if name in SHELLS and what == "complete":
            shell = _shell(name, root)
            text = "\n".join(shell.format_completion(one) for one in _items(shell, commands))
    signal.setitimer(signal.ITIMER_REAL, 0)
    show_text(f"{text}\n" if text else "")


def _give_up(_signal: int, _frame: object) -> None:
    raise SystemExit(0)  # a call of Slurm that is under way is ended with it


def _most_s() -> float:
    try:
        return float(os.environ.get(SECONDS_VARIABLE) or _MOST_S)
    except ValueError:
        return _MOST_S


def _shell(name: str, command: click.Command) -> ShellComplete:
    found = get_completion_class(name)
    assert found is not None
    return found(command, {}, "opsctl", COMPLETION_VARIABLE)


def _items(shell: ShellComplete, commands: Mapping[str, str]) -> list[CompletionItem]:
    """Read the command line as click does, and offer our values in place of click's."""
    # Private to click, but nothing public does this; a test checks what they do.
    from click.shell_completion import _resolve_context, _resolve_incomplete

    words, incomplete = shell.get_completion_args()
    context = _resolve_context(shell.cli, {}, shell.prog_name, words)
    place, incomplete = _resolve_incomplete(context, words, incomplete)
    if place is shell.cli and not incomplete.startswith("-"):
        return _fitting(commands.items(), incomplete)
    if isinstance(place, click.Parameter):
        name = str(place.metavar or place.human_readable_name).strip("[].").replace("...]", "")
        if values := _VALUES.get(name.rstrip(".]")):
            if incomplete.startswith(("/", "./", "../", "~")):
                return [CompletionItem(incomplete, type="file")]
            found = []
            for source in values:
                with contextlib.suppress(Exception):  # the other sources may know
                    found += _fitting(source(context.params), incomplete)
            return found
        if "FILE" in name or "FOLDER" in name or name in ("INPUT", "PREFIX", "PATH"):
            return [CompletionItem(incomplete, type="file")]
    return place.shell_complete(context, incomplete)


def _fitting(values: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return those that begin so, and that need no quoting in any shell."""
    return [
        CompletionItem(value, help="".join(filter(str.isprintable, about))[:80] or None)
        for value, about in values
        if value.startswith(incomplete) and value.isprintable() and not set(value) & set(" \t'\"\\$`;&|<>()*?!~")
    ]


def _runs(_: Params) -> Iterable[tuple[str, str]]:
    from pathlib import Path

    from opsctl.run.config.locate import RUN_FILE_NAME, known_runs

    here = {one.parent.name: str(one.parent) for one in sorted(Path().glob(f"*/{RUN_FILE_NAME}"))}
    return sorted({**known_runs(), **here}.items())


def _jobs(params: Params) -> Iterable[tuple[str, str]]:
    from opsctl.core.account import account_name

    mine = (one for one in _slurm(params).jobs() if one.user == account_name())
    return [(one.display_id, f"{one.name} {one.state.lower()}") for one in mine if "[" not in one.display_id]


def _nodes(params: Params) -> Iterable[tuple[str, str]]:
    return [(one.name, f"{one.state} {one.reason}".strip()) for one in _slurm(params).nodes()]


def _iterations(params: Params) -> Iterable[tuple[str, str]]:
    from trainer.formats.checkpoint.manifest import checkpoint_folders, iteration_of

    found = checkpoint_folders(_paths(params).checkpoints)
    return [(str(iteration_of(one.name)), one.name) for one in found]


def _attempts(params: Params) -> Iterable[tuple[str, str]]:
    from opsctl.run.attempts.events import read

    return [(str(one.number), one.reason or "") for one in reversed(read(_paths(params)))]


def _paths(params: Params) -> Any:
    from opsctl.run.config.load import load_run_file
    from opsctl.run.config.locate import locate_run_file

    return load_run_file(locate_run_file(params.get("run"))).paths


def _slurm(params: Params) -> Any:
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.slurm.cache import cached_client

    try:
        paths = _paths(params)
    except Exception:  # without a run there is still a cluster
        paths = None
    return cached_client(
        choose_cluster(params.get("cluster"), paths), deadline_s=_OF_THEM_SLURM * _most_s(), is_live=True
    )


#: The name of a value in the help, without brackets and dots -> the sources of its values.
_VALUES: dict[str, tuple[Values, ...]] = {
    "RUN": (_runs,),
    "RUN|CHECKPOINT": (_runs,),
    "JOB": (_jobs,),
    "JOB|ATTEMPT": (_jobs, _attempts),
    "auto|JOB": (lambda _: [("auto", "when the live chain has ended")], _jobs),
    "NODE": (_nodes,),
    "NODES": (_nodes,),
    "ITERATION": (_iterations,),
}
