"""One batch of files, or one checkpoint, to its repository, and what was sent to the ledger.

A checkpoint may be pruned, rolled back or saved again meanwhile. Its files are reached through the folder that was
opened, and each is checked against the manifest's checksum; the manifest goes in a commit of its own after all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.trusted import open_file, opened_folder
from opsctl.core.units import bytes_words
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.background_progress import tell_progress
from opsctl.run.state.checkpoint_readers import reading
from opsctl.transfer.hub.file_snapshot import Changed, Moment, open_bytes
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.ledger import Place, Sent, add_to_ledger, sent_files
from opsctl.transfer.hub.plan import Batch, DueCheckpoint, SeenFile, groups
from opsctl.transfer.hub.repository import MAIN, RemoteFile, Repository
from opsctl.transfer.object_store.below import open_below
from trainer.formats.checkpoint.manifest import MANIFEST, decode_manifest, fault_of
from trainer.formats.checkpoint.starting import manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError

#: What a repository has of its own on every branch.
_OF_THE_REPOSITORY = frozenset((".gitattributes", "README.md"))


class WentAway(OpsctlError):
    """The checkpoint is no longer what it was when its sending began: pruned, moved, or saved again."""


class NotKept(OpsctlError):
    """The repository has lost a file, or a user has removed it there."""


@dataclass
class Outcome:
    """The result of a sync so far. left: what is to be sent and was not, each with the reason."""

    commits: list[tuple[str, str, str]] = field(default_factory=list)  # repository, branch, commit
    files: int = 0
    bytes: int = 0
    deleted: int = 0
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sender:
    """The sending of one run's files."""

    paths: RunPaths
    retry: RetryPolicy
    outcome: Outcome

    def send(self, remote: Repository, batch: Batch, title: str, note: Mapping[str, Moment]) -> None:
        """Send what can be read of a batch; a file that cannot is left and named. Raises what a Repository raises.

        note: what goes in the same commit and is none of the run's files.
        """
        with self._opened(batch.add) as moments:
            self._announce(batch, moments)
            commit = None
            while commit is None and (moments or batch.delete or note):
                try:
                    commit = remote.commit(MAIN, {**note, **moments}, batch.delete, title)
                except Changed:
                    self._drop_the_changed(moments)
            if commit is None:
                return
            lines = [_sent_line(batch.repo, MAIN, path, one, commit) for path, one in moments.items()]
            self.count(batch.repo, MAIN, commit, moments)
        self.record([*lines, *_gone_lines(batch.repo, MAIN, batch.delete)])
        self.outcome.deleted += len(batch.delete)
        parts = [f"{len(lines)} files, {bytes_words(sum(one.bytes for one in lines))}"] if lines else []
        parts += [f"{len(batch.delete)} deleted"] if batch.delete else []
        self.retry.say(f"{batch.repo}: {', '.join(parts) or 'nothing new'} in {commit[:8]} on {MAIN}")

    def count(self, repo: str, branch: str, commit: str, moments: Mapping[str, Moment]) -> None:
        """Add a commit to the outcome."""
        self.outcome.commits.append((repo, branch, commit))
        self.outcome.files += len(moments)
        self.outcome.bytes += sum(one.size for one in moments.values())
        tell_progress(len(self.outcome.commits))

    def record(self, lines: list[Sent]) -> None:
        """Append to the ledger; if the disk does not take it, the next sync asks the repository."""
        try:
            add_to_ledger(self.paths, lines)
        except OSError as error:
            line = f"not written down what was sent ({file_problem(error)}): the next sync asks for it"
            if line not in self.outcome.notes:
                self.outcome.notes.append(line)

    def _announce(self, batch: Batch, paths: Iterable[str]) -> None:
        """Record the names that are new there, without a content, so that a kill hides none from `mirror`."""
        known = sent_files(self.paths)
        new = [path for path in paths if (batch.repo, MAIN, path) not in known]
        self.record([Sent(repo=batch.repo, revision=MAIN, path=path) for path in new])

    @contextlib.contextmanager
    def _opened(self, files: tuple[SeenFile, ...]) -> Iterator[dict[str, Moment]]:
        """Yield the files that can be read, each as it is now, and the same until the block ends."""
        moments: dict[str, Moment] = {}
        with contextlib.ExitStack() as stack:
            for file in files:
                try:
                    fd = open_file(self.paths.output, self.paths.output / file.path)
                except FileNotFoundError:
                    continue  # the next sync finds that it has gone
                except OSError as error:
                    self.outcome.left.append(f"{file.path}: {error.strerror or error}")
                    continue
                moment = Moment(fd, whole_lines=file.is_growing, still_time=self.retry.check)
                moments[file.path] = stack.enter_context(moment)
            yield moments

    def _drop_the_changed(self, moments: dict[str, Moment]) -> None:
        """Leave out what is no longer what it was: the next sync sends it as it is then."""
        for path, moment in list(moments.items()):
            if why := moment.changed():
                del moments[path]
                self.outcome.left.append(f"{path}: {why}")


