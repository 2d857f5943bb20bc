"""Prune checkpoints that the run's policy does not keep, with a record, also while a training saves.

A prune plans, then renames the checkpoints to names that no reader loads, under the locks of submits, rollbacks and
publishing. It removes them afterwards without a lock. If it is killed, whole checkpoints stay, and the next prune
removes what was renamed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import FULL_DISK, fsync_folder, locked
from opsctl.core.files.trusted import listed_within, opened_folder
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.jobs.control.json_output import PrunedRun
from opsctl.run.checkpoints.adopted import remove_original
from opsctl.run.checkpoints.backups import BackedUp, digest_here, places_named, read_backups
from opsctl.run.checkpoints.inventory import mark_of
from opsctl.run.checkpoints.retention import NOT_BACKED_UP, Answers, Copies, Kept, Progress, Verdict, verdicts
from opsctl.run.checkpoints.rollbacks import Pruned, append_prune, refuse_unfinished
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import Program, program_of
from opsctl.run.config.schema import RetentionTable
from opsctl.run.state import lease
from opsctl.run.state.chains import read_chains
from opsctl.run.state.checkpoint_readers import being_read
from opsctl.run.state.group_folder import LOCK_WAIT_S, way_in
from opsctl.run.state.identity import settle_identity
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.manifest import (
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_folder,
    read_manifest,
    tag_of,
)
from trainer.formats.checkpoint.starting import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError
from trainer.recipe.options import OptionsError
from trainer.recipe.schedule import samples_to_train

#: Asks each destination whether it has those copies still.
Ask = Callable[[Sequence[BackedUp]], Answers]
#: What a prune has taken away is called so until it is removed. A save clears away only what begins with `.tmp-`.
GOING = ".pruned-"
#: Chains whose one-off arguments may name a checkpoint that one of their tasks is loading.
_LAST_CHAINS = 10


@dataclass(frozen=True)
class Done:
    """The effect of a prune."""

    plan: Plan
    removed: tuple[int, ...]  # iterations
    problems: tuple[str, ...]  # what could not be taken or removed


def prune(
    run: RunView,
    say: Callable[[str], None],
    ask: Ask,
    lease_wait_s: float = lease.LOCK_WAIT_S,
    before_run: bool = False,
) -> Done:
    """Remove what the policy allows, and what an interrupted prune has left. say: called with a line for each removed
    checkpoint.

    ask: called with every copy without which a checkpoint would stay. It may take long, so no lock is held meanwhile.
    before_run: also what another program had saved before the run. Raises OpsctlError if it is not certain what may
    go, or if nothing could be removed.
    """
    paths, name = run.paths, run.table.name
    answers = ask(plan_prune(run, before_run=before_run).relied_on)
    unsure = [f"{tag_of(line.iteration)} in {line.to}: {why}" for line, why in answers.items() if why]
    try:
        with locked(paths.output, paths.lock, LOCK_WAIT_S, f"prune {name}"):
            settle_identity(paths)
            refuse_unfinished(paths)
            plan = plan_prune(run, answers, before_run)
            problems, unrecorded = _rename(run, plan, lease_wait_s) if plan.going else ([], [])
    except OSError as error:
        raise OpsctlError(f"cannot prune {name}: {_explained(error, paths)}") from None
    gone, failed = _remove(paths, say)
    for one in unrecorded:  # the disk was full, and has room now
        with contextlib.suppress(OSError):
            append_prune(paths, one)
    return Done(plan, tuple(gone), (*unsure, *problems, *failed))


def prune_run(run: RunView, say: Callable[[str], None], ask: Ask, dry_run: bool, before_run: bool = False) -> PrunedRun:
    """Prune a run, or with `dry_run` plan that, and report each step to `say`. Raises OpsctlError as `prune` does."""
    name, plan = run.table.name, plan_prune(run, before_run=before_run)
    for line in (*(f"{name}: warning: {warning}" for warning in plan.warnings), *plan.lines(name)):
        say(line)
    gone, problems = [one.kept.iteration for one in plan.going], []
    if not dry_run and (plan.going or plan.leftovers):
        done = prune(run, lambda line: say(f"{name}: {line}"), ask, before_run=before_run)
        plan, gone, problems = done.plan, list(done.removed), list(done.problems)
        for problem in problems:
            say(f"{name}: {problem}")
    kept = {str(one.iteration): list(one.reasons) for one in plan.verdicts if not one.goes}
    return PrunedRun(run=name, dry_run=dry_run, kept=kept, pruned=gone, problems=problems)


def _rename(run: RunView, plan: Plan, wait_s: float) -> tuple[list[str], list[Pruned]]:
    """Rename the checkpoints to remove; return those that stay with the reason, and those without a record.

    Publishing waits meanwhile. A checkpoint that changed since the plan stays.
    """
    paths, name, program = run.paths, run.table.name, _program(run)
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
                try:
                    append_prune(paths, pruned)
                except OSError as error:
                    if error.errno not in FULL_DISK:
                        raise
                    unrecorded.append(pruned)
                if not _take(paths, one, program):
                    problems.append(f"{one.folder.name} is another one now, and stays")
            except OSError as error:
                problems.append(f"{one.folder.name} stays: {_explained(error, paths)}")
    fsync_folder(paths.output, paths.checkpoints)
    return problems, unrecorded


def _take(paths: RunPaths, one: Seen, program: Program | None) -> bool:
    """Rename the checkpoint if it is still the one that was judged, after that of another program. Raises OSError."""
    if mark_of(paths.output, one.folder) != one.mark:
        return False
    if program is not None:
        remove_original(program, one.folder)
    with opened_folder(paths.output, paths.checkpoints) as (root, _):
        aside = f"{GOING}{one.folder.name}.{secrets.token_hex(4)}"
        os.rename(one.folder.name, aside, src_dir_fd=root, dst_dir_fd=root)
    return True


def _program(run: RunView) -> Program | None:
    """Return the published program; None for our trainer, and before the first publishing."""
    return program_of(run.revision.file, run.revision.run_file.parent) if run.revision else None


def _remove(paths: RunPaths, say: Callable[[str], None]) -> tuple[list[int], list[str]]:
    """Remove all renamed checkpoints, also of earlier prunes; another prune may do the same now."""
    gone, failed = [], []
    for name in leftovers_in(paths):
        tag = name.removeprefix(GOING).partition(".")[0]
        try:
            with opened_folder(paths.output, paths.checkpoints) as (root, _):
                shutil.rmtree(name, dir_fd=root, onerror=_ignore_missing)
        except OSError as error:
            failed.append(f"{tag} is removed only in part: {_explained(error, paths)}; the next prune removes the rest")
            continue
        say(f"{tag} is gone")
        gone.append(iteration_of(tag) or 0)
    return sorted(gone), failed


def _ignore_missing(_function: object, _path: str, found: tuple[type, BaseException, object]) -> None:
    """Raise errors of rmtree, except that another process has removed something meanwhile."""
    if not isinstance(found[1], FileNotFoundError):
        raise found[1]


def _explained(error: OSError, paths: RunPaths) -> str:
    said = file_problem(error, paths.checkpoints)
    return f"{said}; {way_in(paths.output)}" if isinstance(error, PermissionError) else said


@dataclass(frozen=True)
class Seen:
    """A checkpoint as a prune finds it."""

    kept: Kept
    folder: Path
    mark: str  # what is renamed has to be what was judged
    bytes: int
    backed_up: tuple[BackedUp, ...] = ()  # copies of this very one that may be relied on
    why_not_backed_up: str = NOT_BACKED_UP  # empty where there is such a copy


@dataclass(frozen=True)
class Plan:
    """The planned effect of a prune."""

    verdicts: tuple[Verdict, ...]
    seen: tuple[Seen, ...]  # in the same order
    latest: int
    leftovers: tuple[str, ...]  # of a prune that was cut off
    warnings: tuple[str, ...] = ()
    until_backed_up: int = 0

    @property
    def going(self) -> list[Seen]:
        """The checkpoints that may be removed, oldest first."""
        return [one for one, verdict in zip(self.seen, self.verdicts, strict=True) if verdict.goes]

    def lines(self, name: str) -> Iterator[str]:
        """Yield what goes and why the rest stays, for people. name: the run's."""
        for one, verdict in zip(self.seen, self.verdicts, strict=True):
            size = f" ({bytes_words(one.bytes)})" if one.bytes else ""
            there = f", backed up whole in {' and '.join(line.to for line in one.backed_up)}" if one.backed_up else ""
            what = f"delete{there}" if verdict.goes else f"keep: {'; '.join(verdict.reasons)}"
            yield f"{one.folder.name}{size}: {what}"
        total = bytes_words(sum(one.bytes for one in self.going))
        left = f", and the remains of {len(self.leftovers)} from an earlier prune" if self.leftovers else ""
        yield f"{name}: {len(self.going)} of {len(self.seen)} checkpoints can be deleted, {total}{left}"

    @property
    def relied_on(self) -> list[BackedUp]:
        """Copies without which something would stay that may go."""
        until = self.until_backed_up
        return [line for one in self.going if until and one.kept.iteration % until == 0 for line in one.backed_up]


