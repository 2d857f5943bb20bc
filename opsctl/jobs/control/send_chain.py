"""Submit a chain so that Slurm has it and it is on record, or nothing of it is left."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec

from opsctl.core.account import account_home, account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnasked
from opsctl.core.files.state_files import make_folder, read_text, room_kept, write_back, write_state
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.exclusion import Wanted, keep
from opsctl.jobs import tracked_job
from opsctl.jobs.tracked_job import Absent, TrackedJob, Undecided
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
from opsctl.slurm.job_match import Sent
from opsctl.slurm.types import Job

ID_BEFORE_FIRST_SUBMIT = "made-at-first-submit"
TOKEN_OF_A_PREVIEW = "made-at-submit"
ROOM_BYTES = 32 * 1024
_ONCE_IT_ANSWERS = "opsctl submit again: that refuses if the chain is there"
#: (part of Slurm's message, advice); the first that fits counts, so the longer ones come before the words in them.
_ADVICE = (
    ("federation", "submit on a cluster that is in none, or ask the site to take this one out"),
    (
        "violates accounting",
        "ask for less in [slurm] nodes and time, or another qos (sacctmgr show qos shows the limits)",
    ),
    ("invalid account", "correct [slurm] account in the run file (sacctmgr show associations user=$USER lists yours)"),
    ("qos", "correct [slurm] qos in the run file (sacctmgr show qos lists them)"),
    ("partition", "correct [slurm] partition in the run file (sinfo -s lists them)"),
    ("feature", "correct [slurm] constraint in the run file (sinfo -o '%P %f' lists them)"),
    ("reservation", "correct [slurm] reservation in the run file (scontrol show reservation lists them)"),
    ("time limit", "correct [slurm] time in the run file (sinfo -s shows each partition's limit)"),
    ("node configuration", "correct [slurm] nodes, gpus_per_node and gpu_type in the run file (sinfo -o '%P %D %G')"),
    ("node count", "correct [slurm] nodes in the run file, or --nodes"),
    ("gres", "correct [slurm] gpus_per_node and gpu_type in the run file (sinfo -o '%P %G')"),
    ("tres", "correct [slurm] gpus_per_node and gpu_type in the run file (sinfo -o '%P %G')"),
    ("node name", "correct [slurm] exclude in the run file, or --exclude"),
    ("dependency", "correct --after"),
    ("begin", "correct --begin"),
    ("array", "correct --array, or [array] tasks in the run file"),
    ("account", "correct [slurm] account in the run file (sacctmgr show associations user=$USER lists yours)"),
)


@dataclass(frozen=True)
class ChainOptions:
    """The options of a chain's submission."""

    array: str | None = None  # None: the run file's
    after: str | None = None  # "auto" or a job id
    begin: str | None = None
    exclude: str | None = None
    nodes: int | None = None
    arguments: tuple[str, ...] = ()
    hold: bool = False


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
    options: ChainOptions,
    after: tuple[str, ...],
    how: str,
    published: Revision | None = None,
) -> Submitted:
    """Publish, sbatch, record. If Slurm refuses, all of it is taken back. The caller holds the run's lock.

    how: what submits it, a word of `run.state.chains`. published: the revision that `run` was read from, so that there
    is nothing to publish. An array of more tasks than this Slurm takes becomes several, each behind all before it;
    where Slurm takes the first ones only, OpsctlError names those.
    """
    arrays = pieces(client, options.array or "")
    asked = options.array or "" if len(arrays) > 1 else ""
    done: list[Submitted] = []
    for array in arrays:
        ahead = (*after, *(str(one.chain.chain) for one in done))
        revision = done[0].revision if done else published
        piece = replace(options, array=array)
        try:
            done.append(_send_array(run, cluster, client, piece, ahead, how, revision, asked))
        except OpsctlError as error:
            if not done:
                raise
            there = ", ".join(str(one.chain.chain) for one in done)
            raise type(error)(
                f"submitted {there}, {len(done)} of {len(arrays)} arrays; then no more: {error}"
            ) from None
    return replace(done[0], further=tuple(done[1:]))


def settle(paths: RunPaths, queue: Iterable[Job]) -> Chain | None:
    """Record the submission that was cut off, if it is in `queue` after all, and return it.

    The caller holds the run's lock, so that no other process is submitting.
    """
    chain = chains.read_submitting(paths)
    if chain is None:
        return None
    job = tracked_job.find(_tracked(chain), queue)
    chain = msgspec.structs.replace(chain, chain=job.array_job_id) if job is not None else None
    if chain is not None and all(known.token != chain.token for known in chains.read_chains(paths)):
        chains.append_chain(paths, chain)
    chains.clear_submitting(paths)
    return chain


