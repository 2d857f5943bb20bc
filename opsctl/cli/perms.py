"""`opsctl perms check|fix`: whether the group can work with what is in its folders. Needs no Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.progress import of_folder
from opsctl.cli.selection import folders_that_answer, json_option, run_option
from opsctl.core.account import membership_problem, unix_group
from opsctl.core.errors import RunFileError, UsageError
from opsctl.core.output import print_json, show_lines
from opsctl.run.permissions.apply import Opening
from opsctl.run.permissions.report import PrintedPerms, check_folder, check_run_file, refuse_private_run, report_lines
from opsctl.run.state.run_view import RunView, view

# Not click's own type of paths, which looks at what is named: that may hang.
_folders = click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=Path)
_group = click.option("--group", metavar="GROUP", help="The Unix group [default: the run's].")


@click.group()
def command() -> None:
    """Check that the group can use the run's files, or give it access.

    Everything in a shared folder should belong to the group: members may read and write the files, and new files belong
    to the group too (setgid). The default FOLDER is the run's output folder, with the run file, which the group only
    reads. Links and other file systems are not followed, the group gets no write access to revisions and requests, and
    runs without a group are skipped.
    """


@command.command(cls=LongCommand)
@_folders
@run_option
@_group
@json_option(perms="list[opsctl.run.permissions.report.PrintedPerms]")
@click.pass_context
def check(ctx: click.Context, folders: tuple[Path, ...], run: str | None, group: str | None, as_json: bool) -> None:
    """List files that the group cannot use, and who can fix them.

    Exits 1 on any problem, or if a folder could not be read. Changes nothing.
    """
    ctx.exit(_look(folders, run, group, as_json))


@command.command(cls=LongCommand)
@_folders
@run_option
@_group
@click.option("--dry-run", is_flag=True, help="Print what would be fixed; change nothing.")
@json_option(perms="list[opsctl.run.permissions.report.PrintedPerms]")
@click.pass_context
def fix(
    ctx: click.Context,
    folders: tuple[Path, ...],
    run: str | None,
    group: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give the group access to your files; print what others must do.

    Only its owner can change a file. Exits 1 if a problem remains, or a folder could not be read.
    """
    ctx.exit(_look(folders, run, group, as_json, fixes=True, only_counts=dry_run))


def _look(
    folders: Sequence[Path],
    run: str | None,
    group: str | None,
    as_json: bool,
    fixes: bool = False,
    only_counts: bool = False,
) -> int:
    where = folders_that_answer(folders)
    seen = _run(folders, run, group)
    named = group or (seen.table.group if seen else None) or ""
    gid = unix_group(named, "--group").gr_gid
    problem = membership_problem(named, "--group") if fixes else None
    if problem is not None:
        raise RunFileError(problem)

    def opening() -> Opening:
        return Opening(gid, fixes, only_counts)

    found: list[PrintedPerms] = []
    for folder in where or ([seen.paths.output] if seen else []):
        if folders:
            refuse_private_run(folder)
        found.append(check_folder(folder, named, opening(), of_folder(folder, "looked at")))
    if not folders and seen is not None and seen.loaded is not None:
        found.append(check_run_file(seen.loaded.path, named, opening()))
    for one in found:
        if not as_json:
            show_lines(report_lines(one))
    if as_json:
        print_json("perms", found)
    return 1 if any(one.wrong or one.unread or one.hanging for one in found) else 0


def _run(folders: Sequence[Path], run: str | None, group: str | None) -> RunView | None:
    """Return the chosen run, if any. Raises UsageError if the group is unknown."""
    if folders and group and not run:
        return None
    seen = view(run, asks_first=True)
    if not group and seen.table.group is None:
        raise UsageError(
            f'{seen.table.name} is shared with no group: write group = "NAME" under the run file\'s [run], '
            "or give --group NAME and a folder"
        )
    if not folders and group and group != seen.table.group:
        raise UsageError(f"{seen.table.name} is not shared with group {group}: name the folder that is meant")
    return seen
