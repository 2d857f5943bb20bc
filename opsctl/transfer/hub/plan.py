"""The plan of a sync: what to send and delete, from the local files and the ledger. The hub is not asked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PureWindowsPath

from opsctl.run.checkpoints.backups import Every, folders_oldest_first, manifest_or_fault, sent_as
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS_OF_FILES, is_passing
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import HubTable
from opsctl.transfer.hub.ledger import Place, Sent, sent_files
from opsctl.transfer.hub.repository import MAIN
from opsctl.transfer.hub.settings import HubSettings
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, iteration_of

#: A text that grows is cut to whole lines until it was not written to for so long.
SETTLED_S = 600.0
#: Names that no repository takes, in any case: those of the client, and what some file system takes for git's own.
_NEVER = frozenset((".git", "git~1", ".cache", ".huggingface"))
#: Kinds whose files are lines.
_KINDS_OF_LINES = ("logs", "carbon")
#: The most files of a commit, and the most bytes of those that go inside it.
FILES_PER_COMMIT = 200
BYTES_PER_COMMIT = 64 << 20
#: What is larger goes next to the commit, as an LFS object.
_INSIDE_A_COMMIT_BYTES = 10 << 20


@dataclass(frozen=True)
class SeenFile:
    """A file here. path: from the output folder on, which is its name in the repository too."""

    path: str
    kind: str
    size: int
    mtime_ns: int

    @property
    def is_growing(self) -> bool:
        """Return whether it is sent by whole lines, because a process may be appending."""
        return self.kind in _KINDS_OF_LINES and time.time() - self.mtime_ns / 1e9 <= SETTLED_S


@dataclass(frozen=True)
class Batch:
    """One commit: files that come, and names that go."""

    repo: str
    add: tuple[SeenFile, ...] = ()
    delete: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the size of its files."""
        return sum(one.size for one in self.add)

    @property
    def words(self) -> str:
        """Describe it in a few words."""
        kinds = ", ".join(sorted({one.kind for one in self.add}))
        parts = [f"{len(self.add)} files of {kinds}"] if self.add else []
        return " and ".join([*parts, *([f"{len(self.delete)} deletions"] if self.delete else [])])


@dataclass(frozen=True)
class DueCheckpoint:
    """A complete checkpoint that its repository does not have as it is here."""

    repo: str
    folder: Path
    manifest: Manifest
    how: str  # folder, branch or tag
    names: tuple[str, ...]  # of the manifest's files, those that are sent

    @property
    def name(self) -> str:
        """Return its tag, `global_stepN`."""
        return self.folder.name

    @property
    def files(self) -> int:
        """Return how many files are sent, with the manifest."""
        return len(self.names) + 1

    @property
    def bytes(self) -> int:
        """Return the size of its files that are sent."""
        return sum(self.manifest.files[name].bytes for name in self.names)

    @property
    def branch(self) -> str:
        """Return where it is sent to. A tag is made of a branch when that is whole, and never before."""
        return {"folder": MAIN, "branch": self.name, "tag": f"sending-{self.name}"}[self.how]

    @property
    def revision(self) -> str:
        """Return where it is when it is whole."""
        return MAIN if self.how == "folder" else self.name

    def path(self, name: str) -> str:
        """Return a file's name in the repository."""
        return f"checkpoints/{self.name}/{name}" if self.how == "folder" else name


@dataclass(frozen=True)
class Plan:
    """Commits of files by repository, then checkpoints. unseen: folders that this account cannot list."""

    batches: tuple[Batch, ...] = ()
    checkpoints: tuple[DueCheckpoint, ...] = ()
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.batches and not self.checkpoints

    @property
    def files(self) -> int:
        """Return how many files would be sent."""
        return sum(len(one.add) for one in self.batches) + sum(one.files for one in self.checkpoints)

    @property
    def bytes(self) -> int:
        """Return the size of the files that would be sent."""
        return sum(one.bytes for one in self.batches) + sum(one.bytes for one in self.checkpoints)

    @property
    def deletions(self) -> int:
        """Return how many names would go."""
        return sum(len(one.delete) for one in self.batches)


def plan_sync(paths: RunPaths, settings: HubSettings, kinds: Sequence[str]) -> Plan:
    """Return what is here and not there, by the ledger. Raises OSError, OpsctlError."""
    sent = sent_files(paths)
    notes: list[str] = []
    unseen: list[str] = []
    add: dict[str, list[SeenFile]] = {}
    delete: dict[str, list[str]] = {}
    for kind in KINDS_OF_FILES:
        repo, folder = settings.repo(kind), paths.folder_of(kind)
        if kind not in kinds or repo is None or not folder.is_dir():
            continue
        patterns, closed = settings.patterns(kind), len(unseen)
        found = sorted(_files_of(paths, kind, patterns, notes, unseen), key=lambda one: one.path)
        add.setdefault(repo, []).extend(one for one in found if not _is_sent(one, sent.get((repo, MAIN, one.path))))
        if kind in settings.table.mirror and len(unseen) == closed:  # a folder that cannot be seen has deleted nothing
            here = {one.path for one in found}
            delete.setdefault(repo, []).extend(_gone(here, folder.name, patterns, repo, sent))
    made = [one for repo in add for one in _batches(repo, add[repo], sorted(delete.get(repo, ())))]
    due, not_sent = _due_checkpoints(paths, settings, sent) if CHECKPOINTS in kinds else ([], [])
    return Plan(tuple(made), tuple(due), (*notes, *not_sent), tuple(unseen))


