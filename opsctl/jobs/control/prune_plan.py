"""Which checkpoints of a run may go: what is there, and what the policy, the training and copies elsewhere say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.trusted import listed_within, opened_folder
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, digest_here, places_named, read_backups
from opsctl.run.checkpoints.inventory import mark_of
from opsctl.run.checkpoints.retention import NOT_BACKED_UP, Answers, Copies, Kept, Progress, Verdict, verdicts
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RetentionTable
from opsctl.run.state.chains import read_chains
from opsctl.run.state.checkpoint_readers import being_read
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.manifest import (
    Manifest,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_folder,
    read_manifest,
)
from trainer.formats.checkpoint.resumable import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError
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
    backed_up: tuple[BackedUp, ...] = ()  # copies of this very one that may be relied on
    why_not_backed_up: str = NOT_BACKED_UP  # empty where there is such a copy


@dataclass(frozen=True)
class Plan:
    """What a prune would do."""

    verdicts: tuple[Verdict, ...]
    seen: tuple[Seen, ...]  # in the same order
    latest: int
    leftovers: tuple[str, ...]  # of a prune that was cut off
    warnings: tuple[str, ...] = ()
    until_backed_up: int = 0

    @property
    def going(self) -> list[Seen]:
        """What may go, oldest first."""
        return [one for one, verdict in zip(self.seen, self.verdicts, strict=True) if verdict.goes]

    def lines(self, name: str) -> Iterator[str]:
        """Yield what goes and why the rest stays, for people. name: the run's."""
        for one, verdict in zip(self.seen, self.verdicts, strict=True):
            size = f" ({bytes_words(one.bytes)})" if one.bytes else ""
            there = f", backed up whole in {' and '.join(line.to for line in one.backed_up)}" if one.backed_up else ""
            what = f"goes{there}" if verdict.goes else f"stays: {'; '.join(verdict.reasons)}"
            yield f"{one.folder.name}{size}: {what}"
        total = bytes_words(sum(one.bytes for one in self.going))
        left = f", and what is left of {len(self.leftovers)} that an earlier prune took" if self.leftovers else ""
        yield f"{name}: {len(self.going)} of {len(self.seen)} checkpoints may go, {total}{left}"

    @property
    def relied_on(self) -> list[BackedUp]:
        """Copies without which something would stay that may go."""
        until = self.until_backed_up
        return [line for one in self.going if until and one.kept.iteration % until == 0 for line in one.backed_up]


def plan_prune(run: RunView, answers: Answers | None = None) -> Plan:
    """What of the run's checkpoints may go. Raises OpsctlError wherever that is not sure.

    answers: of the destinations that were asked; a copy that is not in it does not count. None: as the ledger says.
    """
    policy, warnings = _policy(run)
    root = run.paths.checkpoints
    try:
        latest = latest_folder(root)
        if latest is not None and (fault := fault_of(latest)):
            raise OpsctlError(f"nothing is pruned: the latest is not complete: {fault}")
        copies = Copies(read_backups(run.paths), places_named(run), answers)
        seen = [_seen(run.paths, folder, copies) for folder in reversed(checkpoint_folders(root))]
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
    why_not = {one.kept.iteration: one.why_not_backed_up for one in seen}
    decided = verdicts([one.kept for one in seen], policy, progress, why_not.__getitem__)
    return Plan(tuple(decided), tuple(seen), reached, leftovers_in(run.paths), warnings, policy.until_backed_up)


def leftovers_in(paths: RunPaths) -> tuple[str, ...]:
    """Names of what a prune has renamed and not removed yet."""
    try:
        with opened_folder(paths.output, paths.checkpoints) as (root, _):
            return tuple(name for name in listed_within(root) if name.startswith(GOING))
    except OSError:
        return ()


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


def _seen(paths: RunPaths, folder: Path, copies: Copies) -> Seen:
    iteration = iteration_of(folder.name)
    assert iteration is not None, "it is called like a checkpoint"
    try:
        mark = mark_of(paths.output, folder)
    except OSError as error:  # a link, or somebody else's: not ours to judge
        return Seen(Kept(iteration, 0, problem=str(error.strerror)), folder, "", 0)
    problem, manifest = fault_of(folder), None
    if problem is None:
        manifest = read_manifest(folder)
    of = digest_here(folder)
    relied_on, why_not = copies.relied_on(iteration, of), copies.why_not(iteration, of)
    return Seen(_kept(iteration, problem, manifest), folder, mark, _bytes(manifest), relied_on, why_not)


def _kept(iteration: int, problem: str | None, manifest: Manifest | None) -> Kept:
    if manifest is None:
        return Kept(iteration, 0, problem=problem or "no manifest")
    is_full = manifest.layout.get("optimizer") != NO_OPTIMIZER
    is_finite = manifest.not_finite is None
    return Kept(iteration, manifest.consumed_train_samples, is_full, manifest.pinned, is_finite=is_finite)


def _bytes(manifest: Manifest | None) -> int:
    return sum(file.bytes for file in manifest.files.values()) if manifest else 0
