"""Revisions: what the tasks of a chain train, published by submit and revise only, never changed afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec

from opsctl.core.account import account_and_host, account_name, is_member
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.sealed import Sealed, keep_apart, read_sealed, take_away, write_sealed
from opsctl.core.files.state_files import FULL_DISK, parsed
from opsctl.core.files.trusted import Untrusted
from opsctl.core.output import printable
from opsctl.core.timestamps import now
from opsctl.run.config.load import LoadedRun, expanded_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile
from opsctl.run.state.group_folder import way_in
from trainer.formats.json_text import Moment, json_file_text
from trainer.recipe.options import Options

if TYPE_CHECKING:
    from opsctl.run.config.expanded import ExpandedRun  # and with it what a start is held against

T = TypeVar("T")

#: The keys of [slurm] that Slurm reads at submission: tasks already queued keep the old value.
FIXED_AT_SUBMIT = (
    *("nodes", "spare", "min_nodes", "gpus_per_node", "time", "partition", "account", "qos", "constraint"),
    *("reservation", "gpu_type", "cpus_per_task", "exclude", "nice", "extra"),
)
#: The files of a revision that are asked for by name.
ABOUT, STEP_SCRIPT = "revision.json", "step.sh"
#: Keys that run files had in earlier builds: without effect in what those have published.
_DROPPED = {
    "environment": ("hub", "tool"),
    "backup": ("tar",),
    "carbon": ("busy_percent", "gpu_kg", "idle_node_w", "node_kg", "years"),
    "hub": ("mirror",),
    "nodes": ("support",),
    "watch": ("quota", "quota_of", "touch"),
}
_PUBLISH_ANEW = "opsctl revise publishes a new revision"


class About(msgspec.Struct, frozen=True):
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
    """One published revision, all of it as it was read at once: what is judged is what is used."""

    number: int
    root: Path  # the run's output folder
    folder: Path
    owner: int  # uid of the folder and all files in it
    created_at: datetime  # with zone; of one whose own word cannot be read, when its folder last changed
    created_by: str  # the owner's name, with the host as user@host where the revision says the same user
    note: str = ""
    run_file: Path = Path()  # where it came from
    run_file_sha256: str = ""
    digest: str = ""  # sha256 of its content: two revisions with the same one train the same; empty when it is damaged
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)  # by file name; empty when it is damaged
    damage: str = ""  # why it cannot be used, as one line that says what to do
    is_open: bool = False  # a user other than its owner could have changed it

    @property
    def name(self) -> str:
        """The folder's name, `NNNN-HASH12`, by which attempts and chains call it."""
        return self.folder.name

    @cached_property
    def file(self) -> RunFile:
        """The run file as published: expanded, with absolute paths. Raises OpsctlError for a damaged revision."""
        tables = self._decoded("run.json", dict[str, Any])
        for table, keys in _DROPPED.items():
            for key in keys:
                if isinstance(values := tables.get(table), dict):
                    values.pop(key, None)
        try:
            return msgspec.convert(tables, RunFile)
        except ValueError as error:
            raise OpsctlError(_damage(self.folder, f"run.json: {error}")) from None

    @cached_property
    def trainer_arguments(self) -> list[str]:
        """The trainer's arguments, before a chain's one-off ones; none for another program. Raises OpsctlError."""
        if self.file.program is not None:
            return []
        return self._decoded("trainer-arguments.json", list[str])

    def options(self, one_off: Sequence[str] = (), nodes: int | None = None) -> Options:
        """Return the trainer's options, with `one_off` last, on `nodes`. Raises OptionsError, OpsctlError."""
        if self.file.program is not None:
            from opsctl.run.config.program import options_of_program

            return options_of_program(self.file.program)
        # What a start is held against is much to import, for a question that most who read a revision do not ask.
        from trainer.formats.checkpoint.starting import parse_to_start

        slurm = self.file.slurm
        world_size = (slurm.nodes if nodes is None else nodes) * slurm.gpus_per_node
        return parse_to_start([*self.trainer_arguments, *one_off], world_size)

    @property
    def step_script(self) -> str:
        """The text of what srun runs on every node of a task. Raises OpsctlError for a damaged revision."""
        return self._text(STEP_SCRIPT)

    @property
    def slurm(self) -> dict[str, Any]:
        """The values that Slurm fixes at submission, by names of [slurm]. Raises OpsctlError for a damaged revision."""
        return slurm_part(self.file)

    def _text(self, name: str) -> str:
        if self.damage:
            raise OpsctlError(self.damage)
        if name not in self.texts:
            raise OpsctlError(_damage(self.folder, f"{name} is missing"))
        return self.texts[name]

    def _decoded(self, name: str, kind: type[T]) -> T:
        try:
            return parsed(self._text(name), kind)
        except ValueError as error:
            raise OpsctlError(_damage(self.folder, f"{name}: {error}")) from None


