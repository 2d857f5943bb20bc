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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import FULL_DISK, fsync_folder, locked
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.jobs.control.json_output import PrunedRun
from opsctl.jobs.control.prune_plan import GOING, Plan, Seen, leftovers_in, plan_prune
from opsctl.run.checkpoints.backups import BackedUp
from opsctl.run.checkpoints.inventory import mark_of
from opsctl.run.checkpoints.retention import Answers
from opsctl.run.checkpoints.rollbacks import Pruned, append_prune, refuse_unfinished
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.checkpoint_readers import being_read
from opsctl.run.state.group_folder import LOCK_WAIT_S, way_in
from opsctl.run.state.identity import settle_identity
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.manifest import iteration_of, latest_folder, tag_of
from trainer.formats.errors import CheckpointError

#: Asks each destination whether it has those copies still.
Ask = Callable[[Sequence[BackedUp]], Answers]


@dataclass(frozen=True)
class Done:
    """What a prune did."""

    plan: Plan
    removed: tuple[int, ...]  # iterations
    problems: tuple[str, ...]  # what could not be taken or removed


def prune(run: RunView, say: Callable[[str], None], ask: Ask, lease_wait_s: float = lease.LOCK_WAIT_S) -> Done:
    """Take away what may go, and what a prune that was cut off has left. say: told of each checkpoint that is gone.

    ask: is told every copy without which something would stay; it may take long, so no lock is held meanwhile. Raises
    OpsctlError where it is not sure what may go, or nothing could be taken.
    """
    paths, name = run.paths, run.table.name
    answers = ask(plan_prune(run).relied_on)
    unsure = [f"{tag_of(line.iteration)} in {line.to}: {why}" for line, why in answers.items() if why]
    try:
        with locked(paths.output, paths.lock, LOCK_WAIT_S, f"prune {name}"):
            settle_identity(paths)
            refuse_unfinished(paths)
            plan = plan_prune(run, answers)
            problems, unrecorded = _rename(paths, name, plan, lease_wait_s) if plan.going else ([], [])
    except OSError as error:
        raise OpsctlError(f"cannot prune {name}: {_explained(error, paths)}") from None
    gone, failed = _remove(paths, say)
    for one in unrecorded:  # the disk was full, and has room now
        with contextlib.suppress(OSError):
            append_prune(paths, one)
    return Done(plan, tuple(gone), (*unsure, *problems, *failed))


def prune_run(run: RunView, say: Callable[[str], None], ask: Ask, dry_run: bool) -> PrunedRun:
    """Prune a run, or with `dry_run` plan that, and report each step to `say`. Raises OpsctlError as `prune` does."""
    name, plan = run.table.name, plan_prune(run)
    for line in (*(f"{name}: warning: {warning}" for warning in plan.warnings), *plan.lines(name)):
        say(line)
    gone, problems = [one.kept.iteration for one in plan.going], []
    if not dry_run and (plan.going or plan.leftovers):
        done = prune(run, lambda line: say(f"{name}: {line}"), ask)
        plan, gone, problems = done.plan, list(done.removed), list(done.problems)
        for problem in problems:
            say(f"{name}: {problem}")
    kept = {str(one.iteration): list(one.reasons) for one in plan.verdicts if not one.goes}
    return PrunedRun(run=name, dry_run=dry_run, kept=kept, pruned=gone, problems=problems)


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


def _remove(paths: RunPaths, say: Callable[[str], None]) -> tuple[list[int], list[str]]:
    """Remove all that is renamed, of this prune and of earlier ones; another prune may be at the same."""
    gone, failed = [], []
    for name in leftovers_in(paths):
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
