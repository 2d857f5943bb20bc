"""What is to be sent and what is to go, from what is here and what was sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from opsctl.transfer.hub.ledger import Place, Sent
from opsctl.transfer.hub.local_files import Look, SeenFile

#: A commit has no more files, and no more bytes of those that go inside it.
FILES_PER_COMMIT = 200
BYTES_PER_COMMIT = 64 << 20
#: What is larger goes beside the commit, as an LFS object.
_INSIDE_A_COMMIT_BYTES = 10 << 20


@dataclass(frozen=True)
class Batch:
    """One commit: files to be there as they are here, and names that are to be there no more."""

    repo: str
    branch: str
    add: tuple[SeenFile, ...] = ()
    delete: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Of the files, as they were seen."""
        return sum(one.size for one in self.add)


def is_sent(file: SeenFile, sent: Sent | None, now_s: float) -> bool:
    """Whether the repository has this file as it is here, as far as there is anything to send of it."""
    if sent is None or (sent.size, sent.mtime_ns) != (file.size, file.mtime_ns):
        return False
    return sent.bytes == file.size or (file.is_lines and not file.has_settled(now_s))


def gone_files(
    look: Look, folder: str, patterns: Sequence[str], repo: str, branch: str, sent: Mapping[Place, Sent]
) -> list[str]:
    """What was sent of a kind, fits its patterns, and is here no more.

    Nothing where the kind's folder, or one below it, is not to be seen: what is away has deleted nothing.
    """
    if not look.is_there or look.unseen:
        return []
    here = {one.path for one in look.files}
    return sorted(
        path
        for of_repo, revision, path in sent
        if (of_repo, revision) == (repo, branch)
        and path.startswith(folder + "/")
        and path not in here
        and any(fnmatchcase(path[len(folder) + 1 :], pattern) for pattern in patterns)
    )


def batches(repo: str, branch: str, add: Iterable[SeenFile], delete: Iterable[str]) -> list[Batch]:
    """As few commits as take it all, small files first; what goes, goes in the first.

    A rename is a name that goes and one that comes, in one commit where that holds both.
    """
    parts: list[list[SeenFile]] = [[]]
    inside = 0
    for file in sorted(add, key=lambda one: (one.size > _INSIDE_A_COMMIT_BYTES, one.path)):
        own = file.size if file.size <= _INSIDE_A_COMMIT_BYTES else 0
        if len(parts[-1]) == FILES_PER_COMMIT or (parts[-1] and inside + own > BYTES_PER_COMMIT):
            parts.append([])
            inside = 0
        parts[-1].append(file)
        inside += own
    gone = sorted(delete)
    groups = [gone[at : at + FILES_PER_COMMIT] for at in range(0, len(gone), FILES_PER_COMMIT)]
    count = max(len(parts), len(groups))
    parts += [[]] * (count - len(parts))
    groups += [[]] * (count - len(groups))
    made = [Batch(repo, branch, tuple(some), tuple(names)) for some, names in zip(parts, groups, strict=True)]
    return [one for one in made if one.add or one.delete]
