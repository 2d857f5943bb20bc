"""Report the problems of a group's folder by owner, with the command that each must run."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.account import account_name
from opsctl.core.dirwalk.parallel import walk
from opsctl.core.dirwalk.sequential import Walked
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.run.permissions.apply import Opening, Seen
from opsctl.run.permissions.rule import STATE, place_in_run


class PrintedTrouble(Struct, frozen=True):
    """One kind of problem with files, or with folders, of one account."""

    what: Annotated[str, Meta(description="The problem, in words.")]
    is_folder: Annotated[bool, Meta(description="True for folders, false for files.")]
    count: Annotated[int, Meta(description="Number of entries.")]
    state: Annotated[str, Meta(description="`wrong` or `mended`; with `--dry-run` the planned state.")]
    why_not: Annotated[str, Meta(description="Why `perms fix` skips them or failed; else empty.")]
    examples: Annotated[list[str], Meta(description="Some of their places; empty: the folder itself.")]


class PrintedOwner(Struct, frozen=True):
    """The problems of one account's files and folders."""

    owner: Annotated[str, Meta(description="Name of the account.")]
    wrong: Annotated[int, Meta(description="Number of its files and folders with problems.")]
    troubles: Annotated[list[PrintedTrouble], Meta(description="Problems, fixed or not.")]
    command: Annotated[str | None, Meta(description="Command that it must run; null without problems.")]


class PrintedPerms(Struct, frozen=True):
    """One folder, and whether its group can use everything in it."""

    folder: Annotated[str, Meta(description="The folder, or the run file.")]
    group: Annotated[str, Meta(description="The Unix group.")]
    entries: Annotated[int, Meta(description="Number of files and folders checked.")]
    wrong: Annotated[int, Meta(description="Number of these with problems.")]
    owners: Annotated[list[PrintedOwner], Meta(description="Problems by owner, without owners that have none.")]
    other_runs: Annotated[list[str], Meta(description="Places of runs not shared with the group, which were skipped.")]
    unread: Annotated[int, Meta(description="Number of unreadable folders.")]
    unread_examples: Annotated[list[str], Meta(description="Some of these, with the reason.")]
    hanging: Annotated[list[str], Meta(description="Places that did not answer.")]
    dry_run: Annotated[bool, Meta(description="True if nothing was changed.")]


def check_folder(folder: Path, group: str, opening: Opening, report: Callable[[int], None]) -> PrintedPerms:
    """Walk through `folder` once and return what was found. Raises OpsctlError if it cannot be opened.

    report: regularly gets the number of checked entries.
    """
    seen = Seen()

    def take_in(found: Seen) -> None:
        seen.add(found)
        report(seen.entries)

    try:
        walked = walk(folder, replace(opening, above=place_in_run(folder.resolve())), take_in)
    except OSError as error:
        raise OpsctlError(f"cannot read {file_problem(error, folder)}") from None
    return _printed(folder, group, opening, seen, walked)


def check_run_file(path: Path, group: str, opening: Opening) -> PrintedPerms:
    """Check a run file, which the group may only read, because it defines where alerts are sent."""
    try:
        opening.see_to_read(path)
    except OSError as error:
        raise OpsctlError(f"cannot read {file_problem(error, path)}") from None
    return _printed(path, group, opening, opening.take(), Walked((), 1))


def refuse_private_run(folder: Path) -> None:
    """Raise OpsctlError if `folder` is in the output folder of a run that its owner shares with no group."""
    folder = folder.resolve()
    for one in (folder, *folder.parents):
        try:
            is_run = (one / STATE).is_dir()
            mode = one.stat().st_mode
        except OSError:
            continue  # not accessible to the caller, who can then change nothing in it
        if is_run and not mode & stat.S_IRWXG:
            raise OpsctlError(
                f"{one} is the output folder of a run that is not shared: "
                "set `group` in its run file's [run], then run opsctl kill-switch arm"
            )


def report_lines(found: PrintedPerms) -> Iterator[str]:
    """Yield the lines of the report."""
    total = f"{found.entries:,} files and folders"
    if found.wrong:
        yield f"{found.folder}: {found.wrong:,} of {total} are not as group {found.group} needs them"
    elif found.unread or found.hanging:
        yield f"{found.folder}: some of it could not be read; {total} are as group {found.group} needs them"
    else:
        yield f"{found.folder}: {total}, all as group {found.group} needs them"
    for owner in found.owners:
        for trouble in owner.troubles:
            yield f"  {owner.owner}: {_words(trouble, found.dry_run)}"
        if owner.command is not None:
            yield f"  {owner.owner} must run: {owner.command}"
    for place in found.other_runs:
        yield f"  {place}: the output folder of a run that is not shared with group {found.group}: skipped"
    if found.unread:
        yield f"  {found.unread:,} could not be read: {'; '.join(found.unread_examples)}"
    for place in found.hanging:
        yield f"  {place or 'the folder itself'}: its file system does not answer"


def _words(trouble: PrintedTrouble, dry_run: bool) -> str:
    kind = ("folder" if trouble.is_folder else "file") + ("" if trouble.count == 1 else "s")
    done = f" {'would be ' if dry_run else ''}fixed" if trouble.state != "wrong" else ""
    why = f" (perms fix skips them: {trouble.why_not})" if trouble.why_not else ""
    return f"{trouble.count:,} {kind}{done}: {trouble.what}{why}, as {trouble.examples[0] or 'the folder itself'}"


def _printed(folder: Path, group: str, opening: Opening, seen: Seen, walked: Walked) -> PrintedPerms:
    command = shlex.join(["opsctl", "perms", "fix", "--group", group, "--", str(folder)])
    by_owner: dict[str, list[PrintedTrouble]] = {}
    for one in sorted(seen.troubles, key=lambda one: (account_name(one.uid), repr(one))):
        trouble = PrintedTrouble(
            what="; ".join(one.lacks),
            is_folder=one.is_folder,
            count=seen.troubles[one].count,
            state="mended" if one.is_fixed else "wrong",
            why_not=one.why,
            examples=seen.troubles[one].examples,
        )
        by_owner.setdefault(account_name(one.uid), []).append(trouble)
    wrong = {owner: sum(one.count for one in found if one.state == "wrong") for owner, found in by_owner.items()}
    return PrintedPerms(
        folder=str(folder),
        group=group,
        entries=seen.entries,
        wrong=sum(wrong.values()),
        owners=[
            PrintedOwner(owner=owner, wrong=count, troubles=by_owner[owner], command=command if count else None)
            for owner, count in wrong.items()
        ],
        other_runs=sorted(seen.own_runs),
        unread=walked.unread_count,
        unread_examples=[f"{one.place}: {one.why}" for one in walked.unread[:5]],
        hanging=list(walked.hanging),
        dry_run=opening.only_counts,
    )
