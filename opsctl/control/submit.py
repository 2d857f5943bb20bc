"""Submitting a chain: one at a time per run, never beside a live one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from opsctl.attempts.unseen import sees_others
from opsctl.control import live, overlap, writer
from opsctl.control.request import Checked, Wish, check
from opsctl.control.sending import Submitted, pieces, preview, send, what_it_wants
from opsctl.environments.since import changes_since_last
from opsctl.errors import OpsctlError
from opsctl.nodes.keeping import excluded_now
from opsctl.records.chains import SUBMIT
from opsctl.records.group_folder import open_output, way_in
from opsctl.records.identity import settled_identity
from opsctl.records.locate import remember_run
from opsctl.records.register import register
from opsctl.records.rehearsals import never_rehearsed
from opsctl.records.state_files import FULL_DISK, locked
from opsctl.runs.load import LoadedRun
from opsctl.runs.paths import RunPaths
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster

#: How long a command waits for somebody else's submit, revise or cancel of the same run, in seconds.
LOCK_WAIT_S = 20.0


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
            after, more = _decided(asked, live.settle_and_look(paths, cluster, client), cluster, client)
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
    after, more = _decided(asked, live.look(asked.run.paths, cluster, client), cluster, client)
    run = asked.run
    warnings = (*asked.warnings, *changes_since_last(run), *never_rehearsed(run.file, run.paths), *more)
    listed = excluded_now(run.paths, client, what_it_wants(run, asked.wish))
    first, *rest = pieces(client, asked.wish.array or "")
    if rest:
        said = f"Slurm takes so many tasks only in pieces: {', '.join(rest)} would follow, each behind all before it"
        warnings = (*warnings, said)
    return preview(asked.run, cluster, replace(asked.wish, array=first), after, listed), warnings


def _decided(
    asked: Checked, seen: live.Seen, cluster: Cluster, client: SlurmClient
) -> tuple[tuple[str, ...], list[str]]:
    """What the chain waits for, and warnings. Raises OpsctlError when it may not be submitted now."""
    live.refuse_to_start(asked.chain)
    paths, name, wanted = asked.run.paths, asked.run.file.run.name, asked.wish.after
    after = writer.what_to_wait_for(paths, name, seen, cluster, client, wanted)
    live.refuse_what_slurm_has_fixed(asked.run, seen.live)
    warnings = overlap.warn_of_waiting_unseen(seen.unseen)
    if seen.unseen:
        warnings += overlap.warn_of_what_is_fixed_unseen(seen.unseen, live.fixed_values(asked.run))
    nothing = overlap.warn_of_nothing_to_wait_for(
        asked.wish.after, seen.queue, seen.unseen, lambda: not sees_others(seen.queue) and client.hides_others_jobs()
    )
    return after, [*warnings, *([nothing] if nothing else [])]


@contextlib.contextmanager
def explained_disk_errors(paths: RunPaths, undone: str = "nothing was submitted") -> Iterator[None]:
    """A full disk, or a folder of somebody else's, as one line that says where, and what was left undone."""
    try:
        yield
    except PermissionError as error:
        where = error.filename or paths.output
        raise OpsctlError(f"may not write {where}: permission denied; {way_in(paths.output)}") from None
    except OSError as error:
        full = FULL_DISK.get(error.errno or 0)
        if not full:
            raise
        raise OpsctlError(f"{full} at {paths.output}: {undone}; free some space and try again") from None
