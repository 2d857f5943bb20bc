"""Revisions: what the tasks of a chain train, written by submit and revise only, never changed afterwards.

A revision is a folder `.opsctl/revisions/NNNN-HASH12/` with revision.json, run.json (the run file, every value
expanded), trainer-arguments.json, engine.json and step.sh. It appears by one rename, so a task sees all of it or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from opsctl.account import account_and_host
from opsctl.errors import OpsctlError
from opsctl.moments import now
from opsctl.records.state_files import (
    FULL_DISK,
    fsync_folder,
    make_folder,
    read_needed,
    read_text,
    write_atomically,
)
from opsctl.render.step import step_script
from opsctl.runs.expanded import ExpandedRun
from opsctl.runs.load import LoadedRun, expanded_file
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import RunFile
from trainer.formats.json_text import Moment, json_file_text
from trainer.recipe.engine_config import engine_config
from trainer.recipe.options import Options, parse

_NAME = re.compile(r"(?P<number>\d{4,})-(?P<hash>[0-9a-f]{12})")
#: The keys of [slurm] that Slurm reads at submission: tasks already queued keep the old value.
FIXED_AT_SUBMIT = (
    "nodes",
    "gpus_per_node",
    "time",
    "partition",
    "account",
    "qos",
    "constraint",
    "reservation",
    "gpu_type",
    "cpus_per_task",
    "exclude",
    "nice",
    "extra",
)


_STEP_SCRIPT = "step.sh"
_PUBLISH_ANEW = "opsctl revise publishes a new revision"


class _About(msgspec.Struct, frozen=True):
    """`revision.json`."""

    schema_version: int
    number: int
    digest: str
    created_at: Moment
    created_by: str
    note: str
    run_file: str
    run_file_sha256: str
    slurm: dict[str, Any]  # for people and other programs: run.json has all of it


@dataclass(frozen=True)
class Revision:
    """One published revision. Its files are read when asked for."""

    number: int
    digest: str  # sha256 of its content: two revisions with the same one train the same
    root: Path  # the run's output folder
    folder: Path
    created_at: datetime  # with zone
    created_by: str  # user@host
    note: str
    run_file: Path  # where it came from
    run_file_sha256: str

    @property
    def name(self) -> str:
        """The folder's name, `NNNN-HASH12`, by which attempts and chains call it."""
        return self.folder.name

    @cached_property
    def file(self) -> RunFile:
        """The run file as published: expanded, with absolute paths."""
        return read_needed(self.root, self.folder / "run.json", RunFile, _PUBLISH_ANEW)

    @cached_property
    def trainer_arguments(self) -> list[str]:
        """What the trainer is started with, before a chain's one-off arguments and what only the job knows."""
        return read_needed(self.root, self.folder / "trainer-arguments.json", list[str], _PUBLISH_ANEW)

    def options(self, one_off: Sequence[str] = (), nodes: int | None = None) -> Options:
        """What the trainer makes of those arguments, a chain's `one_off` last, on `nodes` (default: the run file's).

        Raises OptionsError for what it does not understand, as another release may have published it.
        """
        slurm = self.file.slurm
        world_size = (slurm.nodes if nodes is None else nodes) * slurm.gpus_per_node
        return parse([*self.trainer_arguments, *one_off], world_size)

    @cached_property
    def step_script(self) -> str:
        """The text of what srun runs on every node of a task."""
        try:
            text = read_text(self.root, self.folder / _STEP_SCRIPT)
        except OSError as error:
            raise OpsctlError(f"cannot read {self.folder / _STEP_SCRIPT}: {error.strerror}; {_PUBLISH_ANEW}") from None
        if text is None:
            raise OpsctlError(f"cannot read {self.folder / _STEP_SCRIPT}: there is no such file; {_PUBLISH_ANEW}")
        return text

    @property
    def slurm(self) -> dict[str, Any]:
        """What Slurm fixes at submission, by the names of [slurm]."""
        return slurm_part(self.file)


def slurm_part(file: RunFile) -> dict[str, Any]:
    """The values of [slurm] that Slurm fixes at submission."""
    return {key: msgspec.to_builtins(getattr(file.slurm, key)) for key in FIXED_AT_SUBMIT}


def contents(run: ExpandedRun) -> dict[str, str]:
    """File name -> text of what a revision of `run` would hold, revision.json left out.

    Raises RunFileError for a value that no script line can hold.
    """
    return {
        "run.json": json_file_text(run.file),
        "trainer-arguments.json": json_file_text(run.arguments),
        "engine.json": json_file_text(engine_config(run.options)),
        _STEP_SCRIPT: step_script(run),
    }


def digest_of(files: Mapping[str, str]) -> str:
    """sha256 over names and texts."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()


def publish(run: ExpandedRun, note: str = "") -> Revision:
    """Make `run` the newest revision; if the newest already says the same, return that one and change nothing.

    The caller has validated the run and holds `RunPaths.lock`. A full disk or a kill leaves nothing that counts.
    Raises OpsctlError when it cannot be written.
    """
    paths = run.paths
    files = contents(run)
    digest = digest_of(files)
    last = newest(paths)
    if last is not None and last.digest == digest:
        return last
    number = 1 if last is None else last.number + 1
    about = _About(
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
    building = paths.revisions / f".new-{socket.gethostname()}-{os.getpid()}"
    try:
        make_folder(paths.output, building)
        for name, text in {**files, "revision.json": json_file_text(about)}.items():
            write_atomically(paths.output, building / name, text)
        building.rename(target)
        fsync_folder(paths.output, paths.revisions)
    except OSError as error:
        raise OpsctlError(_cannot_write(error, paths.revisions)) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _read(paths.output, target)


def withdraw(revision: Revision) -> None:
    """Take back a revision that was published for a submission that Slurm refused. The caller holds `RunPaths.lock`."""
    going = revision.folder.with_name(f".withdrawn-{revision.name}")
    with contextlib.suppress(OSError):
        revision.folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)


def newest(paths: RunPaths) -> Revision | None:
    """The revision that tasks starting now would take; None before the first submit."""
    last = max(_folders(paths), default=None)
    return None if last is None else _read(paths.output, last[1])


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
        for key, value in values.items()
        if value is not None
    }


def _folders(paths: RunPaths) -> Iterator[tuple[int, Path]]:
    try:
        entries = list(paths.revisions.iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match:
            yield int(match["number"]), entry


def _read(root: Path, folder: Path) -> Revision:
    about = read_needed(root, folder / "revision.json", _About, f"move {folder} away and run opsctl revise")
    return Revision(
        number=about.number,
        digest=about.digest,
        root=root,
        folder=folder,
        created_at=about.created_at,
        created_by=about.created_by,
        note=about.note,
        run_file=Path(about.run_file),
        run_file_sha256=about.run_file_sha256,
    )


def _cannot_write(error: OSError, folder: Path) -> str:
    full = FULL_DISK.get(error.errno or 0)
    if full:
        return f"cannot publish a revision: {full} at {folder}; nothing was changed: free some space and try again"
    return f"cannot publish a revision in {folder}: {error.strerror or error}; nothing was changed"