def slurm_part(file: RunFile) -> dict[str, Any]:
    """Return the values of [slurm] that Slurm fixes at submission."""
    return {key: msgspec.to_builtins(getattr(file.slurm, key)) for key in FIXED_AT_SUBMIT}


def digest_of(files: Mapping[str, str]) -> str:
    """sha256 over names and texts."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()


def read_revision(root: Path, number: int, folder: Path) -> Revision:
    """Return the revision in `folder`; its problem, if any, is its `damage`."""
    try:
        sealed = read_sealed(root, folder)
        about = _about(sealed, number, folder.name)
    except (OSError, ValueError) as error:
        why = file_problem(error) if isinstance(error, OSError) else str(error)
        return _damaged(root, number, folder, why)
    return Revision(
        number=number,
        root=root,
        folder=folder,
        owner=sealed.owner,
        created_at=about.created_at,
        created_by=_told_by(sealed.owner, about.created_by),
        note=about.note,
        run_file=Path(about.run_file),
        run_file_sha256=about.run_file_sha256,
        digest=about.digest,
        texts={name: text for name, text in sealed.texts.items() if name != ABOUT},
        is_open=sealed.is_open,
    )


def _about(sealed: Sealed, number: int, name: str) -> About:
    """Return the revision's description of itself, checked against its name and content. Raises ValueError."""
    if ABOUT not in sealed.texts:
        raise ValueError(f"{ABOUT} is missing")
    try:
        about = parsed(sealed.texts[ABOUT], About)
    except ValueError as error:
        raise ValueError(f"{ABOUT}: {error}") from None
    if about.schema_version != 1:
        raise ValueError(f"{ABOUT} has schema version {about.schema_version}, this opsctl reads 1")
    if about.number != number or not name.endswith(f"-{about.digest[:12]}"):
        raise ValueError(f"{ABOUT} is of {about.number:04d}-{about.digest[:12]}")
    if digest_of({name: text for name, text in sealed.texts.items() if name != ABOUT}) != about.digest:
        raise ValueError("its files have changed since they were published")
    return about


def no_revision(root: Path, folder: Path, why: str) -> Revision:
    """Return an unusable revision for a task that finds none, with the reason `why`."""
    return replace(_damaged(root, 0, folder / "none", ""), damage=why)


def _damaged(root: Path, number: int, folder: Path, why: str) -> Revision:
    try:
        found = folder.lstat()
    except OSError:
        owner, changed_at = -1, now()
    else:
        owner, changed_at = found.st_uid, datetime.fromtimestamp(found.st_mtime).astimezone()
    return Revision(
        number=number,
        root=root,
        folder=folder,
        owner=owner,
        created_at=changed_at,
        created_by=account_name(owner) if owner >= 0 else "an unknown user",
        damage=_damage(folder, why),
    )


def _damage(folder: Path, why: str) -> str:
    return f"revision {folder.name} in {folder.parent} is damaged: {printable(why)}; {_PUBLISH_ANEW}"


def unless_open(revision: Revision) -> Revision:
    """Return the revision, marked as damaged if users other than its owner could have changed it."""
    if revision.damage or not revision.is_open:
        return revision
    return replace(revision, texts={}, damage=_damage(revision.folder, "others than its owner can change it"))


def _told_by(owner: int, claimed: str) -> str:
    """Return the publisher: the owner of the files. Only the host is taken from their content."""
    name = account_name(owner)
    return printable(claimed) if claimed.partition("@")[0] == name else name


_NAME = re.compile(r"(?P<number>[0-9]{4,9})-(?P<hash>[0-9a-f]{12})")


class OwnersAlone(OpsctlError):
    """Only the run's owner decides what its tasks train, and the caller is another user."""


