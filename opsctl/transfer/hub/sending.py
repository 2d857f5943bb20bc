"""A batch to its repository: files opened and held, sent, written into the ledger."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from opsctl.core.errors import file_problem
from opsctl.core.files.trusted import open_file
from opsctl.core.units import bytes_words
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.background_progress import tell_progress
from opsctl.transfer.hub.file_snapshot import Changed, Moment
from opsctl.transfer.hub.ledger import Sent, add_to_ledger, sent_files
from opsctl.transfer.hub.local_files import SeenFile
from opsctl.transfer.hub.plan import Batch
from opsctl.transfer.hub.repository import Repository
from opsctl.transfer.hub.retry_policy import Patience


@dataclass
class Outcome:
    """What came of a sync so far. left: what is to be sent and was not, each with why."""

    commits: list[tuple[str, str, str]] = field(default_factory=list)  # repository, branch, commit
    files: int = 0
    bytes: int = 0
    deleted: int = 0
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sender:
    """A run's sending: where from, and for how long; what came of it."""

    paths: RunPaths
    patience: Patience
    outcome: Outcome

    def send(self, remote: Repository, batch: Batch, title: str, beside: Mapping[str, Moment]) -> None:
        """Send what can be read of a batch; a file that cannot is left and named. Raises what a Repository raises.

        beside: what goes in the same commit and is none of the run's files.
        """
        with self._opened(batch.add) as moments:
            self._announce(batch, moments)
            commit = None
            while commit is None and (moments or batch.delete or beside):
                try:
                    commit = remote.commit(batch.branch, {**beside, **moments}, batch.delete, title)
                except Changed:
                    self._drop_the_changed(moments)
            if commit is None:
                return
            lines = [sent_line(batch.repo, batch.branch, path, one, commit) for path, one in moments.items()]
            self.count(batch.repo, batch.branch, commit, moments)
        gone = [Sent(repo=batch.repo, revision=batch.branch, path=path, gone=True) for path in batch.delete]
        self.record([*lines, *gone])
        self.outcome.deleted += len(gone)
        sent_bytes = sum(one.bytes for one in lines)
        self.patience.say(
            f"{batch.repo}: {_counted(len(lines), sent_bytes, len(gone))} in {commit[:8]} on {batch.branch}"
        )

    def count(self, repo: str, branch: str, commit: str, moments: Mapping[str, Moment]) -> None:
        """Add a commit to what came of it."""
        self.outcome.commits.append((repo, branch, commit))
        self.outcome.files += len(moments)
        self.outcome.bytes += sum(one.size for one in moments.values())
        tell_progress(len(self.outcome.commits))

    def record(self, lines: list[Sent]) -> None:
        """Into the ledger; a disk that does not take it costs a question to the repository next time."""
        try:
            add_to_ledger(self.paths, lines)
        except OSError as error:
            self.note(f"not written down what was sent ({file_problem(error)}): the next sync asks for it")

    def _announce(self, batch: Batch, paths: Iterable[str]) -> None:
        """Write down the names that are new there, without a content: a kill that comes before their lines hides none.

        Whatever becomes of them here, the rule of deletions then knows them.
        """
        known = sent_files(self.paths)
        places = [(batch.repo, batch.branch, path) for path in paths]
        self.record(
            [Sent(repo=repo, revision=at, path=path) for repo, at, path in places if (repo, at, path) not in known]
        )

    def note(self, line: str) -> None:
        """Something worth a line that is no failure."""
        if line not in self.outcome.notes:
            self.outcome.notes.append(line)

    @contextlib.contextmanager
    def _opened(self, files: tuple[SeenFile, ...]) -> Iterator[dict[str, Moment]]:
        """The files that can be read, each as it is now, and the same until the block ends."""
        moments: dict[str, Moment] = {}
        with contextlib.ExitStack() as stack:
            for file in files:
                try:
                    fd = open_file(self.paths.output, self.paths.output / file.path)
                except FileNotFoundError:
                    continue  # the next look sees that it has gone
                except OSError as error:
                    self.outcome.left.append(f"{file.path}: {error.strerror or error}")
                    continue
                lines_only = file.is_lines and not file.has_settled(time.time())
                moment = stack.enter_context(Moment(fd, lines_only, still_time=self.patience.check))
                moments[file.path] = moment
            yield moments

    def _drop_the_changed(self, moments: dict[str, Moment]) -> None:
        """Leave out what is no longer what it was: the next sync sends it as it is then."""
        assert any(moment.changed() for moment in moments.values()), "somebody said so"
        for path, moment in list(moments.items()):
            why = moment.changed()
            if why:
                del moments[path]
                self.outcome.left.append(f"{path}: {why}")


def sent_line(repo: str, revision: str, path: str, moment: Moment, commit: str, xxh64: str = "") -> Sent:
    """The ledger's line of a file that is there."""
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


def _counted(files: int, sent_bytes: int, gone: int) -> str:
    parts = [f"{files} files, {bytes_words(sent_bytes)}"] if files else []
    return ", ".join([*parts, *([f"{gone} deleted"] if gone else [])]) or "nothing new"
