"""What a shell is told when somebody presses Tab: commands, options and values, within a second or not at all.

A value is completed by what the help calls it: what stands for a run, `RUN`, is completed with runs, in whichever
command. Nothing is printed but what fits; whatever goes wrong is no word on anybody's prompt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    get_completion_class,
)

from opsctl.cli import COMPLETION_VARIABLE
from opsctl.core.output import show_text

SHELLS = ("bash", "zsh", "fish")
#: Seconds that a person waits at most, and the variable for who would rather wait longer; Slurm has most of them.
SECONDS_VARIABLE = "OPSCTL_COMPLETION_SECONDS"
_MOST_S, _OF_THEM_SLURM = 1.0, 0.7

Params = Mapping[str, Any]
Values = Callable[[Params], Iterable[tuple[str, str]]]  # each value, and a word about it


def script(shell: str) -> str:
    """What that shell has to read once for `opsctl` to be completed."""
    return _class(shell)(_no_group(), {}, "opsctl", COMPLETION_VARIABLE).source()


def answer(root: click.Group, commands: Mapping[str, str], instruction: str) -> None:
    """Print what fits. commands: those of `root` with a line about each. Never an error."""
    # What is imported may warn, and what is asked may complain: none of it belongs on a prompt.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _most_s())
    shell, _, what = instruction.partition("_")
    try:
        if shell not in SHELLS or what != "complete":
            return
        text = _Answer(_class(shell)(root, {}, "opsctl", COMPLETION_VARIABLE), root, commands).text()
    except Exception:  # completing is never worth an error
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    show_text(f"{text}\n" if text else "")


def _most_s() -> float:
    try:
        return float(os.environ.get(SECONDS_VARIABLE) or _MOST_S)
    except ValueError:
        return _MOST_S


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _class(shell: str) -> type[ShellComplete]:
    found = get_completion_class(shell)
    assert found is not None and issubclass(found, (BashComplete, ZshComplete, FishComplete))
    return found


def _no_group() -> click.Command:
    return click.Command("opsctl")


class _Answer:
    """click's own reading of the command line, with our values in the place of its own."""

    def __init__(self, shell: ShellComplete, root: click.Group, commands: Mapping[str, str]) -> None:
        self.shell, self.root, self.commands = shell, root, commands

    def text(self) -> str:
        # Its own names for its own use, but there are no others, and a test holds them to what they do.
        from click.shell_completion import _resolve_context, _resolve_incomplete

        words, incomplete = self.shell.get_completion_args()
        context = _resolve_context(self.shell.cli, {}, self.shell.prog_name, words)
        place, incomplete = _resolve_incomplete(context, words, incomplete)
        return "\n".join(self.shell.format_completion(one) for one in self.items(place, context, incomplete))

    def items(
        self, place: click.Command | click.Parameter, context: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        if place is self.root and not incomplete.startswith("-"):
            return _fitting(self.commands.items(), incomplete)
        if isinstance(place, click.Parameter):
            name = str(place.metavar or place.human_readable_name).strip("[].").replace("...]", "")
            values = _VALUES.get(name.rstrip(".]"))
            if values is not None:
                if incomplete.startswith(("/", "./", "../", "~")):
                    return [CompletionItem(incomplete, type="file")]
                return _fitting(values(context.params), incomplete)
            if "FILE" in name or "FOLDER" in name or name in ("INPUT", "PREFIX", "PATH"):
                return [CompletionItem(incomplete, type="file")]
        return place.shell_complete(context, incomplete)


def _fitting(values: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Those that begin so, and that no shell would have to be told to quote."""
    return [
        CompletionItem(value, help=_plain(about) or None)
        for value, about in values
        if value.startswith(incomplete) and value.isprintable() and not set(value) & set(" \t'\"\\$`;&|<>()*?!~")
    ]


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:80]


def _runs(_: Params) -> Iterable[tuple[str, str]]:
    from pathlib import Path

    from opsctl.run.config.locate import RUN_FILE_NAME, known_runs

    here = {one.parent.name: str(one.parent) for one in sorted(Path().glob(f"*/{RUN_FILE_NAME}"))}
    return sorted({**known_runs(), **here}.items())


def _clusters(_: Params) -> Iterable[tuple[str, str]]:
    from opsctl.run.state.chosen_cluster import local_clusters_folder

    return [(one.name, str(one)) for one in sorted(local_clusters_folder().iterdir()) if one.is_dir()]


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


def _errands(_: Params) -> Iterable[tuple[str, str]]:
    from opsctl.jobs.background.listing import command_of
    from opsctl.jobs.background.records import errands

    return [(one.errand, command_of(one)) for one in errands().all()]


def _examples(_: Params) -> Iterable[tuple[str, str]]:
    from opsctl.core.shipped import templates_folder

    return [(one.stem, "") for one in sorted((templates_folder() / "examples").glob("*.toml"))]


def _gpu_kinds(_: Params) -> Iterable[tuple[str, str]]:
    from opsctl.run.init.suggestions import GPU_KINDS

    return [(one, "") for one in GPU_KINDS]


def _together(*several: Values) -> Values:
    """What either has; of one that cannot say, nothing."""

    def values(params: Params) -> Iterable[tuple[str, str]]:
        for one in several:
            try:
                yield from one(params)
            except Exception:  # the others may know
                continue

    return values


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


def _auto(_: Params) -> Iterable[tuple[str, str]]:
    return [("auto", "when whatever is live has ended")]


#: What the help calls a value, without brackets and dots -> the values there are.
_VALUES: dict[str, Values] = {
    "RUN": _runs,
    "RUN|CHECKPOINT": _runs,
    "JOB": _jobs,
    "JOB|ATTEMPT": _together(_jobs, _attempts),
    "auto|JOB": _together(_auto, _jobs),
    "NODE": _nodes,
    "NODES": _nodes,
    "ITERATION": _iterations,
    "NAME": _clusters,
    "ID": _errands,
    "EXAMPLE": _together(_examples, _runs),
    "KIND": _gpu_kinds,
}
