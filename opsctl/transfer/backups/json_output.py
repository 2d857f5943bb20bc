"""The output of the commands about backups: `--json`, and the ledger as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.output import printable, table_lines
from opsctl.core.timestamps import iso
from opsctl.run.checkpoints.backups import BackedUp, What, shown_place
from trainer.formats.json_text import Moment

_HEAD = ("WHAT", "GB", "SENT", "PROVEN", "STATE", "TO")


class PrintedBackup(Struct, frozen=True, kw_only=True):
    """One thing that is backed up somewhere."""

    to: Annotated[str, Meta(description="The destination.")]
    what: Annotated[
        str,
        Meta(description="`full`; `weights`: without optimizer states; `rest`: logs and records; `data`: data sets."),
    ]
    iteration: Annotated[int | None, Meta(description="Iteration of the checkpoint; null for other files.")]
    form: Annotated[str, Meta(description="Always `files`: each by itself there.")]
    files: Annotated[int, Meta(description="How many files it has there.")]
    bytes: Annotated[int, Meta(description="Their size together.")]
    sent_at: Annotated[Moment | None, Meta(description="When it was sent.")]
    by: Annotated[str, Meta(description="User and host that sent it, as user@host.")]
    verified_at: Annotated[Moment | None, Meta(description="When all of it was last proven there by checksum.")]
    lost: Annotated[str | None, Meta(description="Why it no longer counts.")]


class DueBackup(Struct, frozen=True, kw_only=True):
    """A checkpoint that a destination should have and has not."""

    iteration: Annotated[int, Meta(description="Which checkpoint.")]
    what: Annotated[str, Meta(description="`full`, or `weights`: without optimizer states.")]
    reason: Annotated[str, Meta(description="Why it is wanted there.")]
    news: Annotated[str, Meta(description="Why it has to be sent now.")]


class BackedUpRun(Struct, frozen=True, kw_only=True):
    """The result of a backup of one run at one destination, or the plan."""

    run: Annotated[str, Meta(description="The run's name.")]
    to: Annotated[str, Meta(description="The destination.")]
    due: Annotated[list[DueBackup], Meta(description="Checkpoints that were to be sent, oldest first.")] = []
    sent: Annotated[list[PrintedBackup], Meta(description="New files at the destination.")]
    there: Annotated[list[int], Meta(description="Iterations that it wants and had already.")] = []
    left: Annotated[dict[str, str], Meta(description="Why a checkpoint that it wants was not sent, by iteration.")] = {}
    problems: Annotated[list[str], Meta(description="Problems, one sentence each.")]
    dry_run: Annotated[bool, Meta(description="True if nothing was sent.")] = False


class RestoredCheckpoint(Struct, frozen=True, kw_only=True):
    """The result of `checkpoints restore`."""

    folder: Annotated[str, Meta(description="Its absolute path.")]
    iteration: Annotated[int, Meta(description="Which checkpoint.")]
    files: Annotated[int, Meta(description="How many files.")]
    bytes: Annotated[int, Meta(description="Their size together.")]
    whole: Annotated[bool, Meta(description="True: it has its manifest.")]
    latest: Annotated[bool, Meta(description="True if the next task resumes from it.")] = False
    without_optimizer: Annotated[bool, Meta(description="True if it has no optimizer states.")] = False
    was_there: Annotated[bool, Meta(description="True if it was complete already: nothing was fetched.")] = False


class RestoredRun(Struct, frozen=True, kw_only=True):
    """The result of `restore`."""

    folder: Annotated[str, Meta(description="The run's folder, absolute.")]
    run: Annotated[str, Meta(description="The run's name.")]
    files: Annotated[int, Meta(description="How many files of logs and records.")]
    bytes: Annotated[int, Meta(description="Size of all that was brought.")]
    checkpoint: Annotated[int | None, Meta(description="Iteration of the restored checkpoint.")]
    standing: Annotated[str, Meta(description="Text that says if it is the same run or a copy.")]
    warnings: Annotated[list[str], Meta(description="Notes to read.")]
    was_there: Annotated[bool, Meta(description="True if it was complete already: nothing was fetched.")] = False


class RestoredDataSet(Struct, frozen=True, kw_only=True):
    """One data set that is there again."""

    options: Annotated[list[str], Meta(description="The run file's keys that named it.")]
    was: Annotated[str, Meta(description="Its old path: a prefix, a folder or a file.")]
    path: Annotated[str, Meta(description="Its new path.")]
    files: Annotated[int, Meta(description="Files fetched.")]
    bytes: Annotated[int, Meta(description="Their size together.")]
    there: Annotated[int, Meta(description="Files that were there already, the same.")]


class RestoredData(Struct, frozen=True, kw_only=True):
    """The result of `restore --data`."""

    run: Annotated[str, Meta(description="The run's name.")]
    run_id: Annotated[str, Meta(description="Its id; else empty.")]
    sets: Annotated[list[RestoredDataSet], Meta(description="Each data set.")]
    changes: Annotated[list[str], Meta(description="Changes that the run file needs for the new paths.")]


class VerifiedBackups(Struct, frozen=True, kw_only=True):
    """The result of `backup verify` at one destination."""

    to: Annotated[str, Meta(description="The destination.")]
    backups: Annotated[int, Meta(description="How many whole ones lie there.")]
    files: Annotated[int, Meta(description="How many files were read.")]
    bytes: Annotated[int, Meta(description="Their size together.")]
    lost: Annotated[list[PrintedBackup], Meta(description="Copies that no longer count.")]
    problems: Annotated[list[str], Meta(description="Other problems, one sentence each.")]


def printed(line: BackedUp) -> PrintedBackup:
    """Return a line of the ledger for people's programs."""
    return PrintedBackup(
        to=line.to,
        what=line.what.value,
        iteration=line.iteration or None,
        form=line.form,
        files=line.files,
        bytes=line.bytes,
        sent_at=line.sent_at,
        by=line.by,
        verified_at=line.verified_at,
        lost=line.lost or None,
    )


def backup_table(lines: Sequence[BackedUp], named: Collection[str] | None = None) -> list[str]:
    """Return a table by destination and iteration. named: the destinations of [backup] to; None if unknown."""
    in_order = sorted(lines, key=lambda line: (line.to, line.iteration, line.what))
    # data sets may have places of their own
    rows = [_HEAD, *(_row(line, named is None or line.to in named or line.what is What.DATA) for line in in_order)]
    return table_lines(rows)


def _row(line: BackedUp, is_named: bool) -> tuple[str, ...]:
    what = f"{line.iteration} {line.what.words}" if line.what.is_checkpoint else line.what.words
    return (
        what,
        f"{line.bytes / 1e9:.3g}",
        iso(line.sent_at, "minutes") or "?",
        iso(line.verified_at, "minutes") or "never",
        printable(f"LOST: {line.lost}" if line.lost else "there"),
        printable(shown_place(line.to)) + ("" if is_named else ", not in [backup] to"),
    )