def _tracked(chain: Chain) -> TrackedJob:
    return TrackedJob(Sent(f"opsctl submit={chain.token}", chain.user), chain.submitted_at, chain.chain)


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
    options: ChainOptions,
    after: tuple[str, ...],
    how: str,
    published: Revision | None,
    asked: str,
) -> Submitted:
    """Submit one array. asked: the array that it is a piece of; empty where it is the whole."""
    paths = run.paths
    listed, warnings = _stay_off(run, client, options)
    with ExitStack() as revision_undo, ExitStack() as record_undo:
        kill_switch.arm(paths, run.file.run.group)
        alerts.keep_room(paths)
        make_folder(paths.output, paths.job_outputs)
        before = newest(paths)
        revision = published or publish(run, note="submit")
        is_new = published is None and (before is None or before.number != revision.number)
        if is_new:
            revision_undo.callback(withdraw, revision)
        run_id = read_run_id(paths)
        if run_id is None:
            record_undo.callback(forget_run_id, paths)
            run_id = make_run_id(paths)
        chain = new_chain(run, options, after, revision.name, chains.new_token(), how, listed, asked)
        script = batch_text(run, cluster, chain, run_id, options.hold)
        record_undo.callback(chains.clear_submitting, paths)
        chains.write_submitting(paths, chain)
        record_undo.callback(write_back, paths.output, paths.cluster, read_text(paths.output, paths.cluster))
        write_state(paths.output, paths.cluster, record_of(cluster, client))
        # What Slurm has taken must not fail to be recorded for want of disk.
        with room_kept(paths.output, paths.state, ROOM_BYTES):
            try:
                chain_id = tracked_job.send(client, script, _tracked(chain), "the chain", _ONCE_IT_ANSWERS)
            except (Undecided, KeyboardInterrupt):  # Slurm may have it: the next command settles it
                revision_undo.pop_all()
                record_undo.pop_all()
                raise
            except Absent:  # a request that is still on its way would be found by its record
                record_undo.pop_all()
                raise
            except SlurmUnasked:
                raise
            except SlurmError as error:
                raise SlurmError(f"{error}; {way_out(str(error))}; nothing was submitted") from None
            revision_undo.pop_all()
            record_undo.pop_all()
    chain = msgspec.structs.replace(chain, chain=chain_id)
    _record(paths, chain)
    return Submitted(chain, revision, is_new, warnings)


def _stay_off(run: ExpandedRun, client: SlurmClient, options: ChainOptions) -> tuple[str, tuple[str, ...]]:
    """Return the nodes that the exclusion list keeps out, and warnings. A damaged list stops no submission."""
    try:
        kept = keep(run.paths, client, what_it_wants(run, options))
    except SlurmError:
        raise
    except (OpsctlError, OSError) as error:
        return "", (f"no node is kept out by opsctl exclude list: {error}",)
    return ",".join(kept.excluded), kept.lines


def what_it_wants(run: ExpandedRun, options: ChainOptions) -> Wanted:
    """Return the run's settings that the exclusion list depends on."""
    return Wanted.of(run.file.slurm, run.nodes, options.exclude)


def preview(
    run: ExpandedRun, cluster: Cluster, options: ChainOptions, after: tuple[str, ...] = (), listed: Sequence[str] = ()
) -> str:
    """Return the batch script that would be submitted. Words replace ids that only a submit creates."""
    chain = new_chain(run, options, after, "", TOKEN_OF_A_PREVIEW, listed=",".join(listed))
    return batch_text(run, cluster, chain, recorded(run.paths).run_id or ID_BEFORE_FIRST_SUBMIT)


def batch_text(run: ExpandedRun, cluster: Cluster, chain: Chain, run_id: str, hold: bool = False) -> str:
    """Return the batch script of `chain`."""
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
    options: ChainOptions,
    after: tuple[str, ...],
    revision: str,
    token: str,
    how: str = "",
    listed: str = "",
    asked: str = "",
) -> Chain:
    """Return a chain that Slurm does not know yet."""
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
        array=options.array or "",
        asked=asked,
        after=after,
        arguments=options.arguments,
        nodes=options.nodes,
        exclude=options.exclude,
        own_exclude=",".join(filter(None, (run.file.slurm.exclude, options.exclude))),
        listed=listed,
        begin=options.begin,
        how=how,
    )


def _record(paths: RunPaths, chain: Chain) -> None:
    try:
        chains.append_chain(paths, chain)
    except OSError as error:
        raise OpsctlError(
            f"submitted as {chain.chain}, but {paths.state} cannot be written ({error.strerror}): "
            "fix that, the next opsctl command that submits, revises or cancels will record it"
        ) from None
    chains.clear_submitting(paths)


def way_out(refusal: str) -> str:
    """Return what to type or edit, given Slurm's error message."""
    text = refusal.lower()
    return next((advice for part, advice in _ADVICE if part in text), "correct the run file's [slurm]")
