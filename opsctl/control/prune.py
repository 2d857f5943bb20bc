"""Pruning: checkpoints that the run's policy does not keep go, on record, also beside a training that saves.

What goes is looked at, then renamed under the locks that submits, rollbacks and publishing need, to a name that nobody
loads, and removed afterwards without any lock. Killed at any moment it leaves whole checkpoints, and what was renamed
already for the next prune to remove.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.account import account_and_host
from opsctl.checkpoints.backups import BackedUp, digest_here, read_backups, where_full
from opsctl.checkpoints.prunes import Pruned, append_prune
from opsctl.checkpoints.retention import Kept, Progress, Verdict, verdicts
from opsctl.checkpoints.set_aside import refuse_unfinished
from opsctl.checkpoints.which import mark_of
from opsctl.control.submit import LOCK_WAIT_S
from opsctl.errors import OpsctlError, file_problem
from opsctl.moments import now
from opsctl.records import lease
from opsctl.records.chains import read_chains
from opsctl.records.group_folder import way_in
from opsctl.records.identity import settle_identity
from opsctl.records.reading import being_read
from opsctl.records.run_view import RunView
from opsctl.records.state_files import FULL_DISK, fsync_folder, locked
from opsctl.records.trusted import listed_within, opened_folder
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import RetentionTable
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import Manifest, checkpoint_folders, fault_of, iteration_of, latest_folder, read_manifest
from trainer.formats.resumable import NO_OPTIMIZER
from trainer.recipe.options import Options, OptionsError
from trainer.recipe.schedule import samples_to_train

#: What a prune has taken away is called so until it is removed. A save clears away only what begins with `.tmp-`.
GOING = ".pruned-"
#: Chains whose one-off arguments may name a checkpoint that one of their tasks is loading.
_LAST_CHAINS = 10


@dataclass(frozen=True)
class Seen:
    """A checkpoint as a prune finds it."""

    kept: Kept
    folder: Path
    mark: str  # what is renamed has to be what was judged
    bytes: int
    backed_up: tuple[str, ...] = ()  # where this very one is whole, as the ledger says


@dataclass(frozen=True)
class Plan:
    """What a prune would do."""

    verdicts: tuple[Verdict, ...]
    seen: tuple[Seen, ...]  # in the same order
    latest: int
    leftovers: tuple[str, ...]  # of a prune that was cut off
    warnings: tuple[str, ...] = ()

    @property
    def going(self) -> list[Seen]:
        """What may go, oldest first."""
        return [one for one, verdict in zip(self.seen, self.verdicts, strict=True) if verdict.goes]


@dataclass(frozen=True)
class Done:
    """What a prune did."""

    plan: Plan
    removed: tuple[int, ...]  # iterations
    problems: tuple[str, ...]  # what could not be taken or removed


def plan_prune(run: RunView) -> Plan:
    """What of the run's checkpoints may go. Raises OpsctlError wherever that is not sure."""
    policy, warnings = _policy(run)
    root = run.paths.checkpoints
    try:
        latest = latest_folder(root)
        if latest is not None and (fault := fault_of(latest)):
            raise OpsctlError(f"nothing is pruned: the latest is not complete: {fault}")
        ledger = read_backups(run.paths)
        seen = [_seen(run.paths, folder, ledger) for folder in reversed(checkpoint_folders(root))]
    except CheckpointError as error:
        raise OpsctlError(f"nothing is pruned: {error}") from None
    except OSError as error:
        raise OpsctlError(f"nothing is pruned: {file_problem(error, run.paths.backups)}") from None
    if latest is None:
        return Plan((), (), 0, ())
    reached = iteration_of(latest.name)
    if reached is None:  # a save on a file system that cannot swap names was cut off: the next save settles it
        raise OpsctlError(f"nothing is pruned: the latest is {latest.name}, which a save has left in the middle")
    samples, loading = _told(run)
    progress = Progress(reached, samples, loading, _being_read(run.paths))
    backed_up = {one.kept.iteration for one in seen if one.backed_up}
    decided = verdicts([one.kept for one in seen], policy, progress, backed_up.__contains__)
    return Plan(tuple(decided), tuple(seen), reached, _leftovers(run.paths), warnings)


