"""Submit a chain of a run file: one at a time per run, never beside a live one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opsctl.core.account import membership_problem
from opsctl.core.errors import RunFileError, UsageError
from opsctl.diagnosis.nodes.exclusion import excluded_now
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.send_chain import ChainOptions, Submitted, pieces, preview, send, what_it_wants
from opsctl.run.checkpoints.adopted import existing_problem
from opsctl.run.checkpoints.resumption import resumption_problem
from opsctl.run.config.checks import check_run, margin_findings
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.locate import remember_run
from opsctl.run.config.program import program_of
from opsctl.run.logs.measurements import measured
from opsctl.run.planning.costs import with_measured
from opsctl.run.planning.fewer_nodes import fewer_nodes_problem
from opsctl.run.state.chains import SUBMIT
from opsctl.run.state.register import register
from opsctl.run.state.revisions import contents, is_published, refuse_to_publish
from opsctl.slurm.arrays import one_at_a_time
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster


@dataclass(frozen=True)
class Checked:
    """A chain that can be submitted as far as is known without Slurm."""

    options: ChainOptions  # its array filled in
    run: ExpandedRun  # what is published
    chain: ExpandedRun  # what the chain trains: the same, on its own nodes and with its one-off arguments
    warnings: tuple[str, ...]


def submit(loaded: LoadedRun, cluster: Cluster, options: ChainOptions) -> Submitted:
    """Submit a chain of `loaded` to `cluster`.

    Raises RunFileError and UsageError for what cannot run, OpsctlError when the run is live, finished or stopped by its
    kill switch, SlurmError with Slurm's refusal, SlurmUnreachable when Slurm does not answer.
    """
    checked = check(loaded, options)
    run, name = checked.run, checked.run.file.run.name
    with live_jobs.run_lock(run.paths, f"submit {name}", run.file) as opened:
        client = client_for(cluster)
        live = live_jobs.settled(run.paths, cluster, client)
        after, more = _decide(checked, live, cluster, client)
        done = send(run, cluster, client, checked.options, after, SUBMIT)
    remember_run(name, run.path)
    register(name, run.path, run.paths)
    return replace(done, warnings=(*checked.warnings, *opened, *more, *done.warnings))


def submit_dry(loaded: LoadedRun, cluster: Cluster, options: ChainOptions) -> tuple[str, tuple[str, ...]]:
    """Return the script that `submit` would hand to Slurm, and its warnings, after the same refusals; change nothing.

    Of an array that this Slurm takes only in pieces it is the first piece's.
    """
    checked = check(loaded, options)
    run, client = checked.run, client_for(cluster)
    after, more = _decide(checked, live_jobs.snapshot(run.paths, cluster, client), cluster, client)
    warnings = [*checked.warnings, *more]
    listed = excluded_now(run.paths, client, what_it_wants(run, checked.options))
    first, *rest = pieces(client, checked.options.array or "")
    if rest:
        warnings.append(
            f"Slurm takes so many tasks only in pieces: {', '.join(rest)} would follow, each behind all before it"
        )
    return preview(run, cluster, replace(checked.options, array=first), after, listed), tuple(warnings)


def check(loaded: LoadedRun, options: ChainOptions, files: bool = True) -> Checked:
    """Check everything that is known without Slurm: first the run file, then this machine, then the measured times.

    files: False lets a run through whose data, group or checkpoint is not here, with a warning. Raises RunFileError and
    UsageError for what cannot run, OpsctlError where only the run's owner may publish it.
    """
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes {options.nodes}: expected 1 or more")
    array = one_at_a_time(options.array or loaded.file.array.tasks)
    expanded, warnings = check_run(loaded, options.nodes, files, margin=False)
    run, chain = expanded.on(None), expanded.with_arguments(options.arguments)
    contents(run)
    if files and not is_published(run):
        refuse_to_publish(run)
    group, resumes = chain.file.run.group, resumption_problem(chain)
    problems = (
        membership_problem(group) if group is not None else None,
        f"the training would not resume: {resumes}" if resumes else None,
        existing_problem(chain.paths, program) if (program := program_of(chain.file, loaded.folder)) else None,
        fewer_nodes_problem(chain.file, chain.arguments, chain.options),
    )
    found = [problem for problem in problems if problem]
    if files and found:
        raise RunFileError(f"{loaded.path}: {found[0]}")
    expect = with_measured(loaded.file.expect, measured(loaded.paths))
    too_short, slow = margin_findings(loaded.file.slurm, expect, expanded.options)
    if too_short:
        raise RunFileError(f"{loaded.path}: {too_short[0]}")
    return Checked(replace(options, array=array), run, chain, (*warnings, *slow, *found))


def _decide(
    checked: Checked, live: live_jobs.LiveJobs, cluster: Cluster, client: SlurmClient
) -> tuple[tuple[str, ...], list[str]]:
    """Return what the chain waits for, and warnings. Raises OpsctlError when it may not be submitted now."""
    live_jobs.refuse_to_start(checked.chain)
    paths, name, wanted = checked.run.paths, checked.run.file.run.name, checked.options.after
    after = live_jobs.what_to_wait_for(paths, name, live, cluster, client, wanted)
    live_jobs.refuse_what_slurm_has_fixed(checked.run, live.jobs)
    warnings = overlap.warn_of_waiting_unseen(live.unseen)
    if live.unseen:
        warnings += overlap.warn_of_what_is_fixed_unseen(live.unseen, live_jobs.fixed_values(checked.run))
    return after, [*warnings, *overlap.warn_of_nothing_to_wait_for(wanted, live.queue, live.unseen)]