def groups(files: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Return the names of (name, bytes) in as few commits as take them all, small files first."""
    parts: list[list[str]] = [[]]
    inside = 0
    for name, size in sorted(files, key=lambda one: (one[1] > _INSIDE_A_COMMIT_BYTES, one[0])):
        own = size if size <= _INSIDE_A_COMMIT_BYTES else 0
        if len(parts[-1]) == FILES_PER_COMMIT or (parts[-1] and inside + own > BYTES_PER_COMMIT):
            parts.append([])
            inside = 0
        parts[-1].append(name)
        inside += own
    return parts


def _files_of(
    paths: RunPaths, kind: str, patterns: Sequence[str], notes: list[str], unseen: list[str]
) -> Iterator[SeenFile]:
    """Yield the plain files under the kind's folder whose names match; nothing is opened and no link is followed.

    Locks and files that are still being written are left out. notes: gets a line for each name that no repository
    takes; unseen: one for each folder that cannot be listed.
    """
    top = paths.folder_of(kind)
    for entry in _entries(str(top), paths.output, unseen):
        below = os.path.relpath(entry.path, top)
        if is_passing(entry.name) or not any(fnmatchcase(below, pattern) for pattern in patterns):
            continue
        path = os.path.relpath(entry.path, paths.output)
        if not _can_be_named(path):
            notes.append(f"{path!a} cannot be sent: no repository has a file of such a name")
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield SeenFile(path, kind, found.st_size, found.st_mtime_ns)


def _entries(top: str, output: Path, unseen: list[str]) -> Iterator[os.DirEntry[str]]:
    folders = [top]
    while folders:
        at = folders.pop()
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            if at == top:
                raise
            unseen.append(f"{os.path.relpath(at, output)}: it cannot be listed by this account")


def _can_be_named(path: str) -> bool:
    r"""Return whether a repository can have a file of this name, and everybody can download and clone it.

    Not what is no UTF-8 or in a folder of git's or the client's own; nor `a:b` and `\`, which lead out of a folder on
    Windows: one client refuses a whole repository with such a name, wherever it runs.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    return "\\" not in path and not any(
        part.lower().rstrip(" .") in _NEVER or PureWindowsPath(part).drive for part in parts
    )


def _is_sent(file: SeenFile, sent: Sent | None) -> bool:
    """Return whether the repository has this file as it is here, as far as there is anything to send of it."""
    if sent is None or (sent.size, sent.mtime_ns) != (file.size, file.mtime_ns):
        return False
    return sent.bytes == file.size or file.is_growing


def _gone(here: set[str], folder: str, patterns: Sequence[str], repo: str, sent: Mapping[Place, Sent]) -> list[str]:
    """Return what was sent of a kind, fits its patterns, and is here no more."""
    return [
        path
        for of_repo, revision, path in sent
        if (of_repo, revision) == (repo, MAIN)
        and path.startswith(folder + "/")
        and path not in here
        and any(fnmatchcase(path[len(folder) + 1 :], pattern) for pattern in patterns)
    ]


def _batches(repo: str, add: Iterable[SeenFile], gone: Sequence[str]) -> list[Batch]:
    """Return the commits. A rename goes and comes in one commit where that has room for both."""
    by_path = {one.path: one for one in add}
    parts = groups((path, one.size) for path, one in by_path.items())
    going = [gone[at : at + FILES_PER_COMMIT] for at in range(0, len(gone), FILES_PER_COMMIT)]
    made = [
        Batch(
            repo,
            tuple(by_path[path] for path in parts[at]) if at < len(parts) else (),
            tuple(going[at]) if at < len(going) else (),
        )
        for at in range(max(len(parts), len(going)))
    ]
    return [one for one in made if one.add or one.delete]


def _due_checkpoints(
    paths: RunPaths, settings: HubSettings, sent: Mapping[Place, Sent]
) -> tuple[list[DueCheckpoint], list[str]]:
    """Return those that are complete and wanted and were not sent, oldest first, and why others are not sent.

    Only the manifest of what was sent is read: a checkpoint's files never change under it. Raises OpsctlError.
    """
    table, repo = settings.table, settings.repo(CHECKPOINTS)
    if repo is None or table.checkpoints is None:
        return [], []
    every = Every(weights=table.checkpoints_every) if table.weights_only else Every(full=table.checkpoints_every)
    due, notes = [], []
    for folder in folders_oldest_first(paths.checkpoints):
        what = every.form(iteration_of(folder.name) or 0)
        if what is None or _is_checkpoint_sent(repo, table, folder, sent):
            continue
        found = manifest_or_fault(folder)
        if isinstance(found, str):
            notes.append(f"{folder.name} is not sent: {found}")
        else:
            names = tuple(sorted(sent_as(found, what).files))
            due.append(DueCheckpoint(repo, folder, found, table.checkpoints, names))
    return due, notes


def _is_checkpoint_sent(repo: str, wanted: HubTable, folder: Path, sent: Mapping[Place, Sent]) -> bool:
    in_folder = (repo, MAIN, f"checkpoints/{folder.name}/{MANIFEST}")
    known = sent.get(in_folder if wanted.checkpoints == "folder" else (repo, folder.name, MANIFEST))
    if known is None or (known.bytes != known.size and not wanted.weights_only):  # the weights alone were sent
        return False
    try:
        found = (folder / MANIFEST).lstat()
    except OSError:
        return False
    return (known.size, known.mtime_ns) == (found.st_size, found.st_mtime_ns)
