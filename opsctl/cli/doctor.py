"""`opsctl doctor`: what is missing here, and the command that fixes it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument
from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.core.output import print_json, printable, show_lines
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.ui.doctor.check import PrintedCheck, examined, is_well
from opsctl.ui.doctor.gather import CHECKS, Asked, gather, run_at_hand


@click.command()
@run_argument
@cluster_option
@json_option(checks="list[opsctl.ui.doctor.check.PrintedCheck]")
@click.pass_context
def command(ctx: click.Context, run: str | None, cluster: str | None, as_json: bool) -> None:
    """Check this host, user, run and cluster, and print how to fix each problem.

    The worst problem comes last. Works without a run and without Slurm, changes nothing, does not use the internet. A
    check without an answer within 40 s is unknown. Exits 1 if anything is missing or unknown.
    """
    loaded, known = run_at_hand(run)
    # Where the run was submitted to stands in its folder; a source of its own says where that does not answer.
    answers_us = loaded is not None and not FileSystems().problem(loaded.paths.output)
    chosen = choose_cluster(cluster, loaded.paths if loaded is not None and answers_us else None)
    answers = examined(CHECKS, gather(Asked(loaded, chosen, os.environ), known))
    if as_json:
        print_json("checks", answers)
    else:
        show_lines(_lines(answers))
    ctx.exit(0 if is_well(answers) else 1)


def _lines(answers: Sequence[PrintedCheck]) -> list[str]:
    state = max((len(one.state) for one in answers), default=0)
    name = max((len(one.name) for one in answers), default=0)
    lines = []
    for one in answers:
        lines.append(f"{one.state:<{state}}  {one.name:<{name}}  {printable(one.text)}")
        if one.todo:
            lines.append(f"{'':<{state + name + 4}}-> {printable(one.todo)}")
    return lines
