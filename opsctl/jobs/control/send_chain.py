"""Handing a chain to Slurm so that it is either taken and on record, or refused and nothing is left of it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import msgspec

from opsctl.core.account import account_home, account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.core.files.state_files import make_folder, read_text, room_kept, write_back, write_state
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.exclusion import Wanted, keep
from opsctl.jobs.control.refusals import way_out
from opsctl.jobs.control.request import Wish
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.render.batch import ChainRequest, batch_script
from opsctl.run.render.templates import exports_of
from opsctl.run.state import alerts, chains, kill_switch
from opsctl.run.state.chains import Chain, recorded
from opsctl.run.state.chosen_cluster import record_of
from opsctl.run.state.identity import forget_run_id, make_run_id, read_run_id
from opsctl.run.state.revisions import Revision, newest, publish, withdraw
from opsctl.slurm.arrays import largest_task, split_array
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster

ID_BEFORE_FIRST_SUBMIT = "made-at-first-submit"
TOKEN_OF_A_PREVIEW = "made-at-submit"
ROOM_BYTES = 32 * 1024


@dataclass(frozen=True)
class Submitted:
    """A chain that Slurm has taken."""

    chain: Chain
    revision: Revision
    is_new_revision: bool
    warnings: tuple[str, ...] = ()
    further: tuple[Submitted, ...] = ()  # behind it, where one array would have had more tasks than this Slurm takes

    @property
    def all(self) -> tuple[Submitted, ...]:
        """It and those behind it."""
        return self, *self.further


def send(
    run: ExpandedRun,
    cluster: Cluster,
    client: SlurmClient,
    wish: Wish,
    after: tuple[str, ...],
    how: str,
    published: Revision | None = None,
) -> Submitted:
    """Publish, sbatch, record; if Slurm refuses, all of it is taken back. The caller holds the run's lock.

    how: what submits it, a word of `records.chains`. published: the revision that `run` was read from, so that there is
    nothing to publish. What nodes to stay off is judged anew. An array of more tasks than this Slurm takes becomes
    several, each behind all before it; where Slurm takes the first ones only, OpsctlError names those.
    """
    array = wish.array or ""
    first, *rest = pieces(client, array)
    asked = array if rest else ""
    done = [_send_array(run, cluster, client, replace(wish, array=first), after, how, published, asked)]
    for piece in rest:
        ahead = (*after, *(str(one.chain.chain) for one in done))
        further = replace(wish, array=piece)
        try:
            done.append(_send_array(run, cluster, client, further, ahead, how, done[0].revision, asked))
        except OpsctlError as error:
            there = ", ".join(str(one.chain.chain) for one in done)
            said = f"submitted {there}, {len(done)} of {1 + len(rest)} arrays"
            raise type(error)(f"{said}; then no more: {error}") from None
    return replace(done[0], further=tuple(done[1:]))


def pieces(client: SlurmClient, array: str) -> tuple[str, ...]:
    """`array`, or several with as many tasks, where it has larger numbers than this Slurm takes."""
    try:
        largest = largest_task(client.configuration())
    except SlurmError:  # where people may not ask for it; what is asked next says it if Slurm is gone
        largest = None
    return split_array(array, largest) if largest else (array,)


def _send_array(
    run: ExpandedRun,
    cluster: Cluster,
    client: SlurmClient,
    wish: Wish,
    after: tuple[str, ...],
    how: str,
    published: Revision | None,
    asked: str,
) -> Submitted:
    """One array. asked: what it is a piece of; empty where it is the whole."""
    paths = run.paths
    listed, warnings = _stay_off(run, client, wish)
    with ExitStack() as taken_back, ExitStack() as forgotten:
        kill_switch.arm(paths, run.file.run.group)
        alerts.keep_room(paths)
        make_folder(paths.output, paths.job_outputs)
        before = newest(paths)
        revision = published or publish(run, note="submit")
        is_new = published is None and (before is None or before.number != revision.number)
        if is_new:
            taken_back.callback(withdraw, revision)
        run_id = read_run_id(paths)
        if run_id is None:
            forgotten.callback(forget_run_id, paths)
            run_id = make_run_id(paths)
        chain = new_chain(run, wish, after, revision.name, chains.new_token(), how, listed)
        chain = msgspec.structs.replace(chain, asked=asked)
        script = batch_text(run, cluster, chain, run_id, wish.hold)
        forgotten.callback(chains.clear_submitting, paths)
        chains.write_submitting(paths, chain)
        forgotten.callback(write_back, paths.output, paths.cluster, read_text(paths.output, paths.cluster))
        write_state(paths.output, paths.cluster, record_of(cluster, client))
        # What Slurm has taken must not fail to be recorded for want of disk.
        with room_kept(paths.output, paths.state, ROOM_BYTES), _kept_by_outcome(taken_back, forgotten):
            chain = msgspec.structs.replace(chain, chain=_sbatch(client, script, chain.token))
    _record(paths, chain)
    return Submitted(chain, revision, is_new, warnings)


def _stay_off(run: ExpandedRun, client: SlurmClient, wish: Wish) -> tuple[str, tuple[str, ...]]:
    """The nodes that the exclusion list keeps the run off, and what is to be said of it. What is wrong with the list
    is among that, and stops no submission.
    """
    try:
        kept = keep(run.paths, client, what_it_wants(run, wish))
    except SlurmError:
        raise
    except (OpsctlError, OSError) as error:
        return "", (f"no node is kept out by opsctl exclude list: {error}",)
    return ",".join(kept.excluded), kept.lines


def what_it_wants(run: ExpandedRun, wish: Wish) -> Wanted:
    """What of a run's settings the exclusion list goes by."""
    return Wanted.of(run.file.slurm, run.nodes, wish.exclude)


