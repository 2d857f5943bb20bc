"""Background commands as people and programs see them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.files.trusted import open_file
from opsctl.core.output import printable, table_lines
from opsctl.core.timestamps import iso, to_the_second
from opsctl.jobs.background.records import BackgroundCommand, CommandRecords
from opsctl.jobs.background.submission import Seen
from trainer.formats.json_text import Moment

_LAST_BYTES = 4096
_COLUMNS = ("ID", "JOB", "STATE", "SINCE", "JOBS", "EXIT", "COMMAND")
#: What is longer is cut where people read it.
_WIDEST = 160


class PrintedCommand(Struct, frozen=True, kw_only=True):
    """A command that runs as a Slurm job, and as further jobs after a time limit."""

    errand: Annotated[str, Meta(description="Its name.")]
    command: Annotated[str, Meta(description="The command line, quoted for a shell.")]
    folder: Annotated[str, Meta(description="Host on which it was typed.")]
    run: Annotated[str | None, Meta(description="The run that it is for, if any.")]
    state: Annotated[
        str,
        Meta(
            description="`done`, `failed`, `cancelled`, `stopped` (no job continues it), `lost` (unknown how "
            "it ended); else Slurm's state in small letters, `held`, `on its way` or `unknown`."
        ),
    ]
    is_open: Annotated[bool, Meta(description="True if it may still do something.")]
    job_id: Annotated[int | None, Meta(description="Slurm's id of its last job; null if unknown.")]
    jobs: Annotated[int, Meta(description="How many jobs it has had so far.")]
    starts: Annotated[int, Meta(description="How often they were started, lost nodes included.")]
    host: Annotated[str | None, Meta(description="Host on which it last ran; null before its first start.")]
    asked_at: Annotated[Moment, Meta(description="Time of its submission.")]
    began_at: Annotated[Moment | None, Meta(description="When its last job was started first; null before.")]
    ended_at: Annotated[Moment | None, Meta(description="When its end was put on record.")]
    exit_code: Annotated[int | None, Meta(description="Exit code of the command; 128 + N if signal N ended it.")]
    detail: Annotated[str, Meta(description="More about its end, in words.")]
    output: Annotated[str, Meta(description="Path of its output.")]
    last_line: Annotated[str, Meta(description="The last line of that.")]


def printed_command(place: CommandRecords, seen: Seen) -> PrintedCommand:
    """Return the command as printed with `--json`."""
    one = seen.command
    return PrintedCommand(
        errand=one.name,
        command=command_of(one),
        folder=one.folder,
        run=one.run or None,
        state=seen.state,
        is_open=one.is_open,
        job_id=one.last.job_id or None,
        jobs=len(one.jobs),
        starts=sum(job.starts for job in one.jobs),
        host=one.last.host or None,
        asked_at=one.asked_at,
        began_at=to_the_second(one.last.began_at),
        ended_at=to_the_second(one.ended_at),
        exit_code=one.exit_code,
        detail=one.detail,
        output=str(place.output(one.name)),
        last_line=last_line(place, one.name),
    )


def command_lines(printed: Sequence[PrintedCommand]) -> list[str]:
    """Return a table, with the last line of output under each command."""
    lines = table_lines([_COLUMNS, *(_row(one) for one in printed)])
    shown = [lines[0]]
    for line, one in zip(lines[1:], printed, strict=True):
        shown.append(line)
        shown += [f"    {printable(text)[:_WIDEST]}" for text in (one.detail, one.last_line) if text]
    return shown


def command_of(command: BackgroundCommand) -> str:
    """Return the command line as it was typed, quoted for a shell."""
    return shlex.join(("opsctl", *command.words))


def last_line(place: CommandRecords, name: str) -> str:
    """Return the last non-empty line that it printed; empty if there is none or it cannot be read."""
    lines = read_output(place, name, -_LAST_BYTES)[0].splitlines()
    return next((line.rpartition("\r")[2].strip() for line in reversed(lines) if line.strip()), "")


def read_output(place: CommandRecords, name: str, begin: int) -> tuple[str, int]:
    """Return the output from the byte `begin` on, and where it ends. A negative `begin` counts from the end."""
    try:
        fd = open_file(place.root, place.output(name))
    except OSError:
        return "", max(0, begin)
    try:
        size = os.fstat(fd).st_size
        start = min(begin, size) if begin >= 0 else max(0, size + begin)
        data = os.pread(fd, size - start, start)
    finally:
        os.close(fd)
    return data.decode(errors="replace"), start + len(data)


def _row(one: PrintedCommand) -> tuple[str, ...]:
    command = printable(one.command)
    since = one.ended_at or one.began_at or one.asked_at
    exit_code = "" if one.exit_code is None else str(one.exit_code)
    return (
        one.errand,
        str(one.job_id or "?"),
        one.state,
        iso(since, "minutes"),
        str(one.jobs) if one.jobs == one.starts or not one.starts else f"{one.jobs}, {one.starts} starts",
        exit_code,
        command if len(command) <= _WIDEST else f"{command[:_WIDEST]}... ({len(command):,} characters)",
    )
