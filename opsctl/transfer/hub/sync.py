"""Sending what is new of a run to its repositories, one commit after another while there is time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PureWindowsPath

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, read_text
from opsctl.run.checkpoints.backups import BackedUp, Every, read_hub
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS_OF_FILES
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import RunView
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.json_output import SyncedRun
from opsctl.transfer.hub.place import HubPlace, Outcome, groups, open_place
from opsctl.transfer.hub.settings import HubSettings, required_settings
from opsctl.transfer.sending.checkpoint import send_all
from opsctl.transfer.sending.plan import Due, Rules, SeenFile, checkpoints_here, choose, files_below, whole_here
from trainer.formats.checkpoint.manifest import read_manifest, tag_of
from trainer.formats.errors import CheckpointError

#: Files, and checkpoints, which take a night, have a lock each.
FILES = "files"
#: A text that grows is cut to whole lines until it was not written to for so long.
SETTLED_S = 600.0
#: Kinds whose files are lines.
_KINDS_OF_LINES = ("logs", "carbon")
#: Names that no repository takes, in any case: those of the client, and what some file system takes for git's own.
_NEVER = frozenset((".git", "git~1", ".cache", ".huggingface"))


@dataclass
class Plan:
    """The files and checkpoints to be sent. growing: names of files that are sent by whole lines."""

    files_of: dict[str, list[SeenFile]] = field(default_factory=dict)  # by repository
    growing: set[str] = field(default_factory=set)
    checkpoints_to: str = ""  # repository
    checkpoints: tuple[Due, ...] = ()
    files: int = 0  # how many would be sent
    bytes: int = 0
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # folders that this account cannot list


def plan_sync(paths: RunPaths, settings: HubSettings, kinds: Sequence[str]) -> Plan:
    """Return what is here and not there, by the ledger; the hub is not asked. Raises OSError, OpsctlError."""
    lines, found = read_hub(paths), Plan()
    sent = {(line.to, line.name): line for line in lines if line.name and line.counts}
    for kind in KINDS_OF_FILES:
        repo, top = settings.repo(kind), paths.folder_of(kind)
        if kind not in kinds or repo is None or not top.is_dir():
            continue
        for file in files_below(top, paths.output, found.unseen):
            below = os.path.relpath(file.name, top.name)
            if not any(fnmatchcase(below, pattern) for pattern in settings.patterns(kind)):
                continue
            if not _can_be_named(file.name):
                found.notes.append(f"{file.name!a} cannot be sent: no repository has a file of such a name")
                continue
            is_growing = kind in _KINDS_OF_LINES and time.time() - file.mtime_ns / 1e9 <= SETTLED_S
            if not _is_sent(file, sent.get((repo, file.name)), is_growing):
                found.files_of.setdefault(repo, []).append(file)
                found.growing |= {file.name} if is_growing else set()
                found.files, found.bytes = found.files + 1, found.bytes + file.size
    if CHECKPOINTS in kinds:
        _plan_checkpoints(paths, settings, lines, found)
    return found


def _plan_checkpoints(paths: RunPaths, settings: HubSettings, lines: Sequence[BackedUp], found: Plan) -> None:
    table, repo = settings.table, settings.repo(CHECKPOINTS)
    if repo is None or table.checkpoints is None:
        return
    every = Every(weights=table.checkpoints_every) if table.weights_only else Every(full=table.checkpoints_every)
    of_form = [line for line in lines if line.form == table.checkpoints]
    latest = latest_iteration(paths.checkpoints)
    chosen = whole_here(paths, choose(checkpoints_here(paths), of_form, repo, Rules(every), latest))
    found.checkpoints_to, found.checkpoints = repo, chosen.due
    found.notes += [f"{tag_of(iteration)} is not sent: {why}" for iteration, why in chosen.left.items()]
    for due in chosen.due:
        with contextlib.suppress(CheckpointError):  # deleted just now
            files = read_manifest(paths.checkpoints / tag_of(due.iteration)).files
            found.files, found.bytes = (
                found.files + len(files) + 1,
                found.bytes + sum(one.bytes for one in files.values()),
            )


def _can_be_named(path: str) -> bool:
    r"""Return whether a repository can have a file of this name, and everybody can download and clone it.

    Not what is no UTF-8 or in a folder of git's or the client's own; nor `a:b` and `\`, which lead out of a folder on
    Windows: one client refuses a whole repository with such a name, wherever it runs.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    return "\\" not in path and not any(
        part.lower().rstrip(" .") in _NEVER or PureWindowsPath(part).drive for part in parts
    )


def _is_sent(file: SeenFile, sent: BackedUp | None, is_growing: bool) -> bool:
    """Return whether the repository has this file as it is here, as far as there is anything to send of it."""
    if sent is None or (sent.size, sent.mtime_ns) != (file.size, file.mtime_ns):
        return False
    return sent.bytes == file.size or is_growing


def sync(paths: RunPaths, name: str, settings: HubSettings, kinds: Sequence[str], retry: RetryPolicy) -> Outcome:
    """Send what is new: files, then checkpoints. Where nothing is, the hub is not asked and nothing is locked.

    What could not be sent is in the outcome, also where another process sends for all the time that there is. Raises
    OSError, OpsctlError.
    """
    outcome = Outcome()
    for lane, of_lane in ((FILES, KINDS_OF_FILES), (CHECKPOINTS, (CHECKPOINTS,))):
        wanted = [kind for kind in of_lane if kind in kinds]
        found = plan_sync(paths, settings, wanted)
        if found.files:
            if other := _sender(paths, lane):
                retry.say(f"waiting for {other}, which is sending {lane}")
            try:
                with only_sender(paths, lane, retry.left_s):
                    found = plan_sync(paths, settings, wanted)  # another process may have sent it until now
                    _send(paths, name, settings, found, retry, outcome)
            except OpsctlError as busy:
                outcome.left.append(str(busy))
        outcome.notes += found.notes
        outcome.left += found.unseen
    return outcome


def sync_run(run: RunView, kinds: Sequence[str], dry_run: bool, say: Callable[[str], None]) -> SyncedRun:
    """Send the new files of `kinds`, or with `dry_run` only count them, and return the result.

    say: prints a line about each wait. Raises RunFileError if the run has no [hub], OpsctlError.
    """
    settings, name = required_settings(run), run.table.name
    try:
        if dry_run:
            plan, state = plan_sync(run.paths, settings, kinds), "would send"
            done = Outcome(files=plan.files, bytes=plan.bytes, left=plan.unseen, notes=plan.notes)
        else:
            retry = RetryPolicy(settings.give_up_after_s, say=lambda line: say(f"{name}: {line}"))
            done = sync(run.paths, name, settings, kinds, retry)
            state = "left" if done.left else "sent"
    except OSError as error:
        return SyncedRun(run=name, state="left", left=[file_problem(error, run.paths.output)])
    has_news = done.files if dry_run else done.left or done.commits
    return SyncedRun(run=name, state=state if has_news else "nothing new", **vars(done))


def _send(paths: RunPaths, name: str, settings: HubSettings, found: Plan, retry: RetryPolicy, outcome: Outcome) -> None:
    """Send everything in turn. A failure in one repository keeps nothing from another."""
    steps: list[tuple[str, str, Callable[[HubPlace], None]]] = []
    for repo, files in found.files_of.items():
        by_name = {one.name: one for one in files}
        for names in groups((one.name, one.size) for one in files):
            batch, what = [by_name[one] for one in names], f"{len(names)} files"
            send = partial(HubPlace.send_batch, files=batch, growing=found.growing, title=f"{name}: {what}")
            steps.append((repo, what, send))
    if found.checkpoints:
        steps.append((found.checkpoints_to, "checkpoints", partial(_send_checkpoints, due=found.checkpoints)))
    places: dict[str, HubPlace | None] = {}  # None: it takes no more
    for repo, what, step in steps:
        problem = "as before it"
        try:
            place = places[repo] if repo in places else open_place(paths, name, settings, repo, retry, outcome)
            places[repo] = place
            if place is not None:
                step(place)
                problem = ""
        except OpsctlError as error:
            places[repo], problem = None, str(error)
        except OSError as error:
            problem = file_problem(error)
        if problem:
            outcome.left.append(f"{what} to {repo}: {problem}")


def _send_checkpoints(place: HubPlace, due: Sequence[Due]) -> None:
    done = send_all(place, place.paths, place.where, place.paths.hub_ledger, due, place.retry.say)
    place.outcome.left += [f"{problem} ({place.where})" for problem in done.problems]


def only_sender(paths: RunPaths, lane: str, wait_s: float) -> contextlib.AbstractContextManager[None]:
    """Be the only process that sends. lane: FILES or CHECKPOINTS. Raises OpsctlError that names another one, OSError.

    Two at once, where locks do not reach other hosts, would do no harm: the repository takes commits in turn.
    """
    make_folder(paths.output, paths.hub_uploaders)
    return locked(paths.output, _lock_file(paths, lane), wait_s, "send to the hub")


def current_senders(paths: RunPaths) -> str | None:
    """Return who is sending, for people; None if no process is."""
    return ", ".join(filter(None, (_sender(paths, lane) for lane in (FILES, CHECKPOINTS)))) or None


def _sender(paths: RunPaths, lane: str) -> str:
    try:
        with contextlib.suppress(OSError), only_sender(paths, lane, 0):
            pass
    except OpsctlError:
        return (read_text(paths.output, _lock_file(paths, lane)) or "another process").strip()
    return ""


def _lock_file(paths: RunPaths, lane: str) -> Path:
    return paths.hub_uploaders / f"{lane}.lock"