def contents(run: ExpandedRun) -> dict[str, str]:
    """Return file name -> text of a revision of `run`, without revision.json. Raises RunFileError."""
    # Who only reads revisions, as every look at a run does, need not wait for what makes one.
    from opsctl.run.render.batch import step_script
    from trainer.recipe.engine_config import engine_config

    files = {"run.json": json_file_text(run.file), STEP_SCRIPT: step_script(run)}
    if run.file.program is None:
        files["trainer-arguments.json"] = json_file_text(run.arguments)
        files["engine.json"] = json_file_text(engine_config(run.options))
    return files


def publish(run: ExpandedRun, note: str = "") -> Revision:
    """Make `run` the newest revision unless the newest says the same. The caller has validated it and holds
    `RunPaths.lock`; a kill leaves nothing that counts. Raises OpsctlError.
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
    """Return whether `publish` would change nothing. Raises OpsctlError as `newest`."""
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
    """Return the newest revision, damaged or not; None before the first submit. Raises OpsctlError."""
    return next(_newest_first(paths), None)


def newest_whole(paths: RunPaths) -> Revision | None:
    """Return the newest revision that can be read; None if there is none. Raises OpsctlError as `newest`."""
    return next((one for one in _newest_first(paths) if not one.damage), None)


def published_since(paths: RunPaths, since: datetime) -> list[Revision]:
    """Those that were published after `since`, oldest first. Raises OpsctlError as `newest`."""
    newer = itertools.takewhile(lambda one: one.created_at > since, _newest_first(paths))
    return [one for one in newer if not one.damage][::-1]


def newest_for_task(paths: RunPaths, only_owners: bool) -> tuple[Revision | None, tuple[Revision, ...]]:
    """Return the revision that a task takes now and the newer ones passed over. only_owners: it takes none but those of
    the run's owner, the task's account and root.
    """
    if not only_owners:
        return newest(paths), ()
    believed = (0, os.geteuid(), _owner_of(paths.output))
    return _newest_of(paths, lambda uid: uid in believed)


def newest_to_start(paths: RunPaths) -> tuple[Revision | None, tuple[Revision, ...]]:
    """Return the newest revision whose programs may run as the caller, and the newer ones passed over."""
    group = deciding_group(paths)
    return _newest_of(paths, lambda uid: uid in (0, os.geteuid()) or (group is not None and is_member(uid, group)))


def _newest_of(paths: RunPaths, is_believed: Callable[[int], bool]) -> tuple[Revision | None, tuple[Revision, ...]]:
    passed_over: list[Revision] = []
    for revision in _newest_first(paths):
        if is_believed(revision.owner):
            return unless_open(revision), tuple(passed_over)
        passed_over.append(revision)
    return None, tuple(passed_over)


def deciding_group(paths: RunPaths) -> int | None:
    """Return the group that decides what runs as the caller, by the caller's own newest revision; else None."""
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
    """Return the revision that a further chain's tasks would take now. Raises OpsctlError, OwnersAlone."""
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
    """Return the `table.key`s whose value in the run file is not the published one. Raises RunFileError."""
    return [] if loaded.sha256 == revision.run_file_sha256 else list(_differences(expanded_file(loaded), revision))


def changed_values(run: ExpandedRun, revision: Revision) -> dict[str, tuple[Any, Any]]:
    """`table.key` -> (published value, value in the run file), where they differ; None where there is none."""
    return _differences(run.file, revision)


def _differences(file: RunFile, revision: Revision) -> dict[str, tuple[Any, Any]]:
    now, then = _flat(file), _flat(revision.file)
    return {key: (then.get(key), now.get(key)) for key in {**then, **now} if then.get(key) != now.get(key)}


def _flat(file: RunFile) -> dict[str, Any]:
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
    for match in filter(None, map(_NAME.fullmatch, names)):
        yield int(match["number"]), paths.revisions / match.string


def _owner_of(output: Path) -> int | None:
    try:
        return output.stat().st_uid
    except OSError:
        return None


def _owners_word(paths: RunPaths, owner: int) -> str:
    """Return the `[run] publish` of the newest revision that the run's owner published."""
    last = next((one for one in _newest_first(paths) if one.owner == owner and not one.damage), None)
    return last.file.run.publish if last else "group"


def _cannot_write(error: OSError, folder: Path) -> str:
    full = FULL_DISK.get(error.errno or 0)
    if full:
        return f"cannot publish a revision: {full} at {folder}; nothing was changed: free some space and try again"
    where = error.filename if isinstance(error, Untrusted) else folder
    return f"cannot publish a revision: {where}: {error.strerror or error}; nothing was changed"
