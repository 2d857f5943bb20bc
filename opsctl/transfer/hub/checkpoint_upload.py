"""A checkpoint to its repository: its files, each as its manifest says, and the manifest after all of them.

It may be pruned, rolled back or saved again meanwhile. Files are reached through the folder that was opened, and each
is held to the checksum that the manifest has of it, so that what lies under a manifest over there is what it says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import opened_folder
from opsctl.core.units import bytes_words
from opsctl.run.state.checkpoint_readers import reading
from opsctl.transfer.hub.due import Due
from opsctl.transfer.hub.file_snapshot import Changed, Moment, open_bytes
from opsctl.transfer.hub.ledger import Place, Sent, sent_files
from opsctl.transfer.hub.plan import FILES_PER_COMMIT
from opsctl.transfer.hub.repository import MAIN, RemoteFile, Repository
from opsctl.transfer.hub.sending import Sender, sent_line
from opsctl.transfer.object_store.below import open_below
from trainer.formats.checkpoint.manifest import MANIFEST, decode_manifest, fault_of
from trainer.formats.checkpoint.without_optimizer import manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError

#: What a repository has of its own on every branch.
_OF_THE_REPOSITORY = frozenset((".gitattributes", "README.md"))


class WentAway(OpsctlError):
    """The checkpoint is no more what it was when its sending began: pruned, moved, or saved again."""


class NotKept(OpsctlError):
    """The repository has lost, or somebody has removed there, what it took."""


def send_checkpoint(sender: Sender, remote: Repository, due: Due) -> None:
    """All of it, marked as being read. Raises what a Repository raises, WentAway, OSError."""
    paths = sender.paths
    with (
        reading(paths, due.manifest.iteration, f"hub sync to {due.repo}"),
        opened_folder(paths.output, due.folder) as (folder, _),
    ):
        fault = fault_of(due.folder)  # once more, now that no prune takes it
        if fault is not None:
            raise WentAway(f"it is no longer complete: {fault}")
        try:
            with _opened(sender, due, [MANIFEST], folder) as found, _as_sent(due, found) as moments:
                _send(sender, remote, due, folder, moments)
        except Changed as changed:
            raise WentAway(f"it changed while it was sent ({changed}), and is nowhere called whole") from None
        except FileNotFoundError as error:
            raise WentAway(f"{error.filename} went while it was sent, and it is nowhere called whole") from None


def _send(sender: Sender, remote: Repository, due: Due, folder: int, manifest: dict[str, Moment]) -> None:
    (whole,) = manifest.values()
    found = _found_whole(remote, due, whole)
    if found is None:
        files = _send_files(sender, remote, due, folder)
        _hold(sender, remote, due, files)
        commit = remote.commit(due.branch, manifest, [], f"{due.name}: whole")
        sender.count(due.repo, due.branch, commit, manifest)
        if due.how == "tag":
            remote.tag(due.name, due.branch)
    else:
        commit, files = found
    files[due.path(MANIFEST)] = sent_line(due.repo, due.revision, due.path(MANIFEST), whole, commit)
    sender.record(_where_it_is_now(due, sent_files(sender.paths), files))
    sender.patience.say(f"{due.repo}: {due.name}, {bytes_words(due.bytes)}, in {commit[:8]} on {due.revision}")


def _where_it_is_now(due: Due, known: Mapping[Place, Sent], files: Mapping[str, Sent]) -> list[Sent]:
    """The ledger's lines of a whole one: all of it is in its revision, and nothing is on the way there any more."""
    below, there = due.path(""), {path: replace(line, revision=due.revision) for path, line in files.items()}
    old = [
        replace(line, gone=True)
        for line in known.values()
        if line.repo == due.repo and line.revision in (due.branch, due.revision) and line.path.startswith(below)
        if line.revision != due.revision or line.path not in there
    ]
    return [*old, *(line for line in there.values() if known.get(line.place) != line)]


def _found_whole(remote: Repository, due: Due, manifest: Moment) -> tuple[str, dict[str, Sent]] | None:
    """The commit where it is already as it is here, with all its contents, and the lines of its files."""
    there = remote.listed(due.revision)
    said = there.get(due.path(MANIFEST))
    if said is None or not said.has_content(manifest.sha256, manifest.git_oid):
        return None
    found = {path: far for path, far in there.items() if path in {due.path(name) for name in due.names}}
    contents = {path: (far.sha256, far.size) for path, far in found.items() if far.sha256}
    if len(found) < len(due.names) or remote.missing(contents):
        return None
    commit = remote.head(due.revision)
    if commit is None:
        return None
    return commit, {path: _found_line(due, path, far, commit) for path, far in found.items()}


