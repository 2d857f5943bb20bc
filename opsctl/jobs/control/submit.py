"""Submitting a chain: one at a time per run, never beside a live one."""

from __future__ import annotations

from dataclasses import replace

from opsctl.core.files.state_files import locked
from opsctl.diagnosis.nodes.exclusion import excluded_now
from opsctl.jobs.control import live_jobs, other_writers, overlap
from opsctl.jobs.control.request import Checked, Wish, check
from opsctl.jobs.control.send_chain import Submitted, pieces, preview, send, what_it_wants
from opsctl.run.attempts.hidden_jobs import sees_others
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.locate import remember_run
from opsctl.run.environments.changes import changes_since_last
from opsctl.run.state.chains import SUBMIT
from opsctl.run.state.group_folder import LOCK_WAIT_S, explained_disk_errors, open_output
from opsctl.run.state.identity import settled_identity
from opsctl.run.state.register import register
from opsctl.run.state.rehearsals import never_rehearsed
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster


def submit(loaded: LoadedRun, cluster: Cluster, wish: Wish) -> Submitted:
    """Submit a chain of `loaded` to `cluster`.

    Raises RunFileError and UsageError for what cannot run, OpsctlError when the run is live, finished or stopped by its
    kill switch, SlurmError with Slurm's refusal, SlurmUnreachable when Slurm does not answer.
    """
    asked = check(loaded, wish)
    run = asked.run
    paths, name = run.paths, run.file.run.name
    # Before the lock: an environment script takes its time.
    changed = (*changes_since_last(run, is_for_own_job=True), *never_rehearsed(run.file, run.paths))
    with explained_disk_errors(paths):
        closed = open_output(paths, run.file.run.group)
        with (
            locked(paths.output, paths.lock, LOCK_WAIT_S, f"submit {name}"),
            settled_identity(paths) as news,
        ):
            client = client_for(cluster)
            after, more = _decided(asked, live_jobs.settle_and_look(paths, cluster, client), cluster, client)
            done = send(run, cluster, client, asked.wish, after, SUBMIT)
    remember_run(name, run.path)
    register(name, run.path, paths)
    return replace(done, warnings=(*asked.warnings, *changed, *closed, *news, *more, *done.warnings))


def submit_dry(loaded: LoadedRun, cluster: Cluster, wish: Wish) -> tuple[str, tuple[str, ...]]:
    """The script that `submit` would hand to Slurm, and its warnings, after the same refusals; changes nothing.

    Of an array that this Slurm takes only in pieces it is the first piece's.
    """
    asked = check(loaded, wish)
    client = client_for(cluster)
    after, more = _decided(asked, live_jobs.look(asked.run.paths, cluster, client), cluster, client)
    run = asked.run
    warnings = (*asked.warnings, *changes_since_last(run), *never_rehearsed(run.file, run.paths), *more)
    listed = excluded_now(run.paths, client, what_it_wants(run, asked.wish))
    first, *rest = pieces(client, asked.wish.array or "")
    if rest:
        said = f"Slurm takes so many tasks only in pieces: {', '.join(rest)} would follow, each behind all before it"
        warnings = (*warnings, said)
    return preview(asked.run, cluster, replace(asked.wish, array=first), after, listed), warnings


def _decided(
    asked: Checked, seen: live_jobs.Seen, cluster: Cluster, client: SlurmClient
) -> tuple[tuple[str, ...], list[str]]:
    """What the chain waits for, and warnings. Raises OpsctlError when it may not be submitted now."""
    live_jobs.refuse_to_start(asked.chain)
    paths, name, wanted = asked.run.paths, asked.run.file.run.name, asked.wish.after
    after = other_writers.what_to_wait_for(paths, name, seen, cluster, client, wanted)
    live_jobs.refuse_what_slurm_has_fixed(asked.run, seen.live)
    warnings = overlap.warn_of_waiting_unseen(seen.unseen)
    if seen.unseen:
        warnings += overlap.warn_of_what_is_fixed_unseen(seen.unseen, live_jobs.fixed_values(asked.run))
    nothing = overlap.warn_of_nothing_to_wait_for(
        asked.wish.after, seen.queue, seen.unseen, lambda: not sees_others(seen.queue) and client.hides_others_jobs()
    )
    return after, [*warnings, *([nothing] if nothing else [])]