def send_checkpoint(sender: Sender, remote: Repository, due: DueCheckpoint) -> None:
    """Send all of it, marked as being read. Raises what a Repository raises, WentAway, OSError."""
    paths = sender.paths
    with (
        reading(paths, due.manifest.iteration, f"hub sync to {due.repo}"),
        opened_folder(paths.output, due.folder) as (folder, _),
    ):
        fault = fault_of(due.folder)  # once more, now that prune leaves it alone
        if fault is not None:
            raise WentAway(f"it is no longer complete: {fault}")
        try:
            with _opened(sender, due, [MANIFEST], folder) as found, _as_sent(due, found[due.path(MANIFEST)]) as whole:
                _send(sender, remote, due, folder, whole)
        except Changed as changed:
            raise WentAway(f"it changed while it was sent ({changed}), and is nowhere called whole") from None
        except FileNotFoundError as error:
            raise WentAway(f"{error.filename} went while it was sent, and it is nowhere called whole") from None


def _send(sender: Sender, remote: Repository, due: DueCheckpoint, folder: int, whole: Moment) -> None:
    manifest = {due.path(MANIFEST): whole}
    found = _found_whole(remote, due, whole)
    if found is None:
        files = _send_files(sender, remote, due, folder)
        _check_kept(sender, remote, due, files)
        commit = remote.commit(due.branch, manifest, [], f"{due.name}: whole")
        sender.count(due.repo, due.branch, commit, manifest)
        if due.how == "tag":
            remote.tag(due.name, due.branch)
    else:
        commit, files = found
    files[due.path(MANIFEST)] = _sent_line(due.repo, due.revision, due.path(MANIFEST), whole, commit)
    sender.record(_where_it_is_now(due, sent_files(sender.paths), files))
    sender.retry.say(f"{due.repo}: {due.name}, {bytes_words(due.bytes)}, in {commit[:8]} on {due.revision}")


def _where_it_is_now(due: DueCheckpoint, known: Mapping[Place, Sent], files: Mapping[str, Sent]) -> list[Sent]:
    """Return the ledger's lines of a whole one: all of it is in its revision, and nothing in the branch to it."""
    below, there = due.path(""), {path: replace(line, revision=due.revision) for path, line in files.items()}
    old = [
        replace(line, gone=True)
        for line in known.values()
        if line.repo == due.repo and line.revision in (due.branch, due.revision) and line.path.startswith(below)
        if line.revision != due.revision or line.path not in there
    ]
    return [*old, *(line for line in there.values() if known.get(line.place) != line)]


def _found_whole(remote: Repository, due: DueCheckpoint, manifest: Moment) -> tuple[str, dict[str, Sent]] | None:
    """Return the commit that has it already, with all its contents, and the lines of its files; None without."""
    there = remote.listed(due.revision)
    wanted = {due.path(name) for name in due.names}
    found = {path: file for path, file in there.items() if path in wanted}
    reported = there.get(due.path(MANIFEST))
    if reported is None or not reported.has_content(manifest.sha256, manifest.git_oid) or len(found) < len(wanted):
        return None
    if remote.missing({path: (file.sha256, file.size) for path, file in found.items() if file.sha256}):
        return None
    commit = remote.head(due.revision)
    if commit is None:
        return None
    lines = {
        path: Sent(
            repo=due.repo,
            revision=due.revision,
            path=path,
            bytes=file.size,
            sha256=file.sha256 or "",
            git_oid="" if file.sha256 else file.git_oid,
            commit=commit,
        )
        for path, file in found.items()
    }
    return commit, lines


