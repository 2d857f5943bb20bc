"""`opsctl disk`: who uses what, and what is about to be purged. Needs no Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.progress import of_folder
from opsctl.cli.selection import folders_that_answer, json_option, run_option
from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.core.errors import UsageError
from opsctl.core.output import print_json, show_lines
from opsctl.core.timestamps import now
from opsctl.monitoring.disk.json_output import disk_lines, printed_disk, purge_lines
from opsctl.monitoring.disk.purging import find_purged
from opsctl.monitoring.disk.usage import FOLDERS, USERS, counted, read_history
from opsctl.run.config.profile import site_watch_table, watch_table
from opsctl.run.config.schema import WatchTable
from opsctl.run.state.run_view import glance
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s

_USE = "use"
_LONGEST_DAYS = 36_500  # what is longer is for ever
# Not click's own type of paths, which looks at what is named: that may hang.
_folders = click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=Path)


class _Disk(click.Group):
    """`opsctl disk FOLDER` is `opsctl disk use FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command if none is given."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [_USE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Disk)
def command() -> None:
    """Show who uses how much of a folder, and which files will be purged.

    `opsctl disk [FOLDER]...` is `opsctl disk use`. The default FOLDER is the run's output folder. Links and other file
    systems are not entered.
    """


@command.command(_USE, cls=LongCommand, goes_on=False)
@_folders
@run_option
@click.option("--by", type=click.Choice(["user", "folder"]), help="Show only users, or only folders.")
@click.option(
    "--budget",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to count files.",
)
@json_option(disk="list[opsctl.monitoring.disk.json_output.PrintedDisk]")
def use(folders: tuple[Path, ...], run: str | None, by: str | None, budget: float, as_json: bool) -> None:
    """Show disk use by user and folder, growth, and time until full.

    Largest growth first. Growth is that of the last week; "full in" assumes that it continues. The count stops after
    --budget seconds; growth is shown only for a complete one.
    """
    systems, told = FileSystems(), []
    where = _where(folders, run)
    for folder in where:
        found = counted(folder, budget / len(where), now(), of_folder(folder, "entries counted"))
        told.append(printed_disk(found, read_history(folder), systems.filled(folder)))
    if as_json:
        print_json("disk", told)
        return
    for one in told:
        show_lines(disk_lines(one, [by] if by else [USERS, FOLDERS]))


@command.command(cls=LongCommand)
@_folders
@run_option
@click.option(
    "--within", default="7-0", show_default=True, metavar="T", help="List files that the site deletes within this time."
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    metavar="DAYS",
    help="Days without access after which the site deletes files [default: [watch] purge_days].",
)
@json_option(purge="list[opsctl.monitoring.disk.json_output.PrintedPurge]")
def purge(folders: tuple[Path, ...], run: str | None, within: str, days: int | None, as_json: bool) -> None:
    """List files that the site is about to delete, by day.

    Uses the last access or modification time, whichever is later. Names checkpoints that would be damaged.
    """
    watch = _watch(folders, run)
    after, soon = _purge_after(watch, days), _duration(within)
    told = [find_purged(folder, after, soon, now()) for folder in _where(folders, run)]
    if as_json:
        print_json("purge", told)
        return
    for one in told:
        show_lines(purge_lines(one))


def _where(folders: Sequence[Path], run: str | None) -> list[Path]:
    return folders_that_answer(folders) or [glance(run, asks_first=True).paths.output]


def _watch(folders: Sequence[Path], run: str | None) -> WatchTable:
    """[watch] of the run where one is meant, over the profile's."""
    loaded: Any = None if folders and not run else glance(run, asks_first=True).loaded
    return watch_table(loaded.file) if loaded else site_watch_table()


def _purge_after(watch: WatchTable, days: int | None) -> timedelta:
    found = days or watch.purge_days
    if found is None:
        raise UsageError("the site's purge time is unknown: give --days, or set purge_days under [watch]")
    return timedelta(days=min(found, _LONGEST_DAYS))


def _duration(text: str) -> timedelta:
    try:
        return timedelta(seconds=min(parse_duration_s(text), _LONGEST_DAYS * 86400))
    except ValueError:
        raise UsageError(f"--within {text}: expected {DURATION_RULE}") from None
