"""The output of `opsctl disk` about a folder, as values and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.dirwalk.file_system import Filled
from opsctl.core.units import bytes_words, count_words
from opsctl.monitoring.disk.usage import FOLDERS, USERS, Counted, growth
from opsctl.monitoring.finding import length_words
from opsctl.run.state.space import SpaceLine
from trainer.formats.json_text import Moment

_DAY_S = 86400.0


class PrintedUse(Struct, frozen=True, kw_only=True):
    """The use of one account, or of one folder of the folder."""

    name: Annotated[str, Meta(description="The account, or the folder; `.` is what lies in none.")]
    used_bytes: Annotated[int, Meta(description="On the disk, in bytes.")]
    used_inodes: Annotated[int, Meta(description="Files, folders and links.")]
    bytes_a_day: Annotated[
        float | None, Meta(description="Its growth within a week; null if it was not counted before.")
    ]
    full_in_s: Annotated[float | None, Meta(description="Seconds until its growth alone fills the file system.")]


class PrintedDisk(Struct, frozen=True, kw_only=True):
    """The use of one folder, by account and by folder."""

    folder: Annotated[str, Meta(description="The folder.")]
    counted_at: Annotated[Moment, Meta(description="When the walk began.")]
    is_all: Annotated[bool, Meta(description="Whether the walk has seen everything.")]
    entries: Annotated[int, Meta(description="Entries that it has seen.")]
    unread: Annotated[int, Meta(description="Folders that could not be looked into.")]
    left_bytes: Annotated[int | None, Meta(description="What is left on its file system; null where that is not told.")]
    users: Annotated[list[PrintedUse], Meta(description="By account, largest growth first.")]
    folders: Annotated[list[PrintedUse], Meta(description="By folder, largest growth first.")]


class PrintedDay(Struct, kw_only=True):
    """Files that go on one day, or of one checkpoint."""

    name: Annotated[str, Meta(description="The local date, or the checkpoint's place in the folder.")]
    files: Annotated[int, Meta(description="How many.")] = 0
    size_bytes: Annotated[int, Meta(description="Their size.")] = 0
    first_at: Annotated[Moment | None, Meta(description="When the first of them goes.")] = None


class PrintedPurge(Struct, frozen=True, kw_only=True):
    """The files of one folder that the file system is about to remove."""

    folder: Annotated[str, Meta(description="The folder.")]
    files: Annotated[int, Meta(description="How many.")]
    size_bytes: Annotated[int, Meta(description="Their size.")]
    first_at: Annotated[Moment | None, Meta(description="When the first goes; null where none does.")]
    days: Annotated[list[PrintedDay], Meta(description="What goes on which day, in order.")]
    checkpoints: Annotated[list[PrintedDay], Meta(description="Which checkpoints would be damaged.")]
    unread: Annotated[int, Meta(description="Folders that could not be looked into.")]
    hanging: Annotated[list[str], Meta(description="Places that did not answer.")]


def printed_disk(counted: Counted, history: Sequence[SpaceLine], filled: Filled) -> PrintedDisk:
    """Return the counts and their growth. history: of earlier walks."""
    left = None
    if filled.limit_bytes is not None and filled.used_bytes is not None:
        left = max(0, filled.limit_bytes - filled.used_bytes)
    earlier = history if counted.is_all else ()  # an incomplete walk is smaller for another reason than growth
    return PrintedDisk(
        folder=str(counted.folder),
        counted_at=counted.at,
        is_all=counted.is_all,
        entries=counted.entries,
        unread=counted.unread,
        left_bytes=left,
        users=uses(counted, USERS, earlier, left),
        folders=uses(counted, FOLDERS, earlier, left),
    )


def uses(counted: Counted, by: str, history: Sequence[SpaceLine], left: int | None) -> list[PrintedUse]:
    """Return the use of each user or folder, the fastest growing first. left: free bytes of the file system."""
    found = []
    for name, (size, number) in (counted.users if by == USERS else counted.folders).items():
        grown = growth(size, counted.at, [one for one in history if one.name == f"{by} {name}"])
        full_in_s = left / grown * _DAY_S if left is not None and grown is not None and grown > 0 else None
        use = PrintedUse(name=name, used_bytes=size, used_inodes=number, bytes_a_day=grown, full_in_s=full_in_s)
        found.append(use)
    return sorted(found, key=lambda use: (-(use.bytes_a_day or 0.0), -use.used_bytes, use.name))


def disk_lines(told: PrintedDisk, by: Sequence[str]) -> Iterator[str]:
    """Return lines for people."""
    left = "" if told.left_bytes is None else f"; {bytes_words(told.left_bytes)} left on its file system"
    part = f"{count_words(told.entries)} entries" + ("" if told.is_all else " within --budget, not all")
    yield f"{told.folder}: {part}{left}"
    for what, uses in ((USERS, told.users), (FOLDERS, told.folders)):
        if what in by:
            yield f"  {what:24} {'used':>10} {'entries':>8} {'a day':>12}  full in"
            for use in uses:
                grown = "-" if use.bytes_a_day is None else f"{bytes_words(use.bytes_a_day)}"
                full = "-" if use.full_in_s is None else length_words(use.full_in_s)
                yield (
                    f"  {use.name:24} {bytes_words(use.used_bytes):>10} {count_words(use.used_inodes):>8} {grown:>12}"
                    f"  {full}"
                )
    if told.unread:
        yield f"  {told.unread:,} folders could not be looked into and are not counted"


def purge_lines(told: PrintedPurge) -> Iterator[str]:
    """Return lines for people."""
    if not told.files and (told.unread or told.hanging):
        yield f"{told.folder}: nothing that could be looked at is about to be removed"
    elif not told.files:
        yield f"{told.folder}: nothing is about to be removed"
    else:
        yield f"{told.folder}: {told.files:,} files, {bytes_words(told.size_bytes)}, are about to be removed"
    for day in told.days:
        yield f"  {day.name}: {day.files:,} files, {bytes_words(day.size_bytes)}"
    for one in told.checkpoints:
        when = f", the first on {one.first_at:%Y-%m-%d %H:%M}" if one.first_at else ""
        yield f"  {one.name} would be damaged: {one.files:,} of its files{when}"
    if told.unread:
        yield f"  {told.unread:,} could not be looked into"
    for place in told.hanging:
        yield f"  {place or 'the folder itself'}: its file system does not answer"
