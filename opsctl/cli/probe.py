"""`opsctl probe`: the nodes of an allocation tested, before a training is trusted to them."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument
from opsctl.cli.shell import file_of
from opsctl.core.errors import UsageError
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.process import find_program
from opsctl.diagnosis.probe.report import ProbeReport, Standing, screen
from opsctl.diagnosis.probe.run_probe import probe, record_evidence
from opsctl.jobs.runner.good_nodes import setting_for
from opsctl.jobs.runner.task import read_allocation
from opsctl.run.config.schema import RunFile
from opsctl.run.render.shell import allocation
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.backends import client_for
from opsctl.slurm.cache import forget
from opsctl.slurm.cluster import Cluster
from trainer.formats.attempt.node_samples import EFFORTS


@click.command()
@run_argument
@click.option("--full", is_flag=True, help="Test for minutes: all pairs of nodes, half of the memory, larger files.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Test N nodes in a new job instead of this one.")
@click.option("--nodelist", metavar="NODES", help="With --nodes: test these nodes, such as x[03-04].")
@click.option("--time", metavar="T", help="With --nodes: time limit of the job, a Slurm duration [default: 15:00].")
@cluster_option
@json_option(probe="opsctl.diagnosis.probe.report.ProbeReport")
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    full: bool,
    nodes: int | None,
    nodelist: str | None,
    time: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Test each node of this allocation, then all together; print bad nodes.

    Uses the run's environment and folder. Runs inside a job; with --nodes it starts a job and waits for it. Exits 1 if
    a node is bad or slow, and records the evidence for the run.
    """
    if nodes is None and (nodelist is not None or time is not None):
        raise click.UsageError("--nodelist and --time need --nodes, which starts a job")
    seen = view(run)
    where = choose_cluster(cluster, seen.paths)
    file, _ = file_of(seen)
    if nodes is not None:
        _in_own_job(file, where, nodes, nodelist, time or "15:00", _words(seen, full, cluster, as_json))
    found = _probe(seen, file, where, "full" if full else "quick")
    _put_on_record(seen, found)
    if as_json:
        print_json("probe", found)
    else:
        show_lines(screen(found))
    ctx.exit(1 if found.of(Standing.BAD) or found.of(Standing.SLOW) else 0)


def _words(seen: RunView, full: bool, cluster: str | None, as_json: bool) -> list[str]:
    """Return the same command, for inside the job."""
    run = seen.loaded.path if seen.loaded is not None else seen.paths.output
    words = [sys.executable, "-P", "-m", "opsctl", "probe", str(run)]
    words += ["--full"] if full else []
    words += ["--cluster", cluster] if cluster else []
    return words + (["--json"] if as_json else [])


def _in_own_job(
    file: RunFile, where: Cluster, nodes: int, nodelist: str | None, time: str, words: list[str]
) -> NoReturn:
    """Let salloc, which runs the command once it has the nodes, take this process's place."""
    slurm = file.slurm
    asked = {**allocation("probe", file, slurm, nodes, slurm.gpus_per_node, time), "nodelist": nodelist}
    environment = where.environment()
    path = find_program("salloc", environment)
    if path is None:
        raise UsageError("salloc is not on PATH: opsctl probe --nodes needs a machine with Slurm's commands")
    options = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    sys.stdout.flush()
    forget()
    os.execve(path, ["salloc", "--no-kill", *options, *words], environment)


def _probe(seen: RunView, file: RunFile, where: Cluster, effort: str) -> ProbeReport:
    """Run the probe. Raises UsageError outside of a job."""
    client = client_for(where, patient=True)  # between two questions lie the nodes' own tests
    if "SLURM_JOB_ID" not in os.environ:
        raise UsageError("this is not inside a job: to start a job that tests N nodes, --nodes N")
    job = read_allocation(os.environ)
    run_file = seen.loaded.path if seen.loaded is not None else seen.paths.output
    folder = seen.paths.output if seen.paths.output.is_dir() else run_file.parent
    return probe(setting_for(file, run_file, folder, where, client, job.nodes, job.job_id), EFFORTS[effort])


def _put_on_record(seen: RunView, found: ProbeReport) -> None:
    """Record the evidence, if the run's folder exists and is writable; a probe without a run records nothing."""
    if not seen.paths.state.is_dir():
        return
    try:
        record_evidence(seen.paths, found)
    except OSError as error:
        message(f"opsctl: cannot record the evidence against nodes: {error.strerror}")