def _found_line(due: Due, path: str, far: RemoteFile, commit: str) -> Sent:
    oid = "" if far.sha256 else far.git_oid
    return Sent(
        repo=due.repo,
        revision=due.revision,
        path=path,
        bytes=far.size,
        sha256=far.sha256 or "",
        git_oid=oid,
        commit=commit,
    )


def _send_files(sender: Sender, remote: Repository, due: Due, folder: int) -> dict[str, Sent]:
    """What is not there yet; returns the lines of all of its files, by their names there."""
    if due.branch != MAIN:
        remote.begin(due.branch, private=True)
    known, there = sent_files(sender.paths), remote.listed(due.branch)
    stale = _stale(there, due)
    arrived = {due.path(name): line for name in due.names if (line := _arrived(due, name, known, there)) is not None}
    left = [name for name in due.names if due.path(name) not in arrived]
    groups = [left[at : at + FILES_PER_COMMIT] for at in range(0, len(left), FILES_PER_COMMIT)]
    for number, names in enumerate(groups or ([[]] if stale else []), start=1):
        with _opened(sender, due, names, folder) as moments:
            title = f"{due.name}: files, part {number} of {len(groups)}"
            commit = remote.commit(due.branch, moments, stale if number == 1 else [], title)
            lines = [
                sent_line(due.repo, due.branch, due.path(name), moment, commit, due.manifest.files[name].xxh64)
                for name, moment in zip(names, moments.values(), strict=True)
            ]
            sender.record([*lines, *_gone(due, stale if number == 1 else [])])
            sender.count(due.repo, due.branch, commit, moments)
            arrived.update((line.path, line) for line in lines)
    return arrived


def _hold(sender: Sender, remote: Repository, due: Due, arrived: Mapping[str, Sent]) -> None:
    """Raise NotKept unless all of its files are there as they were sent, contents too: a last look before its manifest.

    Somebody may have taken files or the branch away since, and a storage may lose what it acknowledged.
    """
    there = remote.listed(due.branch)
    gone = [path for path, line in arrived.items() if not _is_as_sent(line, there)]
    contents = {path: (there[path].sha256, line.bytes) for path, line in arrived.items() if path not in gone}
    gone += remote.missing({path: (sha256, size) for path, (sha256, size) in contents.items() if sha256})
    if gone:
        sender.record(_gone(due, gone))
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise NotKept(f"what was sent is not there any more ({gone[0]}{more}): the next sync sends it again")


def _gone(due: Due, paths: list[str]) -> list[Sent]:
    return [Sent(repo=due.repo, revision=due.branch, path=path, gone=True) for path in paths]


def _stale(there: Mapping[str, RemoteFile], due: Due) -> list[str]:
    """What lies there and is not of this checkpoint: an earlier save of it, or what a new branch begins with.

    An earlier manifest goes first of all.
    """
    wanted, below = {due.path(name) for name in due.names}, due.path("")
    return sorted(
        path for path in there if path.startswith(below) and path not in wanted and path not in _OF_THE_REPOSITORY
    )


def _arrived(due: Due, name: str, known: Mapping[Place, Sent], there: Mapping[str, RemoteFile]) -> Sent | None:
    """The line of a file that was sent in an earlier try, by the checksum in the manifest, and is there still."""
    found = known.get((due.repo, due.branch, due.path(name)))
    if found is None or found.xxh64 != due.manifest.files[name].xxh64 or not _is_as_sent(found, there):
        return None
    return found


def _is_as_sent(line: Sent, there: Mapping[str, RemoteFile]) -> bool:
    far = there.get(line.path)
    return far is not None and far.has_content(line.sha256, line.git_oid)


@contextlib.contextmanager
def _opened(sender: Sender, due: Due, names: list[str], folder: int) -> Iterator[dict[str, Moment]]:
    moments: dict[str, Moment] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            said = due.manifest.files.get(name)
            moment = Moment(
                open_below(folder, name), xxh64=said.xxh64 if said else None, still_time=sender.patience.check
            )
            moments[due.path(name)] = stack.enter_context(moment)
            if said is not None and moment.size != said.bytes:
                raise Changed(f"{name} has {moment.size} bytes instead of {said.bytes}")
        yield moments


@contextlib.contextmanager
def _as_sent(due: Due, found: dict[str, Moment]) -> Iterator[dict[str, Moment]]:
    """The manifest as it goes: as it is here, or that of what goes where optimizer states stay here."""
    if len(due.names) == len(due.manifest.files):
        yield found
        return
    ((path, here),) = found.items()
    try:
        whole = decode_manifest(here.read(), path)
    except CheckpointError as error:
        raise Changed(str(error)) from None
    if whole.files != due.manifest.files:
        raise Changed(f"{MANIFEST} is another one")
    with Moment(open_bytes(manifest_text(without_optimizer(whole)))) as made:
        made.stat = here.stat  # so that the ledger tells whether the one here changes
        yield {path: made}
