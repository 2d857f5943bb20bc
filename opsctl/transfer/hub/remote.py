"""What sending needs of a place, whatever protocol reaches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opsctl.transfer.hub.file_snapshot import Moment

#: The branch of everything but checkpoints that have one of their own.
MAIN = "main"
NOT_TOLD = -1


@dataclass(frozen=True)
class Far:
    """A file as the place has it."""

    size: int  # or NOT_TOLD, where git's name says it all
    sha256: str | None  # of its content; None where the place tells git's name only
    git_oid: str  # git's name of its blob; of the pointer's blob where it is LFS

    def is_of(self, sha256: str, git_oid: str) -> bool:
        """Whether it is the content that has these names."""
        return self.sha256 == sha256 if self.sha256 else self.git_oid == git_oid


@dataclass(frozen=True)
class Who:
    """Whom the place takes us for."""

    name: str
    role: str  # what its token may do, in the place's own word; empty where it does not say


class Remote(Protocol):
    """One repository. Every method is patient within the time that it was made with.

    Each raises Refused where the place says no, or OutOfTime, never with a token in the text.
    """

    @property
    def name(self) -> str:
        """What the ledger and people call it, such as `lab/tr1`; never with a secret in it."""

    def who(self) -> Who:
        """Whose token it is."""

    def may_write(self) -> bool | None:
        """Whether our token may commit to it; None where there is no repository yet."""

    def head(self, revision: str) -> str | None:
        """The commit that a branch or tag is at; None where there is no such revision, or no repository."""

    def begin(self, branch: str, private: bool) -> None:
        """See to it that the repository and the branch are there; what is there already stays as it is."""

    def listed(self, revision: str, paths: Sequence[str] | None = None) -> dict[str, Far]:
        """The files of a revision, or those of `paths` that are there."""

    def read(self, path: str) -> bytes | None:
        """A small file of main; None where there is none."""

    def commit(self, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        """Bring the branch to where all of `add` is there as given and nothing of `delete`, in one commit or none.

        Returns the commit in which that is so. Raises Changed where a file is no longer what its moment was.
        """

    def missing(self, sent: Mapping[str, tuple[str, int]]) -> list[str]:
        """Of sha256 and size by path, those whose content the place has lost though it names them, where it can say."""

    def tag(self, tag: str, branch: str) -> None:
        """Give where `branch` is a name that stays, and let the branch go. A tag that is there already is moved."""
