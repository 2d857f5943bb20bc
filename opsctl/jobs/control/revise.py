"""Publishing an edited run file to the tasks already queued, and replacing them where Slurm has fixed what changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.send_chain import ChainOptions, Submitted, send
from opsctl.jobs.control.submit import check
from opsctl.run.checkpoints.resumption import layout_change
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import LoadedRun
from opsctl.run.state import chains
from opsctl.run.state.chains import Chain
from opsctl.run.state.revisions import (
    Revision,
    changed_values,
    contents,
    digest_of,
    newest,
    publish,
    refuse_to_publish,
    withdraw,
)
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.states import Reason
from opsctl.slurm.types import Job

#: Among changed values: the last checkpoint's layout and the one that it is loaded into.
LAYOUT = "layout"


@dataclass(frozen=True)
class Revised:
    """The effect of a revise, or with a dry run the planned effect."""

    before: Revision | None
    revision: Revision | None  # None: a dry run
    values: dict[str, tuple[Any, Any]]  # table.key or LAYOUT -> (old, new)
    difference: str  # unified, of the revision's files
    replaced: tuple[tuple[int, Submitted | None], ...] = ()  # (old chain, its replacement; None in a dry run)
    warnings: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """True when the files equal those of the newest revision, so that nothing is published."""
        return self.before is not None and not self.difference


def revise(loaded: LoadedRun, cluster: Cluster, resubmit: bool = False, dry_run: bool = False) -> Revised:
    """Publish `loaded` for the queued tasks. A damaged newest revision does not prevent it.

    Raises OpsctlError if Slurm fixed the changed values for queued tasks and `resubmit` is not given, or if another
    user would have to replace these tasks. Slurm is asked only if a value that it fixes has changed.
    """
    checked = check(loaded, ChainOptions())
    run = checked.run
    warnings = checked.warnings
    refuse_to_publish(run)
    before = newest(run.paths)
    if before is not None and before.damage:
        warnings = (*warnings, before.damage)
    if dry_run:
        return _planned(run, cluster, resubmit, warnings)
    with live_jobs.run_lock(run.paths, f"revise {run.file.run.name}", run.file) as opened:
        return _publish(run, cluster, resubmit, (*warnings, *opened))


def _planned(run: ExpandedRun, cluster: Cluster, resubmit: bool, warnings: tuple[str, ...]) -> Revised:
    before, values, difference = _compare(run)
    fixed = live_jobs.fixed_values(run)
    live = live_jobs.snapshot(run.paths, cluster, client_for(cluster)) if fixed else live_jobs.LiveJobs()
    to_replace = _chains_to_replace(run, live.jobs, resubmit)
    replaced = tuple((chain.chain, None) for chain, _ in to_replace)
    warnings += tuple(overlap.warn_of_what_is_fixed_unseen(live.unseen, fixed))
    return Revised(before, None, values, difference, replaced, warnings)


def _publish(run: ExpandedRun, cluster: Cluster, resubmit: bool, warnings: tuple[str, ...]) -> Revised:
    before, values, difference = _compare(run)
    fixed = live_jobs.fixed_values(run)
    replaced: list[tuple[int, Submitted]] = []
    if fixed:
        client = client_for(cluster)
        live = live_jobs.settled(run.paths, cluster, client)
        warnings += tuple(overlap.warn_of_what_is_fixed_unseen(live.unseen, fixed))
        to_replace = _chains_to_replace(run, live.jobs, resubmit)
        if to_replace:
            live_jobs.refuse_to_start(run)
            name = run.file.run.name
            behind = live_jobs.what_to_wait_for(run.paths, name, live, cluster, client, overlap.AUTO)
            replaced = _replace(run, cluster, client, list(behind), to_replace)
    revision = replaced[-1][1].revision if replaced else publish(run, note="revise")
    return Revised(before, revision, values, difference, tuple(replaced), warnings)


def _compare(run: ExpandedRun) -> tuple[Revision | None, dict[str, tuple[Any, Any]], str]:
    before = newest(run.paths)
    files = contents(run)
    if before is None or before.damage:
        return None, {}, files_difference(None, files)
    if before.digest == digest_of(files):
        return before, {}, ""
    changed = changed_values(run, before)
    if (layout := layout_change(run)) is not None:
        changed[LAYOUT] = layout
    return before, changed, files_difference(before, files)


def _chains_to_replace(run: ExpandedRun, jobs: Sequence[Job], resubmit: bool) -> list[tuple[Chain, Job]]:
    """Return (chain, its pending row) in the order of submission; empty when publishing is enough."""
    changed = live_jobs.fixed_changes(run, jobs)
    queued = sorted((job for job in jobs if job.is_pending), key=lambda job: job.array_job_id)
    if not changed:
        return []
    if not resubmit:
        raise OpsctlError(
            f"{', '.join(changed)} changed, which Slurm has fixed for {overlap.describe(queued)}; "
            "nothing was published: opsctl revise --resubmit replaces them, or undo the change"
        )
    others = [job for job in queued if job.user != account_name()]
    if others:
        raise OpsctlError(
            f"{', '.join(changed)} changed, which Slurm has fixed for {overlap.describe(others)}: "
            "only their owner can replace them with opsctl revise --resubmit; nothing was published"
        )
    known = {chain.chain: chain for chain in chains.read_chains(run.paths)}
    missing = [job for job in queued if job.array_job_id not in known]
    if missing:
        raise OpsctlError(
            f"{overlap.describe(missing)}: not recorded in {run.paths.chains}, so its arguments are unknown; "
            "opsctl cancel --queued it and submit again"
        )
    found = [(known[job.array_job_id], job) for job in queued]
    for nodes, one_off in dict.fromkeys((chain.nodes, chain.arguments) for chain, _ in found):
        run.on(nodes).with_arguments(one_off)  # refuses what the edited run no longer goes with
    return found


def _replace(
    run: ExpandedRun,
    cluster: Cluster,
    client: SlurmClient,
    behind: list[str],
    to_replace: Sequence[tuple[Chain, Job]],
) -> list[tuple[int, Submitted]]:
    """Submit the new chains, each behind all that was there before, then cancel what is pending of the old ones.

    An old task that starts meanwhile is waited for like the one that runs: nothing ever runs side by side.
    """
    replaced: list[tuple[int, Submitted]] = []
    with ExitStack() as taken_back:
        for chain, job in to_replace:
            options = ChainOptions(
                array=job.array_task or chain.array,
                begin=chain.begin if job.reason == Reason.BEGIN_TIME else None,
                exclude=chain.exclude,
                nodes=chain.nodes,
                arguments=chain.arguments,
                hold=job.is_held,
            )
            done = send(run, cluster, client, options, tuple(behind), chains.REVISE)
            if done.is_new_revision:
                taken_back.callback(withdraw, done.revision)
            taken_back.callback(client.cancel, [one.chain.chain for one in done.all])
            behind += [str(one.chain.chain) for one in done.all]
            replaced.append((chain.chain, done))
        taken_back.pop_all()
    old = [chain.chain for chain, _ in to_replace]
    try:
        client.cancel(old, pending_only=True)
    except SlurmError as error:
        new = ", ".join(str(done.chain.chain) for _, done in replaced)
        raise OpsctlError(
            f"submitted {new}, but the old tasks could not be cancelled ({error}); "
            f"nothing runs side by side, but type: scancel --state=PENDING {' '.join(map(str, old))}"
        ) from None
    return replaced


def files_difference(published: Revision | None, files: Mapping[str, str]) -> str:
    """Unified differences, file by file, from the published revision to `files`; empty when there are none.

    Raises OpsctlError for a damaged revision.
    """
    pieces: list[str] = []
    for name, text in files.items():
        before = _text(published, name)
        if before != text:
            label = f"{published.name}/{name}" if published else "/dev/null"
            pieces += difflib.unified_diff(before.splitlines(True), text.splitlines(True), label, f"run file/{name}")
    return "".join(pieces)


def _text(published: Revision | None, name: str) -> str:
    if published is None:
        return ""
    if published.damage:
        raise OpsctlError(published.damage)
    return published.texts.get(name, "")