def _own_exclude(run: ExpandedRun, wish: Wish) -> str:
    """What the run file and the command keep out, as sbatch takes it."""
    return ",".join(filter(None, (run.file.slurm.exclude, wish.exclude)))


def preview(
    run: ExpandedRun, cluster: Cluster, wish: Wish, after: tuple[str, ...] = (), listed: Sequence[str] = ()
) -> str:
    """The batch script that would be submitted; ids that only a submit makes are said in words."""
    chain = new_chain(run, wish, after, "", TOKEN_OF_A_PREVIEW, listed=",".join(listed))
    return batch_text(run, cluster, chain, recorded(run.paths).run_id or ID_BEFORE_FIRST_SUBMIT)


def batch_text(run: ExpandedRun, cluster: Cluster, chain: Chain, run_id: str, hold: bool = False) -> str:
    """The batch script of `chain`."""
    request = ChainRequest(
        array=chain.array,
        run_id=run_id,
        token=chain.token,
        submitted_at=chain.submitted_at,
        python=sys.executable,
        folder=chain.work_dir,
        nodes=chain.nodes,
        exclude=",".join(filter(None, (chain.exclude, chain.listed))) or None,
        begin=chain.begin,
        hold=hold,
        after=chain.after,
        arguments=chain.arguments,
        exports=exports_of(os.environ, account_home()),
    )
    return batch_script(run, cluster, request)


def new_chain(
    run: ExpandedRun,
    wish: Wish,
    after: tuple[str, ...],
    revision: str,
    token: str,
    how: str = "",
    listed: str = "",
) -> Chain:
    """A chain that Slurm does not know yet."""
    return Chain(
        chain=0,
        token=token,
        submitted_at=now().replace(microsecond=0),
        user=account_name(),
        host=socket.gethostname(),
        name=run.file.run.name,
        work_dir=str(run.folder),
        output=str(run.paths.output),
        revision=revision,
        array=wish.array or "",
        after=after,
        arguments=wish.arguments,
        nodes=wish.nodes,
        exclude=wish.exclude,
        own_exclude=_own_exclude(run, wish),
        listed=listed,
        begin=wish.begin,
        how=how,
    )


class _Undecided(SlurmUnreachable):
    """Whether Slurm has the chain cannot be known now."""


def _sbatch(client: SlurmClient, script: str, token: str) -> int:
    """The array's id. Raises SlurmError with the way out when Slurm refused, _Undecided when that is not known."""
    try:
        return client.submit(script)
    except SlurmUnasked:
        raise
    except SlurmUnreachable as error:
        return _looked_up(client, token, error)
    except SlurmError as error:
        raise SlurmError(f"{error}; {way_out(str(error))}; nothing was submitted") from None


def _looked_up(client: SlurmClient, token: str, error: SlurmUnreachable) -> int:
    """The id of a submission whose answer never came."""
    try:
        jobs = client.jobs(users=[account_name()])  # a moment, where all of a full queue take longer than is left
    except SlurmUnreachable:
        raise _Undecided(
            "Slurm stopped answering while it was asked to take the chain: whether it has it is not known; "
            "once it answers, opsctl submit again: that refuses if the chain is there"
        ) from None
    for job in jobs:
        if chains.token_of(job) == token:
            return job.array_job_id
    raise SlurmUnreachable(f"nothing was submitted, the queue does not have it: {error}") from None


@contextmanager
def _kept_by_outcome(taken_back: ExitStack, forgotten: ExitStack) -> Iterator[None]:
    """Undo only what the outcome allows.

    A refusal undoes everything. When nobody can know whether Slurm has the chain, nothing is undone: whoever looks next
    settles it. When Slurm answers and does not have it, the revision goes, but what a request still on its way would be
    recognised by stays.
    """
    try:
        yield
    except (_Undecided, KeyboardInterrupt):
        taken_back.pop_all()
        forgotten.pop_all()
        raise
    except SlurmUnasked:
        raise
    except SlurmUnreachable:
        forgotten.pop_all()
        raise
    taken_back.pop_all()
    forgotten.pop_all()


def _record(paths: RunPaths, chain: Chain) -> None:
    try:
        chains.append_chain(paths, chain)
    except OSError as error:
        raise OpsctlError(
            f"submitted as {chain.chain}, but {paths.state} cannot be written ({error.strerror}): "
            "mend that, the next opsctl command that submits, revises or cancels will record it"
        ) from None
    chains.clear_submitting(paths)
