"""Revisions: what the tasks of a chain train, published by submit and revise only, never changed afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from opsctl.core.account import account_and_host, account_name, is_member
from opsctl.core.errors import OpsctlError
from opsctl.core.files.sealed import keep_apart, take_away, write_sealed
from opsctl.core.files.state_files import FULL_DISK
from opsctl.core.files.trusted import Untrusted
from opsctl.core.timestamps import now
from opsctl.run.config.load import LoadedRun, expanded_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile
from opsctl.run.state.group_folder import way_in
from opsctl.run.state.revision import (
    ABOUT,
    STEP_SCRIPT,
    About,
    Revision,
    digest_of,
    read_revision,
    slurm_part,
    unless_open,
)
from trainer.formats.json_text import json_file_text

if TYPE_CHECKING:
    from opsctl.run.config.expanded import ExpandedRun  # and with it what a start is held against

_NAME = re.compile(r"(?P<number>[0-9]{4,9})-(?P<hash>[0-9a-f]{12})")


class OwnersAlone(OpsctlError):
    """Only the run's owner decides what its tasks train, and the caller is somebody else."""


def contents(run: ExpandedRun) -> dict[str, str]:
    """File name -> text of what a revision of `run` would hold, revision.json left out.

    Raises RunFileError for a value that no script line can hold.
    """
    # Who only reads revisions, as every look at a run does, need not wait for what makes one.
    from opsctl.run.render.step import step_script
    from trainer.recipe.engine_config import engine_config

    return {
        "run.json": json_file_text(run.file),
        "trainer-arguments.json": json_file_text(run.arguments),
        "engine.json": json_file_text(engine_config(run.options)),
        STEP_SCRIPT: step_script(run),
    }


def publish(run: ExpandedRun, note: str = "") -> Revision:
    """Make `run` the newest revision; if the newest already says the same, return that one and change nothing.

    The caller has validated the run and holds `RunPaths.lock`. A damaged newest is left as it is and counts as another.
    A full disk or a kill leaves nothing that counts. Raises OpsctlError when it cannot be written, and where only the
    run's owner publishes.
    """
    paths = run.paths
    files = contents(run)
    digest = digest_of(files)
    last = newest(paths)
    if _says_the_same(last, digest):
        return last
    refuse_to_publish(run)
    number = 1 if last is None else last.number + 1
    about = About(
        schema_version=1,
        number=number,
        digest=digest,
        created_at=now().replace(microsecond=0),
        created_by=account_and_host(),
        note=note,
        run_file=str(run.path),
        run_file_sha256=run.sha256,
        slurm=slurm_part(run.file),
    )
    target = paths.revisions / f"{number:04d}-{digest[:12]}"
    try:
        keep_apart(paths.output, paths.revisions, closed=run.file.run.publish == "owner")
        write_sealed(paths.output, target, {**files, ABOUT: json_file_text(about)})
    except OSError as error:
        raise OpsctlError(_cannot_write(error, paths.revisions)) from None
    return read_revision(paths.output, number, target)


def is_published(run: ExpandedRun) -> bool:
    """Whether `publish` would change nothing. Raises OpsctlError as `newest`."""
    return _says_the_same(newest(run.paths), digest_of(contents(run)))


def refuse_to_publish(run: ExpandedRun) -> None:
    """Raise OpsctlError where the run file, or what its owner published last, says that only the owner publishes."""
    owner = _owner_of(run.paths.output)
    if owner is None or os.geteuid() in (0, owner):
        return
    if run.file.run.publish == "owner" or _owners_word(run.paths, owner) == "owner":
        raise OpsctlError(
            f'only {account_name(owner)} publishes revisions of {run.file.run.name}: [run] publish = "owner"; '
            f"ask {account_name(owner)} to run opsctl revise"
        )


def withdraw(revision: Revision) -> None:
    """Take back a revision that was published for a submission that Slurm refused. The caller holds `RunPaths.lock`."""
    with contextlib.suppress(OSError):
        take_away(revision.root, revision.folder, f".withdrawn-{revision.name}")


def newest(paths: RunPaths) -> Revision | None:
    """The newest revision, damaged or not; None before the first submit.

    Raises OpsctlError where it cannot be seen whether there are any.
    """
    return next(_newest_first(paths), None)


def newest_whole(paths: RunPaths) -> Revision | None:
    """The newest revision that can be read; None where there is none. Raises OpsctlError as `newest`."""
    return next((one for one in _newest_first(paths) if not one.damage), None)


def published_since(paths: RunPaths, since: datetime) -> list[Revision]:
    """Those that were published after `since`, oldest first. Raises OpsctlError as `newest`."""
    newer = itertools.takewhile(lambda one: one.created_at > since, _newest_first(paths))
    return [one for one in newer if not one.damage][::-1]


def newest_for_task(paths: RunPaths, only_owners: bool) -> tuple[Revision | None, tuple[Revision, ...]]:
    """The revision that a task starting now takes, damaged or not, and the newer ones that it passes over.

    only_owners: it takes none but those of the run's owner, of the account that the task runs as, and of root.
    Raises OpsctlError as `newest`.
    """
    passed_over: list[Revision] = []
    believed = (0, os.geteuid(), _owner_of(paths.output))
    for revision in _newest_first(paths):
        if not only_owners:
            return revision, ()
        if revision.owner in believed:
            return unless_open(revision), tuple(passed_over)
        passed_over.append(revision)
    return None, tuple(passed_over)


