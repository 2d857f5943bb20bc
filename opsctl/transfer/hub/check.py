"""Looking at the repositories: whether a sync can be made, and whether they have what the ledger says."""

from __future__ import annotations

from collections import defaultdict

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import iso
from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.hub_errors import LOOK_S, RetryPolicy
from opsctl.transfer.hub.json_output import CheckedHub, CheckedRepo, ComparedHub, ComparedRevision
from opsctl.transfer.hub.ledger import Sent, add_to_ledger, sent_files
from opsctl.transfer.hub.plan import plan_sync
from opsctl.transfer.hub.repository import RemoteFile, Repository, open_repository
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.hub.sync import current_senders
from trainer.formats.checkpoint.manifest import MANIFEST, iteration_of


def repos_of(settings: HubSettings) -> dict[str, list[str]]:
    """Return the repositories, and what goes to each."""
    found: dict[str, list[str]] = {}
    for kind, repo in settings.repos.items():
        found.setdefault(repo, []).append(kind)
    return found


def check(paths: RunPaths, name: str, settings: HubSettings, partition: str | None) -> CheckedHub:
    """Token, repositories, the right to write, where the cron's syncs run, what would be sent. Raises OpsctlError."""
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
            problems.append(
                f"{repo}: {user or 'this token'} may not write there: ask its owner, or log in as a user who may"
            )
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


def compare(paths: RunPaths, name: str, settings: HubSettings) -> ComparedHub:
    """Compare the ledger with what is there, every name and every content. Raises OpsctlError, OSError.

    Repositories that [hub] does not name (any more) are left alone: a shared folder's ledger says not whom we ask.
    """
    retry, named = RetryPolicy(settings.give_up_after_s), repos_of(settings)
    by_place: dict[tuple[str, str], dict[str, Sent]] = defaultdict(dict)
    for one in sent_files(paths).values():
        if one.repo not in named or not one.is_known:
            continue
        by_place[one.repo, one.revision][one.path] = one
    remotes: dict[str, Repository] = {}
    revisions = []
    for (repo, revision), known in sorted(by_place.items()):
        remote = remotes.get(repo) or remotes.setdefault(repo, open_repository(settings, repo, retry))
        if revision.startswith("sending-") and remote.head(revision) is None:
            continue  # it was the way to a tag that is there
        revisions.append(_compared(remote, repo, revision, known))
    last = max((one.at for one in sent_files(paths).values() if one.at and one.is_known), default=None)
    return ComparedHub(
        run=name,
        revisions=revisions,
        waiting=plan_sync(paths, settings, KINDS).files,
        last_sent=iso(last),
        uploader=current_senders(paths),
    )


def agrees(compared: ComparedHub) -> bool:
    """Return whether everything is there as the ledger says."""
    return not any(one.missing or one.differing or one.lost for one in compared.revisions)


def forget_what_is_not_there(paths: RunPaths, compared: ComparedHub) -> int:
    """Take out of the ledger what is not as it says, so that a sync sends it again; how many. Raises OSError.

    Of a checkpoint the manifest goes with any file: it is looked at as a whole.
    """
    known = sent_files(paths)
    wrong = {
        (one.repo, one.revision, path)
        for one in compared.revisions
        for path in (*one.missing, *one.differing, *one.lost)
    }
    manifests = {_manifest_of(place) for place in wrong}
    going = sorted(place for place in wrong | manifests if place in known)
    add_to_ledger(paths, [Sent(repo=repo, revision=revision, path=path, gone=True) for repo, revision, path in going])
    return len(wrong)


def _compared(remote: Repository, repo: str, revision: str, known: dict[str, Sent]) -> ComparedRevision:
    there = remote.listed(revision)
    differing = [path for path, one in known.items() if path in there and not _is_as_sent(there[path], one)]
    contents = {
        path: (far.sha256, far.size)
        for path, far in there.items()
        if path in known and path not in differing and far.sha256 is not None
    }
    return ComparedRevision(
        repo=repo,
        revision=revision,
        files=len(known),
        missing=sorted(path for path in known if path not in there),
        differing=sorted(differing),
        lost=remote.missing(contents) if contents else [],
    )


def _is_as_sent(far: RemoteFile, sent: Sent) -> bool:
    return far.size == sent.bytes and far.has_content(sent.sha256, sent.git_oid)


def _manifest_of(place: tuple[str, str, str]) -> tuple[str, str, str]:
    """Return the manifest of the checkpoint that a file belongs to; the place itself for what is of none."""
    repo, revision, path = place
    tag = revision.removeprefix("sending-")
    if iteration_of(tag) is not None:
        return repo, tag, MANIFEST
    parts = path.split("/")
    if parts[0] == "checkpoints" and len(parts) > 2:
        return repo, revision, "/".join((*parts[:2], MANIFEST))
    return place
