"""Checks of the repositories: whether a sync can be made, and whether they have what the ledger lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import iso
from opsctl.run.checkpoints.backups import BackedUp, What, read_hub, record
from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import RunView
from opsctl.transfer.hub.hub_errors import LOOK_S, RetryPolicy
from opsctl.transfer.hub.json_output import CheckedHub, CheckedRepo, ComparedHub, ComparedRevision
from opsctl.transfer.hub.place import Spot, proof_of
from opsctl.transfer.hub.repository import Repository, open_repository
from opsctl.transfer.hub.settings import HubSettings, required_settings
from opsctl.transfer.hub.sync import current_senders, plan_sync, sync_run
from opsctl.transfer.object_store.types import FarFile
from trainer.formats.checkpoint.manifest import MANIFEST, decode_manifest, tag_of
from trainer.formats.errors import CheckpointError


def repos_of(settings: HubSettings) -> dict[str, list[str]]:
    """Return the repositories, and what goes to each."""
    found: dict[str, list[str]] = {}
    for kind, repo in settings.repos.items():
        found.setdefault(repo, []).append(kind)
    return found


def check(paths: RunPaths, name: str, settings: HubSettings, partition: str | None) -> CheckedHub:
    """Check token, repositories and the right to write, and return what would be sent. Raises OpsctlError."""
    retry, plan = RetryPolicy(LOOK_S), plan_sync(paths, settings, KINDS)
    user = role = ""
    repos, problems = [], [*plan.unseen, *plan.notes]
    for repo, kinds in repos_of(settings).items():
        try:
            remote = open_repository(settings, repo, retry)
            if not user:
                user, role = remote.account()
            may_write = remote.may_write()
        except OpsctlError as error:
            problems.append(f"{repo}: {error}")
            continue
        if may_write is False:
            problems.append(f"{repo}: {user or 'this token'} may not write there: ask its owner for the right to write")
        repos.append(CheckedRepo(repo=repo, kinds=kinds, exists=may_write is not None, may_write=may_write))
    if not repos_of(settings):
        problems.append('[hub] names no repository: repo = "OWNER/NAME"')
    return CheckedHub(
        run=name,
        user=user,
        role=role,
        partition=partition,
        repos=repos,
        files=plan.files,
        bytes=plan.bytes,
        problems=problems,
    )


@dataclass
class Comparison:
    """The ledger against the repositories, and its lines that are wrong."""

    printed: ComparedHub
    wrong: set[BackedUp]


def compare(paths: RunPaths, name: str, settings: HubSettings) -> Comparison:
    """Compare the ledger with what is there, every name and every content. Raises OpsctlError, OSError.

    Repositories that [hub] does not name (any more) are left alone: they may be another account's.
    """
    retry, named = RetryPolicy(settings.give_up_after_s), repos_of(settings)
    lines = {  # by the checkpoint or file: of a checkpoint that was sent in two forms the later one is there
        (line.to, line.iteration, line.name): line
        for line in sorted(read_hub(paths), key=lambda line: line.sent_at.timestamp() if line.sent_at else 0.0)
        if line.to in named and line.counts
    }
    revisions: dict[tuple[str, str], list[BackedUp]] = {}
    for line in lines.values():
        revisions.setdefault((line.to, _spot(line).revision), []).append(line)
    printed, wrong = [], set[BackedUp]()
    for (repo, revision), of_it in sorted(revisions.items()):
        found = _compared(open_repository(settings, repo, retry), repo, revision, of_it, wrong)
        printed.append(found)
    last = max((line.sent_at for line in lines.values() if line.sent_at), default=None)
    told = ComparedHub(
        run=name,
        revisions=printed,
        waiting=plan_sync(paths, settings, KINDS).files,
        last_sent=iso(last),
        uploader=current_senders(paths),
    )
    return Comparison(told, wrong)


def compare_run(run: RunView, repair: bool, say: Callable[[str], None]) -> tuple[Comparison, list[str]]:
    """Compare a run's ledger with its repositories; with `repair` send again what is wrong, and compare once more.

    Returns the comparison and what could not be sent. Raises RunFileError without a [hub], OpsctlError, OSError.
    """
    paths, name, settings = run.paths, run.table.name, required_settings(run)
    found = compare(paths, name, settings)
    if not (repair and found.wrong):
        return found, []
    record(paths, [replace(line, lost="it is not there as it was sent") for line in found.wrong], paths.hub_ledger)
    say(f"{name}: {len(found.wrong)} files and checkpoints are sent again")
    left = sync_run(run, KINDS, False, say).left
    return compare(paths, name, settings), left


def _spot(line: BackedUp) -> Spot:
    return Spot("folder" if line.what is What.FILE else line.form, tag_of(line.iteration))


def _compared(
    remote: Repository, repo: str, revision: str, lines: list[BackedUp], wrong: set[BackedUp]
) -> ComparedRevision:
    """Compare one revision with its lines, and add those that are wrong to `wrong`."""
    there = remote.listed(revision)
    of_line = {line: _expected(remote, line, there) for line in lines}
    expected = {path: one for found in of_line.values() for path, one in found.items()}
    missing = sorted(expected.keys() - there.keys())
    differing = sorted(path for path, one in expected.items() if path in there and not one.fits(there[path]))
    lost = remote.missing({path: there[path] for path in expected.keys() - {*missing, *differing}})
    wrong |= {line for line, found in of_line.items() if found.keys() & {*missing, *differing, *lost}}
    return ComparedRevision(
        repo=repo, revision=revision, files=len(expected), missing=missing, differing=differing, lost=lost
    )


@dataclass(frozen=True)
class _Expected:
    """A file as it was sent. marks: of its content, one of which is reported; None: any."""

    bytes: int
    marks: tuple[str, ...] | None

    def fits(self, far: FarFile) -> bool:
        return far.bytes == self.bytes and (self.marks is None or far.mark in self.marks)


def _expected(remote: Repository, line: BackedUp, there: dict[str, FarFile]) -> dict[str, _Expected]:
    """Return the files that a line lists, by their paths; of a checkpoint those of the manifest there."""
    if line.what is What.FILE:
        return {line.name: _Expected(line.bytes, (line.of, line.proof))}
    spot = _spot(line)
    path = spot.path(MANIFEST)
    text = remote.read(path, spot.revision) or b""
    try:
        files = decode_manifest(text, path).files
    except CheckpointError:
        return {path: _Expected(0, ())}
    expected = {spot.path(name): _Expected(file.bytes, None) for name, file in files.items()}
    has_all = all(name in there and one.fits(there[name]) for name, one in expected.items())
    is_as_sent = not has_all or proof_of(there, spot, files) == line.proof
    return {**expected, path: _Expected(len(text), None if is_as_sent else ())}