def newest_to_start(paths: RunPaths) -> tuple[Revision | None, tuple[Revision, ...]]:
    """The newest revision whose programs may be started as the caller, damaged or not, and the newer ones passed over.

    It is the caller's, root's, or one of those who may decide by `deciding_group`. Raises OpsctlError as `newest`.
    """
    passed_over: list[Revision] = []
    group = deciding_group(paths)
    for revision in _newest_first(paths):
        if revision.owner in (0, os.geteuid()) or (group is not None and is_member(revision.owner, group)):
            return unless_open(revision), tuple(passed_over)
        passed_over.append(revision)
    return None, tuple(passed_over)


def deciding_group(paths: RunPaths) -> int | None:
    """The group whose members the caller lets decide what runs as the caller; None where there is none.

    Only the caller's own newest revision says so, never a member's, and only of a shared folder of the caller's.
    """
    try:
        found = paths.output.stat()
    except OSError:
        return None
    if found.st_uid != os.geteuid() or not found.st_mode & stat.S_IWGRP:
        return None
    own = next((one for one in _newest_first(paths) if one.owner == os.geteuid()), None)
    if own is None or own.damage or own.is_open:
        return None
    return found.st_gid if own.file.run.publish == "group" else None


def to_send_again(paths: RunPaths, name: str) -> Revision:
    """The revision of which the caller may submit a further chain: the one that such a chain's tasks would take now.

    Raises OpsctlError where nothing is published or it is damaged, OwnersAlone where the run's owner alone submits.
    """
    last, owner = newest(paths), _owner_of(paths.output)
    if last is None:
        raise OpsctlError(f"{name} was never submitted: opsctl submit does that first")
    if last.damage:
        raise OpsctlError(last.damage)
    only_owners = "owner" in (last.file.run.publish, "group" if owner is None else _owners_word(paths, owner))
    if only_owners and owner is not None and os.geteuid() not in (0, owner):
        raise OwnersAlone(f'only {account_name(owner)} submits {name}: [run] publish = "owner"')
    taken, _ = newest_for_task(paths, only_owners)
    if taken is None or taken.damage:
        raise OpsctlError(
            taken.damage if taken else f"no revision of {name} is its owner's: opsctl revise publishes one"
        )
    return taken


def differs_from_published(loaded: LoadedRun, revision: Revision) -> list[str]:
    """The keys, as `table.key`, whose value in the run file is not the published one; comments and order do not count.

    An unchanged file costs one comparison of hashes. Raises RunFileError for a run file that cannot be expanded.
    """
    return [] if loaded.sha256 == revision.run_file_sha256 else list(_differences(expanded_file(loaded), revision))


def changed_values(run: ExpandedRun, revision: Revision) -> dict[str, tuple[Any, Any]]:
    """`table.key` -> (published value, value in the run file), where they differ; None where there is none."""
    return _differences(run.file, revision)


def _differences(file: RunFile, revision: Revision) -> dict[str, tuple[Any, Any]]:
    now, then = _flat(file), _flat(revision.file)
    return {key: (then.get(key), now.get(key)) for key in {**then, **now} if then.get(key) != now.get(key)}


def _flat(file: RunFile) -> dict[str, Any]:
    """`table.key` -> value, of everything that is set."""
    return {
        f"{table}.{key}": value
        for table, values in msgspec.to_builtins(file).items()
        for key, value in (values or {}).items()  # a table that is not written
        if value is not None
    }


def _says_the_same(last: Revision | None, digest: str) -> TypeGuard[Revision]:
    return last is not None and last.digest == digest and not last.is_open


def _newest_first(paths: RunPaths) -> Iterator[Revision]:
    for number, folder in sorted(_folders(paths), reverse=True):
        yield read_revision(paths.output, number, folder)


def _folders(paths: RunPaths) -> Iterator[tuple[int, Path]]:
    try:
        names = [entry.name for entry in paths.revisions.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise OpsctlError(f"cannot look into {paths.revisions}: {error.strerror}; {way_in(paths.revisions)}") from None
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            yield int(match["number"]), paths.revisions / name


def _owner_of(output: Path) -> int | None:
    try:
        return output.stat().st_uid
    except OSError:
        return None


def _owners_word(paths: RunPaths, owner: int) -> str:
    """The `[run] publish` of the newest revision that the run's owner published."""
    own = (one for one in _newest_first(paths) if one.owner == owner and not one.damage)
    last = next(own, None)
    return last.file.run.publish if last else "group"


def _cannot_write(error: OSError, folder: Path) -> str:
    full = FULL_DISK.get(error.errno or 0)
    if full:
        return f"cannot publish a revision: {full} at {folder}; nothing was changed: free some space and try again"
    where = error.filename if isinstance(error, Untrusted) else folder
    return f"cannot publish a revision: {where}: {error.strerror or error}; nothing was changed"