def prune(run: RunView, say: Callable[[str], None], lease_wait_s: float = lease.LOCK_WAIT_S) -> Done:
    """Take away what may go, and what a prune that was cut off has left. say: told of each checkpoint that is gone.

    Raises OpsctlError where it is not sure what may go, or nothing could be taken.
    """
    paths, name = run.paths, run.table.name
    try:
        with locked(paths.output, paths.lock, LOCK_WAIT_S, f"prune {name}"):
            settle_identity(paths)
            refuse_unfinished(paths)
            plan = plan_prune(run)
            problems, unrecorded = _rename(paths, name, plan, lease_wait_s) if plan.going else ([], [])
    except OSError as error:
        raise OpsctlError(f"cannot prune {name}: {_explained(error, paths)}") from None
    gone, failed = _remove(paths, say)
    for one in unrecorded:  # the disk was full, and has room now
        with contextlib.suppress(OSError):
            append_prune(paths, one)
    return Done(plan, tuple(gone), (*problems, *failed))


def _policy(run: RunView) -> tuple[RetentionTable, tuple[str, ...]]:
    """What is published counts, as for everything that others' tasks and crons do; before that the run file."""
    written = run.loaded.file.retention if run.loaded else None
    revision = run.revision
    policy, warnings = written, ()  # type: RetentionTable | None, tuple[str, ...]
    if revision is not None:
        policy = revision.file.retention
        is_other = run.loaded is not None and written != policy
        warnings = ("the run file's [retention] is not what is published: opsctl revise publishes it",) * is_other
    if policy is None:
        hint = f" ({warnings[0]})" if warnings else ""
        raise OpsctlError(
            f"nothing is pruned: {run.table.name} has no [retention], which says what stays; "
            f"an empty table [retention] keeps the usual{hint}"
        )
    return policy, warnings


def _told(run: RunView) -> tuple[int | None, frozenset[int]]:
    """How many samples the training has, and which checkpoints its tasks are told to load."""
    try:
        if run.revision is None:
            return None, frozenset()
        chains = read_chains(run.paths)[-_LAST_CHAINS:]
        own = (run.revision.options(chain.arguments, chain.nodes) for chain in chains)
        all_options = [run.revision.options(), *own]
    except OptionsError as error:
        raise OpsctlError(f"nothing is pruned: what is trained cannot be told: {error}") from None
    steps = [one["load_step"] for one in all_options if "load_step" in one]
    return _samples(all_options[0]), frozenset(step for step in steps if step is not None)


def _being_read(paths: RunPaths) -> frozenset[int]:
    try:
        return frozenset(being_read(paths))
    except OSError as error:
        raise OpsctlError(f"nothing is pruned: who reads a checkpoint: {file_problem(error, paths.reading)}") from None


def _samples(options: Options) -> int | None:
    try:
        return samples_to_train(options)
    except (TypeError, ValueError):  # no length, or no batch size to count it by
        return None


def _seen(paths: RunPaths, folder: Path, ledger: list[BackedUp]) -> Seen:
    iteration = iteration_of(folder.name)
    assert iteration is not None, "it is called like a checkpoint"
    try:
        mark = mark_of(paths.output, folder)
    except OSError as error:  # a link, or somebody else's: not ours to judge
        return Seen(Kept(iteration, 0, problem=str(error.strerror)), folder, "", 0)
    problem, manifest = fault_of(folder), None
    if problem is None:
        manifest = read_manifest(folder)
    backed_up = tuple(where_full(ledger, iteration, digest_here(folder)))
    return Seen(_kept(iteration, problem, manifest), folder, mark, _bytes(manifest), backed_up)


def _kept(iteration: int, problem: str | None, manifest: Manifest | None) -> Kept:
    if manifest is None:
        return Kept(iteration, 0, problem=problem or "no manifest")
    is_full = manifest.layout.get("optimizer") != NO_OPTIMIZER
    return Kept(iteration, manifest.consumed_train_samples, is_full, manifest.pinned)


