"""The `--json` output of `opsctl hub`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.units import bytes_words


class PrintedHubCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that a sync made, or found to be there."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    branch: Annotated[str, Meta(description="Where it was made.")]
    commit: Annotated[str, Meta(description="Its id there.")]


class SyncedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run's sync."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    state: Annotated[
        str,
        Meta(
            description="`sent`; `nothing new`; `would send`, with `--dry-run`; `left` where something is not sent; "
            "runs without a `[hub]`, and those of others, are not in the list."
        ),
    ]
    files: Annotated[int, Meta(description="Files that were sent, or would be.")] = 0
    bytes: Annotated[int, Meta(description="Of these files.")] = 0
    deleted: Annotated[int, Meta(description="Always 0: what is removed here stays there.")] = 0
    commits: Annotated[list[PrintedHubCommit], Meta(description="Those that were made, in order.")] = []
    left: Annotated[list[str], Meta(description="What was to be sent and was not, with why.")] = []
    notes: Annotated[list[str], Meta(description="What will not be sent, with why, and other news.")] = []

    @property
    def line(self) -> str:
        """Return the result on one line."""
        what = f": {self.files} files, {bytes_words(self.bytes)}" if self.files else ""
        state = f"{len(self.left)} not sent{'; sent' if what else ''}" if self.left else self.state
        return f"{self.run}: {state}{what}"


class CheckedRepo(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of a run's `[hub]`, as a sender sees it."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    kinds: Annotated[list[str], Meta(description="What goes there.")]
    exists: Annotated[bool, Meta(description="Whether it is there already, and to be seen.")]
    may_write: Annotated[bool | None, Meta(description="None where it is still to be made.")]


class CheckedHub(msgspec.Struct, frozen=True, kw_only=True):
    """The check of a sync, and what it would send."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    user: Annotated[str, Meta(description="Whose token it is.")]
    role: Annotated[str, Meta(description="What the token may do, in the hub's word.")]
    partition: Annotated[str | None, Meta(description="Where the cron's syncs run: `[jobs] internet_partition`.")]
    repos: Annotated[list[CheckedRepo], Meta(description="Those that [hub] names.")]
    files: Annotated[int, Meta(description="Files that would be sent.")]
    bytes: Annotated[int, Meta(description="Of these files.")]
    problems: Annotated[list[str], Meta(description="What is in the way of a sync.")]


class ComparedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the ledger with one revision of one repository."""

    repo: Annotated[str, Meta(description="OWNER/NAME.")]
    revision: Annotated[str, Meta(description="Branch or tag.")]
    files: Annotated[int, Meta(description="Files that the ledger knows there.")]
    missing: Annotated[list[str], Meta(description="Names that are not there.")]
    differing: Annotated[list[str], Meta(description="Names that have another content there than was sent.")]
    lost: Annotated[list[str], Meta(description="Names whose content the storage does not have any more.")]


class ComparedHub(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger against the repositories."""

    run: Annotated[str, Meta(description="`[run] name`.")]
    revisions: Annotated[list[ComparedRevision], Meta(description="One of each repository after the other.")]
    waiting: Annotated[int, Meta(description="Files here that are still to be sent.")]
    last_sent: Annotated[str | None, Meta(description="When something was sent last, ISO 8601.")]
    uploader: Annotated[str | None, Meta(description="Who is sending now.")]
