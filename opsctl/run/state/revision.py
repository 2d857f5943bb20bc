"""One published revision, as it is read: all of it at once, held against what it says of itself.

A revision is a folder `.opsctl/revisions/NNNN-HASH12/` with revision.json, run.json (the run file, every value
expanded), trainer-arguments.json, engine.json and step.sh. It appears by one rename, so a task sees all of it or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.sealed import Sealed, read_sealed
from opsctl.core.files.state_files import parsed
from opsctl.core.output import printable
from opsctl.core.timestamps import now
from opsctl.run.config.schema import RunFile
from trainer.formats.json_text import Moment
from trainer.recipe.options import Options

T = TypeVar("T")

#: The keys of [slurm] that Slurm reads at submission: tasks already queued keep the old value.
FIXED_AT_SUBMIT = (
    "nodes",
    "spare",
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
#: The files of a revision that are asked for by name.
ABOUT, STEP_SCRIPT = "revision.json", "step.sh"
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
    note: str
    run_file: Path  # where it came from
    run_file_sha256: str
    digest: str  # sha256 of its content: two revisions with the same one train the same; empty when it is damaged
    texts: Mapping[str, str] = field(repr=False)  # by file name, without revision.json; empty when it is damaged
    damage: str = ""  # why it cannot be used, as one line that says what to do
    is_open: bool = False  # somebody else than its owner could have changed it

    @property
    def name(self) -> str:
        """The folder's name, `NNNN-HASH12`, by which attempts and chains call it."""
        return self.folder.name

    @cached_property
    def file(self) -> RunFile:
        """The run file as published: expanded, with absolute paths. Raises OpsctlError for a damaged revision."""
        return self._decoded("run.json", RunFile)

    @cached_property
    def trainer_arguments(self) -> list[str]:
        """What the trainer is started with, before a chain's one-off arguments and what only the job knows.

        Raises OpsctlError for a damaged revision.
        """
        return self._decoded("trainer-arguments.json", list[str])

    def options(self, one_off: Sequence[str] = (), nodes: int | None = None) -> Options:
        """What the trainer makes of those arguments, a chain's `one_off` last, on `nodes` (default: the run file's).

        Raises OptionsError for what it does not understand, as another release may have published it, OpsctlError for a
        damaged revision.
        """
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
        """What Slurm fixes at submission, by the names of [slurm]. Raises OpsctlError for a damaged revision."""
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
    """The values of [slurm] that Slurm fixes at submission."""
    return {key: msgspec.to_builtins(getattr(file.slurm, key)) for key in FIXED_AT_SUBMIT}


def digest_of(files: Mapping[str, str]) -> str:
    """sha256 over names and texts."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()


def read_revision(root: Path, number: int, folder: Path) -> Revision:
    """The revision in `folder`; what is wrong with it is its `damage`."""
    try:
        sealed = read_sealed(root, folder)
        about = _about(sealed, number, folder.name)
    except (OSError, ValueError) as error:
        return _damaged(root, number, folder, _why(error))
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
    """What the revision says of itself, held against its name and its content. Raises ValueError."""
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
        raise ValueError("its files are not what was published")
    return about


def no_revision(root: Path, folder: Path, why: str) -> Revision:
    """What a task has that finds none: one that cannot be used, and says `why`."""
    return replace(_damaged(root, 0, folder / "none", ""), damage=why)


def _why(error: OSError | ValueError) -> str:
    return file_problem(error) if isinstance(error, OSError) else str(error)


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
        created_by=account_name(owner) if owner >= 0 else "nobody knows whom",
        note="",
        run_file=Path(),
        run_file_sha256="",
        digest="",
        texts={},
        damage=_damage(folder, why),
    )


def _damage(folder: Path, why: str) -> str:
    return f"revision {folder.name} in {folder.parent} is damaged: {printable(why)}; {_PUBLISH_ANEW}"


def unless_open(revision: Revision) -> Revision:
    """A revision that others than its owner could have changed is nobody's word."""
    if revision.damage or not revision.is_open:
        return revision
    return replace(revision, texts={}, damage=_damage(revision.folder, "others than its owner can change it"))


def _told_by(owner: int, claimed: str) -> str:
    """Whose the files are is who published; of what they say only the host is new."""
    name = account_name(owner)
    return printable(claimed) if claimed.partition("@")[0] == name else name