def plan_prune(run: RunView, answers: Answers | None = None, before_run: bool = False) -> Plan:
    """Plan which of the run's checkpoints may be removed. Raises OpsctlError if this is not certain.

    answers: those of the destinations that were asked; a copy that is not in it does not count. None: trust the ledger.
    before_run: also what another program had saved before the run.
    """
    policy, warnings = _policy(run)
    root = run.paths.checkpoints
    try:
        latest = latest_folder(root)
        if latest is not None and (fault := fault_of(latest)):
            raise OpsctlError(f"nothing is pruned: the latest is not complete: {fault}")
        copies = Copies(read_backups(run.paths), places_named(run), answers)
        seen = [_seen(run.paths, folder, copies, before_run) for folder in reversed(checkpoint_folders(root))]
    except CheckpointError as error:
        raise OpsctlError(f"nothing is pruned: {error}") from None
    except OSError as error:
        raise OpsctlError(f"nothing is pruned: {file_problem(error, run.paths.backups)}") from None
    if latest is None:
        return Plan((), (), 0, ())
    reached = iteration_of(latest.name)
    if reached is None:  # a save on a file system that cannot swap names was cut off: the next save settles it
        raise OpsctlError(f"nothing is pruned: the latest is {latest.name}, which a save has left in the middle")
    samples, loading = _trained(run)
    try:
        progress = Progress(reached, samples, loading, frozenset(being_read(run.paths)))
    except OSError as error:
        why = file_problem(error, run.paths.reading)
        raise OpsctlError(f"nothing is pruned: it is unknown which checkpoints are being read: {why}") from None
    why_not = {one.kept.iteration: one.why_not_backed_up for one in seen}
    decided = verdicts([one.kept for one in seen], policy, progress, why_not.__getitem__)
    if _program(run) is not None and any(verdict.goes for verdict in decided):
        warnings = (*warnings, "the program's own checkpoints of the same steps are deleted too")
    return Plan(tuple(decided), tuple(seen), reached, leftovers_in(run.paths), warnings, policy.until_backed_up)


