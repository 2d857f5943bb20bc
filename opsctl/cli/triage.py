"""`opsctl triage`: what killed it, which node, and what to do. Works without Slurm."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from opsctl.cli.selection import cluster_option, json_option, run_option
from opsctl.cli.triage_stacks import show_stacks
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.output import message, print_json, show_lines
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.findings import SlurmEnd
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.on_close import choose, chosen_rules, facts_of
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.report import Triage, lines_of, triage_of_attempt, triage_of_log
from opsctl.run.attempts.close_lost import may_be_of, own_end
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.checkpoints.listing import saved_at
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Cancel, cancelling, read_cancels, recorded
from opsctl.run.state.chosen_cluster import choose_cluster, record_of
from opsctl.run.state.run_view import glance
from opsctl.slurm.backends import client_for
from trainer.formats.checkpoint.manifest import tag_of

#: A person waits; a gigabyte of log is read in less.
_SECONDS = 60.0


@click.command()
@click.argument("which", metavar="[JOB|ATTEMPT]", required=False)
@run_option
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read only this log, of any training program, with or without Slurm.",
)
@click.option(
    "--stacks", is_flag=True, help="Show where each rank of the live job is, and which ranks the others wait for."
)
@click.option(
    "--native", is_flag=True, help="With --stacks: also show frames of compiled code, if py-spy may read them."
)
@cluster_option
@json_option(
    triage="opsctl.diagnosis.triage.report.Triage",
    stacks=("opsctl.diagnosis.hangs.summary.PrintedStacks", "with `--stacks`"),
)
def command(
    which: str | None, run: str | None, log: Path | None, stacks: bool, native: bool, cluster: str | None, as_json: bool
) -> int:
    """Find why a training failed: cause, first rank and node, and what to do.

    JOB is an id as squeue shows it, such as 12_3, and ATTEMPT a number of opsctl attempts. The default is the last
    failed attempt. Reads the training log, the files of ranks and launchers, error files, exit codes and Slurm's data
    of the job. The cause is shown with the lines that prove it; if it is unknown, with the last lines. A site's own
    rules: rules = FILE under [triage] of the profile.

    Use --stacks when a training hangs: it prints where each rank of the running job is, and which rank the others wait
    for. Another user's job gets a request, so its answer takes longer.
    """
    if log is not None and (which or run):
        raise click.UsageError("--log reads one file alone: give no job, attempt or run with it")
    if native and not stacks:
        raise click.UsageError("--native is of --stacks")
    if stacks:
        return _stacks(which, run, log, native, cluster, as_json)
    told = _of_log(log) if log is not None else _of_attempt(which, run, cluster)
    if as_json:
        print_json("triage", told)
    else:
        show_lines(lines_of(told))
    return 0


def _stacks(
    job: str | None, run: str | None, log: Path | None, native: bool, cluster: str | None, as_json: bool
) -> int:
    if log is not None:
        raise click.UsageError("--stacks asks a live job, --log reads a file")
    return show_stacks(glance(run), as_json, job=job, native=native, cluster=cluster)


def _of_log(log: Path) -> Triage:
    rules = chosen_rules()
    facts = read_log(LogPart(log), rules, _SECONDS)
    return triage_of_log(str(log), facts, decide(facts, rules))


def _of_attempt(which: str | None, run: str | None, cluster: str | None) -> Triage:
    rules = chosen_rules()
    paths = glance(run).paths
    attempt = choose(read(paths), which)
    facts = facts_of(paths, attempt, _slurms_word(paths, attempt, cluster), rules, _SECONDS)
    verdict = decide(facts, rules)
    if not verdict.is_known and attempt.verdict is not None and attempt.verdict.is_known:
        verdict = attempt.verdict  # its sources are no longer there
    saved_at = _saved_at(paths, attempt)
    return triage_of_attempt(attempt, facts, verdict, str(paths.main_log), saved_at, _cancel_of(paths, attempt))


def _slurms_word(paths: RunPaths, attempt: Attempt, cluster: str | None) -> SlurmEnd:
    """Return how its job ended and which of its nodes are out of service, as far as Slurm answers."""
    try:
        asked = choose_cluster(cluster, paths)
        slurm = client_for(asked)
        if not may_be_of(attempt, record_of(asked, slurm).name or ""):
            return SlurmEnd(exit_code=attempt.exit_code, signal=attempt.signal)
        end = own_end(attempt, slurm.ends([attempt.job_id]).get(attempt.job_id), recorded(paths))
        wanted = set(attempt.nodes)
        bad = tuple((one.name, one.reason) for one in slurm.nodes() if one.name in wanted and one.is_out_of_service)
    except OpsctlError as error:
        if not isinstance(error, SlurmError) and cluster:
            raise
        message(f"opsctl: Slurm's data is missing: {error}")
        return SlurmEnd(exit_code=attempt.exit_code, signal=attempt.signal)
    state = "" if end is None else end.state
    return SlurmEnd(state, attempt.lost_nodes, attempt.exit_code, attempt.signal, bad_nodes=bad)


def _saved_at(paths: RunPaths, attempt: Attempt) -> datetime | None:
    iteration = attempt.checkpoint_at_end
    return None if iteration is None else saved_at(paths.checkpoints / tag_of(iteration))


def _cancel_of(paths: RunPaths, attempt: Attempt) -> Cancel | None:
    """Return the recorded cancel of its job; None if opsctl did not cancel it, or that cannot be read."""
    if attempt.opened_at is None or attempt.closed_at is None:
        return None
    try:
        cancels = read_cancels(paths)
    except OSError as error:
        message(f"opsctl: who cancelled what cannot be read: {paths.cancels}: {error.strerror or error}")
        return None
    return cancelling(cancels, attempt.display_id, attempt.opened_at, attempt.closed_at)
