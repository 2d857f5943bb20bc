"""One command makes its run once: expanded once, and each command line of the trainer parsed once.

It matters because what is checked must be what is published and submitted. Expanding again would read the environment
again, and parsing again is where two readers of one command line come to differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from opsctl.jobs.control.revise import revise
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.jobs.control.submit import submit, submit_dry
from opsctl.run.config.expansion import expand_file
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.slurm.cluster import Cluster
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.tiny_run import write_checkpoint, write_run
from trainer.recipe.options import parse

TOMORROW = ChainOptions(begin="now+1day")


@pytest.fixture
def opsctl(local_cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        write_checkpoint(folder, 10, 80)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield Opsctl(local_cluster, folder)


@dataclass
class Calls:
    """The calls: how often a run file was expanded, and (arguments, ranks) of each command line parsed."""

    expansions: int = 0
    command_lines: list[tuple[tuple[str, ...], int]] = field(default_factory=list)


@contextmanager
def noted_calls() -> Iterator[Calls]:
    """Every call in this thread, by whatever name the function was imported."""
    seen = Calls()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is expand_file.__code__:
            seen.expansions += 1
        elif event == "call" and frame.f_code is parse.__code__:
            seen.command_lines.append((tuple(frame.f_locals["argv"]), frame.f_locals["world_size"]))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def run_of(opsctl: Opsctl, **changes: Any) -> LoadedRun:
    return load_run_file(write_run(opsctl.folder, **changes))


COMMANDS: dict[str, Callable[[LoadedRun, Cluster], object]] = {
    "submit": lambda run, cluster: submit(run, cluster, TOMORROW),
    "submit --dry-run": lambda run, cluster: submit_dry(run, cluster, TOMORROW),
    "revise": lambda run, cluster: revise(run, cluster),
    "revise --dry-run": lambda run, cluster: revise(run, cluster, dry_run=True),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_makes_its_run_once(opsctl: Opsctl, command: str) -> None:
    run = run_of(opsctl)
    with noted_calls() as calls:
        COMMANDS[command](run, opsctl.cluster.cluster)
    assert (calls.expansions, len(calls.command_lines)) == (1, 1)


def test_a_chain_of_its_own_kind_costs_one_parse_for_each_command_line(opsctl: Opsctl) -> None:
    run, arguments = run_of(opsctl), ("--log-interval", "5")
    with noted_calls() as calls:
        submit(run, opsctl.cluster.cluster, ChainOptions(begin="now+1day", arguments=arguments))
    published, chains = calls.command_lines
    assert (calls.expansions, chains) == (1, ((*published[0], *arguments), published[1]))


def test_a_chain_on_other_nodes_is_of_the_same_expansion(opsctl: Opsctl) -> None:
    wish = ChainOptions(begin="now+1day", nodes=4, arguments=("--finetune",))
    with noted_calls() as calls:
        submit(run_of(opsctl), opsctl.cluster.cluster, wish)
    assert (calls.expansions, len(calls.command_lines)) == (1, len(set(calls.command_lines)))
    assert sorted(ranks for _, ranks in calls.command_lines) == [4, 8, 8]


def test_replacing_chains_parses_the_run_and_each_chains_arguments(opsctl: Opsctl) -> None:
    cluster = opsctl.cluster.cluster
    for after, rate in ((None, "1"), ("auto", "2"), ("auto", "2")):
        arguments = ("--log-interval", rate)
        submit(run_of(opsctl), cluster, ChainOptions(begin="now+1day", after=after, arguments=arguments))
    edited = run_of(opsctl, time="12:00")
    with noted_calls() as calls:
        revise(edited, cluster, resubmit=True)
    assert (calls.expansions, len(calls.command_lines)) == (1, 3)
    assert len(set(calls.command_lines)) == 3
    assert sorted(opsctl.queue("%l")) == ["12:00"] * 3