def leftovers_in(paths: RunPaths) -> tuple[str, ...]:
    """Names of what a prune has renamed and not removed yet."""
    try:
        with opened_folder(paths.output, paths.checkpoints) as (root, _):
            return tuple(name for name in listed_within(root) if name.startswith(GOING))
    except OSError:
        return ()


def _policy(run: RunView) -> tuple[RetentionTable, tuple[str, ...]]:
    """Return the published policy, before the first publishing that of the run file, and warnings."""
    written = run.loaded.file.retention if run.loaded else None
    revision = run.revision
    policy, warnings = written, ()  # type: RetentionTable | None, tuple[str, ...]
    if revision is not None:
        policy = revision.file.retention
        is_other = run.loaded is not None and written != policy
        warnings = (
            "[retention] of the run file differs from the published one; to publish it: opsctl revise",
        ) * is_other
    if policy is None:
        hint = f" ({warnings[0]})" if warnings else ""
        raise OpsctlError(
            f"nothing is pruned: {run.table.name} has no [retention], which selects the checkpoints to keep; "
            f"an empty table [retention] uses the defaults{hint}"
        )
    return policy, warnings


def _trained(run: RunView) -> tuple[int | None, frozenset[int]]:
    """Return how many samples the training has, None if unknown, and which checkpoints its tasks load."""
    if run.revision is None:
        return None, frozenset()
    try:
        chains = read_chains(run.paths)[-_LAST_CHAINS:]
        options = run.revision.options()
        own = [options, *(run.revision.options(chain.arguments, chain.nodes) for chain in chains)]
    except OptionsError as error:
        raise OpsctlError(f"nothing is pruned: the trainer's arguments are not understood: {error}") from None
    loading = frozenset(step for one in own if (step := one.get("load_step")) is not None)
    try:
        return samples_to_train(options), loading
    except (TypeError, ValueError):  # no length, or no batch size to count it by
        return None, loading


def _seen(paths: RunPaths, folder: Path, copies: Copies, before_run: bool) -> Seen:
    iteration = iteration_of(folder.name)
    assert iteration is not None, "it is called like a checkpoint"
    try:
        mark = mark_of(paths.output, folder)
    except OSError as error:  # a link, or another user's
        return Seen(Kept(iteration, 0, problem=str(error.strerror)), folder, "", 0)
    of, problem = digest_here(folder), fault_of(folder)
    relied_on, why_not = copies.relied_on(iteration, of), copies.why_not(iteration, of)
    if problem is not None:
        return Seen(Kept(iteration, 0, problem=problem), folder, mark, 0, relied_on, why_not)
    manifest = read_manifest(folder)
    kept = Kept(
        iteration,
        manifest.consumed_train_samples,
        manifest.layout.get("optimizer") != NO_OPTIMIZER,
        manifest.pinned,
        is_finite=manifest.not_finite is None,
        is_before_run=manifest.original is not None and manifest.original.before_run and not before_run,
    )
    return Seen(kept, folder, mark, sum(file.bytes for file in manifest.files.values()), relied_on, why_not)
