"""The `--json` output of `opsctl hub`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.units import bytes_words


class PrintedHubCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that a sync made, or found to be there."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    branch: Annotated[str, Meta(description="Host on which it was made.")]
    commit: Annotated[str, Meta(description="Its id there.")]


class SyncedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run's sync."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    state: Annotated[
        str,
        Meta(
            description="`sent`; `nothing new`; `would send`, with `--dry-run`; `left`: some files were "
            "not sent. Runs of other users and runs without a `[hub]` are not listed."
        ),
    ]
    files: Annotated[int, Meta(description="Files that were sent, or would be.")] = 0
    bytes: Annotated[int, Meta(description="Of these files.")] = 0
    deleted: Annotated[int, Meta(description="Always 0: opsctl removes nothing from the hub.")] = 0
    commits: Annotated[list[PrintedHubCommit], Meta(description="The new commits, in order.")] = []
    left: Annotated[list[str], Meta(description="Files that were not sent, each with the reason.")] = []
    notes: Annotated[
        list[str], Meta(description="Files that are never sent, each with the reason, and other notes.")
    ] = []

    @property
    def line(self) -> str:
        """Return the result on one line."""
        what = f": {self.files} files, {bytes_words(self.bytes)}" if self.files else ""
        state = f"{len(self.left)} not sent{'; sent' if what else ''}" if self.left else self.state
        return f"{self.run}: {state}{what}"


class CheckedRepo(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of a run's `[hub]`, as a sender sees it."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    kinds: Annotated[list[str], Meta(description="Kinds of files that are sent there.")]
    exists: Annotated[bool, Meta(description="True if it is there already, and to be seen.")]
    may_write: Annotated[bool | None, Meta(description="Null if it does not exist yet.")]


class CheckedHub(msgspec.Struct, frozen=True, kw_only=True):
    """The check of a sync, and what it would send."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    user: Annotated[str, Meta(description="Account of the token.")]
    role: Annotated[str, Meta(description="Rights of the token, in the hub's words.")]
    partition: Annotated[
        str | None, Meta(description="Partition of the scheduler's syncs: `[jobs] internet_partition`.")
    ]
    repos: Annotated[list[CheckedRepo], Meta(description="Repositories that [hub] names.")]
    files: Annotated[int, Meta(description="Files that would be sent.")]
    bytes: Annotated[int, Meta(description="Of these files.")]
    problems: Annotated[list[str], Meta(description="Problems that prevent a sync.")]


class ComparedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the ledger with one revision of one repository."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    revision: Annotated[str, Meta(description="Branch or tag.")]
    files: Annotated[int, Meta(description="Files that the ledger knows there.")]
    missing: Annotated[list[str], Meta(description="Names that are not there.")]
    differing: Annotated[list[str], Meta(description="Names that have another content there than was sent.")]
    lost: Annotated[list[str], Meta(description="Files whose content is missing in the hub's storage.")]


class ComparedHub(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger against the repositories."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    revisions: Annotated[list[ComparedRevision], Meta(description="One of each repository after the other.")]
    waiting: Annotated[int, Meta(description="Files here that are still to be sent.")]
    last_sent: Annotated[str | None, Meta(description="When something was sent last, ISO 8601.")]
    uploader: Annotated[str | None, Meta(description="Process that is sending now.")]