def _bytes(manifest: Manifest | None) -> int:
    return sum(file.bytes for file in manifest.files.values()) if manifest else 0


def _rename(paths: RunPaths, name: str, plan: Plan, wait_s: float) -> tuple[list[str], list[Pruned]]:
    """Let what goes be called what nobody loads; returns what stays and why, and what is not on record.

    Whoever publishes has to wait meanwhile, and what has changed since it was judged stays.
    """
    problems, unrecorded = [], []
    with lease.publishing_held_off(paths, wait_s) as is_sure:
        if not is_sure and lease.look(paths).holder is not None:
            raise OpsctlError(f"nothing is pruned: {name} is trained, and the lease's lock is not to be had")
        try:
            latest = latest_folder(paths.checkpoints)
        except CheckpointError as error:
            raise OpsctlError(f"nothing is pruned: {error}") from None
        reached = iteration_of(latest.name) if latest else None
        if reached is None or reached < plan.latest:
            raise OpsctlError("nothing is pruned: the latest went back meanwhile: look again")
        for one in plan.going:
            if one.kept.iteration == reached:
                problems.append(f"{one.folder.name} is the latest now, and stays")
                continue
            pruned = Pruned(one.kept.iteration, one.bytes, account_and_host(), now().replace(microsecond=0))
            try:
                if one.kept.iteration in being_read(paths):
                    problems.append(f"{one.folder.name} is being read now, and stays")
                    continue
                if not _put_on_record(paths, pruned):
                    unrecorded.append(pruned)
                if not _take(paths, one):
                    problems.append(f"{one.folder.name} is another one now, and stays")
            except OSError as error:
                problems.append(f"{one.folder.name} stays: {_explained(error, paths)}")
    fsync_folder(paths.output, paths.checkpoints)
    return problems, unrecorded


def _put_on_record(paths: RunPaths, pruned: Pruned) -> bool:
    """A full disk takes no record, and is what a prune is for: whether it did. Raises OSError for anything else."""
    try:
        append_prune(paths, pruned)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        return False
    return True


def _take(paths: RunPaths, one: Seen) -> bool:
    """Rename it, if it is what was judged. Raises OSError."""
    if mark_of(paths.output, one.folder) != one.mark:
        return False
    with opened_folder(paths.output, paths.checkpoints) as (root, _):
        aside = f"{GOING}{one.folder.name}.{secrets.token_hex(4)}"
        os.rename(one.folder.name, aside, src_dir_fd=root, dst_dir_fd=root)
    return True


def _leftovers(paths: RunPaths) -> tuple[str, ...]:
    try:
        with opened_folder(paths.output, paths.checkpoints) as (root, _):
            return tuple(name for name in listed_within(root) if name.startswith(GOING))
    except OSError:
        return ()


def _remove(paths: RunPaths, say: Callable[[str], None]) -> tuple[list[int], list[str]]:
    """Remove all that is renamed, of this prune and of earlier ones; another prune may be at the same."""
    gone, failed = [], []
    for name in _leftovers(paths):
        tag = name.removeprefix(GOING).partition(".")[0]
        try:
            with opened_folder(paths.output, paths.checkpoints) as (root, _):
                _remove_folder(root, name)
        except OSError as error:
            failed.append(f"{tag} is not removed in full: {_explained(error, paths)}; the next prune goes on")
            continue
        say(f"{tag} is gone")
        gone.append(iteration_of(tag) or 0)
    return sorted(gone), failed


def _remove_folder(root: int, name: str) -> None:
    """With all in it; no link is followed, and what somebody else has removed meanwhile is as good."""

    def missing_is_well(_function: object, _path: str, found: tuple[type, BaseException, object]) -> None:
        if not isinstance(found[1], FileNotFoundError):
            raise found[1]

    shutil.rmtree(name, dir_fd=root, onerror=missing_is_well)


def _explained(error: OSError, paths: RunPaths) -> str:
    said = file_problem(error, paths.checkpoints)
    return f"{said}; {way_in(paths.output)}" if isinstance(error, PermissionError) else said