def _send_files(sender: Sender, remote: Repository, due: DueCheckpoint, folder: int) -> dict[str, Sent]:
    """Send what is not there yet; return the lines of all of its files, by their names there."""
    if due.branch != MAIN:
        remote.begin(due.branch, private=True)
    known, there, files = sent_files(sender.paths), remote.listed(due.branch), due.manifest.files
    arrived: dict[str, Sent] = {}
    for name in due.names:  # what an earlier try has sent, by the checksum in the manifest, and is there still
        line = known.get((due.repo, due.branch, due.path(name)))
        if line is not None and line.xxh64 == files[name].xxh64 and _is_as_sent(line, there):
            arrived[line.path] = line
    left = groups((name, files[name].bytes) for name in due.names if due.path(name) not in arrived)
    stale = _stale(there, due)
    for number, names in enumerate(left, start=1):
        if not names and not stale:
            break
        with _opened(sender, due, names, folder) as moments:
            commit = remote.commit(due.branch, moments, stale, f"{due.name}: files, part {number} of {len(left)}")
            lines = [
                _sent_line(due.repo, due.branch, due.path(name), moment, commit, files[name].xxh64)
                for name, moment in zip(names, moments.values(), strict=True)
            ]
            sender.record([*lines, *_gone_lines(due.repo, due.branch, stale)])
            sender.count(due.repo, due.branch, commit, moments)
            arrived.update((line.path, line) for line in lines)
        stale = []
    return arrived


def _check_kept(sender: Sender, remote: Repository, due: DueCheckpoint, arrived: Mapping[str, Sent]) -> None:
    """Raise NotKept unless all of its files are there as they were sent, contents too, right before its manifest.

    A user may have removed files or the branch since, and a storage may lose what it acknowledged.
    """
    there = remote.listed(due.branch)
    gone = [path for path, line in arrived.items() if not _is_as_sent(line, there)]
    kept = {path: (there[path].sha256, line.bytes) for path, line in arrived.items() if path not in gone}
    gone += remote.missing({path: (sha256, size) for path, (sha256, size) in kept.items() if sha256})
    if gone:
        sender.record(_gone_lines(due.repo, due.branch, gone))
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise NotKept(f"what was sent is not there any more ({gone[0]}{more}): the next sync sends it again")


def _stale(there: Mapping[str, RemoteFile], due: DueCheckpoint) -> list[str]:
    """Return what is there and not of this checkpoint: an earlier save of it, or what a new branch begins with.

    An earlier manifest is among it.
    """
    wanted, below = {due.path(name) for name in due.names}, due.path("")
    return sorted(
        path for path in there if path.startswith(below) and path not in wanted and path not in _OF_THE_REPOSITORY
    )


def _is_as_sent(line: Sent, there: Mapping[str, RemoteFile]) -> bool:
    file = there.get(line.path)
    return file is not None and file.has_content(line.sha256, line.git_oid)


@contextlib.contextmanager
def _opened(sender: Sender, due: DueCheckpoint, names: list[str], folder: int) -> Iterator[dict[str, Moment]]:
    moments: dict[str, Moment] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            file = due.manifest.files.get(name)
            moment = Moment(open_below(folder, name), xxh64=file.xxh64 if file else None, still_time=sender.retry.check)
            moments[due.path(name)] = stack.enter_context(moment)
            if file is not None and moment.size != file.bytes:
                raise Changed(f"{name} has {moment.size} bytes instead of {file.bytes}")
        yield moments


@contextlib.contextmanager
def _as_sent(due: DueCheckpoint, here: Moment) -> Iterator[Moment]:
    """Yield the manifest to be sent: the one here, or that of a save without optimizer states."""
    if len(due.names) == len(due.manifest.files):
        yield here
        return
    try:
        whole = decode_manifest(here.read(), due.path(MANIFEST))
    except CheckpointError as error:
        raise Changed(str(error)) from None
    if whole.files != due.manifest.files:
        raise Changed(f"{MANIFEST} is another one")
    with Moment(open_bytes(manifest_text(without_optimizer(whole)))) as made:
        made.stat = here.stat  # so that the ledger shows whether the one here changes
        yield made


def _gone_lines(repo: str, revision: str, paths: Sequence[str]) -> list[Sent]:
    return [Sent(repo=repo, revision=revision, path=path, gone=True) for path in paths]


def _sent_line(repo: str, revision: str, path: str, moment: Moment, commit: str, xxh64: str = "") -> Sent:
    return Sent(
        repo=repo,
        revision=revision,
        path=path,
        size=moment.stat.st_size,
        mtime_ns=moment.stat.st_mtime_ns,
        bytes=moment.size,
        sha256=moment.sha256,
        git_oid=moment.git_oid,
        xxh64=xxh64,
        commit=commit,
    )
