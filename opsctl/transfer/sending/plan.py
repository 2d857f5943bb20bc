"""The plan of a transfer: the checkpoints and files that a destination should have and has not, with the reasons."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.run.checkpoints.backups import BackedUp, Every, What, digest_here, folders_oldest_first, manifest_or_fault
from opsctl.run.config.file_kinds import is_passing
from opsctl.run.config.paths import RunPaths
from trainer.formats.checkpoint.manifest import SavedFile, read_manifest, recorded_damage, tag_of
from trainer.formats.checkpoint.starting import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError

#: Why a checkpoint is sent of which the ledger knows nothing.
NOT_THERE = "not there yet"


@dataclass(frozen=True)
class Rules:
    """The checkpoints that a destination gets."""

    every: Every
    pinned: Collection[int] = ()  # these iterations, complete
    spikes: bool = False  # those that were pinned as they were saved, complete


@dataclass(frozen=True)
class Here:
    """A checkpoint of the run."""

    iteration: int
    of: str = ""  # checksum of its manifest
    is_full: bool = True  # with optimizer states
    is_pinned: bool = False  # according to its manifest
    problem: str = ""  # why it cannot be sent


@dataclass(frozen=True)
class Due:
    """A checkpoint to be sent."""

    iteration: int
    what: What
    of: str  # checksum of its manifest
    reason: str  # why it is wanted there
    news: str  # why it has to be sent now: never sent, saved again, lost there


@dataclass(frozen=True)
class Chosen:
    """The checkpoints that a destination should get."""

    due: tuple[Due, ...]  # oldest first
    there: tuple[int, ...]  # iterations that it has
    left: Mapping[int, str]  # why iterations that it should get cannot be sent


def checkpoints_here(paths: RunPaths) -> list[Here]:
    """Return the run's checkpoints, oldest first, by their manifests. Raises OpsctlError if they cannot be listed."""
    return [_here(folder) for folder in folders_oldest_first(paths.checkpoints)]


def _here(folder: Path) -> Here:
    iteration, of = int(folder.name.removeprefix("global_step")), digest_here(folder) or ""
    try:
        manifest, damage = read_manifest(folder), recorded_damage(folder)
    except CheckpointError as error:
        return Here(iteration, of, problem=str(error))
    return Here(iteration, of, manifest.layout.get("optimizer") != NO_OPTIMIZER, manifest.pinned, damage or "")


def whole_here(paths: RunPaths, chosen: Chosen) -> Chosen:
    """Return the choice, with checkpoints that have a missing or short file here left out."""
    faults = {one.iteration: manifest_or_fault(paths.checkpoints / tag_of(one.iteration)) for one in chosen.due}
    wrong = {iteration: fault for iteration, fault in faults.items() if isinstance(fault, str)}
    due = tuple(one for one in chosen.due if one.iteration not in wrong)
    return Chosen(due, chosen.there, {**chosen.left, **wrong})


def choose(
    found: Sequence[Here],
    lines: Iterable[BackedUp],
    to: str,
    rules: Rules,
    latest: int | None = None,
    named: Collection[int] | None = None,
    weights_only: bool = False,
) -> Chosen:
    """Return which of `found` the destination `to` should have and has not, according to the ledger's `lines`.

    latest: iteration of the latest; later ones were given up by a rollback. named: these iterations instead of the
    rules'. weights_only: none of them with optimizer states.
    """
    on_record = {(line.iteration, line.what): line for line in lines if line.to == to and line.what.is_checkpoint}
    left = dict.fromkeys(sorted(set(named or ()) - {one.iteration for one in found}), "it is not here")
    due, there = [], []
    for one in found:
        what, reason = _wanted(one, rules, named, weights_only)
        news = _news(one, what, on_record) if what is not None else ""
        if what is None:
            continue
        if not news:
            there.append(one.iteration)
        elif one.problem:
            left[one.iteration] = one.problem
        elif named is None and latest is not None and one.iteration > latest:
            left[one.iteration] = "later than the latest"
        else:
            due.append(Due(one.iteration, what, one.of, reason, news))
    return Chosen(tuple(due), tuple(there), left)


def _wanted(one: Here, rules: Rules, named: Collection[int] | None, weights_only: bool) -> tuple[What | None, str]:
    """Return the form in which a checkpoint is wanted, None if it is not, and the reason."""
    number, form = one.iteration, rules.every.form(one.iteration)
    if named is not None:
        form, reason = (What.FULL if number in named else None), "named"
    elif rules.spikes and one.is_pinned:
        form, reason = What.FULL, "pinned as it was saved"
    elif number in rules.pinned:
        form, reason = What.FULL, "pinned"
    else:
        reason = f"a multiple of {rules.every.full if form is What.FULL else rules.every.weights:,}"
    if form is What.FULL and (weights_only or not one.is_full):
        form = What.WEIGHTS
    return form, reason


def _news(one: Here, what: What, on_record: Mapping[tuple[int, What], BackedUp]) -> str:
    """Return why it has to be sent; empty if it is there, in this form or complete."""
    forms = (what,) if what is What.FULL else (What.FULL, What.WEIGHTS)
    lines = [line for form in forms if (line := on_record.get((one.iteration, form))) is not None]
    same = [line for line in lines if line.of == one.of]
    if any(line.counts for line in same):
        return ""
    if lost := next((line.lost for line in same if line.lost), ""):
        return f"lost there: {lost}"
    if same:
        return "not proven there"
    return "another one is there" if lines else NOT_THERE


def size_of(files: Mapping[str, SavedFile]) -> int:
    """Return the bytes of a manifest's files."""
    return sum(file.bytes for file in files.values())


@dataclass(frozen=True)
class SeenFile:
    """A file here. name: its path from the output folder."""

    name: str
    size: int
    mtime_ns: int


def files_below(top: Path, output: Path, unseen: list[str]) -> Iterator[SeenFile]:
    """Yield every plain file below `top`; nothing is opened, and no link is followed.

    Locks and files that are still being written are left out. unseen: gets a line for each folder that cannot be
    listed.
    """
    for above, folders, names in os.walk(top, onerror=lambda error: _cannot_list(error, output, unseen)):
        folders.sort()
        for name in sorted(names):
            if not is_passing(name):
                yield from seen_file(Path(above) / name, output)


def seen_file(path: Path, root: Path) -> Iterator[SeenFile]:
    """Yield the file at `path`, if it is a plain one."""
    try:
        found = path.lstat()
    except OSError:
        return
    if stat.S_ISREG(found.st_mode):
        yield SeenFile(str(path.relative_to(root)), found.st_size, found.st_mtime_ns)


def _cannot_list(error: OSError, output: Path, unseen: list[str]) -> None:
    if not isinstance(error, FileNotFoundError):
        unseen.append(f"{os.path.relpath(error.filename, output)}: this account cannot list it")
