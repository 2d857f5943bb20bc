"""A repository of a run on a hub, as a destination of its files and checkpoints.

A repository is one run's: `opsctl.json` on its main names the run, and the repositories of its other kinds. Two runs
in one repository would overwrite each other, a restored copy of a run its original.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import open_file
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.background_progress import tell_progress
from opsctl.run.state.identity import is_same_run, read_run_id, refuse_a_copy
from opsctl.transfer.hub.file_snapshot import Changed, Moment, open_bytes
from opsctl.transfer.hub.hub_errors import Refused, RetryPolicy
from opsctl.transfer.hub.json_output import PrintedHubCommit
from opsctl.transfer.hub.repository import MAIN, Repository, has_content, open_repository
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.object_store.below import open_below
from opsctl.transfer.object_store.types import FarFile
from opsctl.transfer.sending.checkpoint import Sending, listing_proof, record_sent
from opsctl.transfer.sending.plan import SeenFile
from trainer.formats.checkpoint.manifest import MANIFEST, tag_of
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode

NOTE = "opsctl.json"
LARGEST_NOTE_BYTES = 1 << 16
_ABOUT = "Of one training, sent by opsctl hub sync. Another run's sync leaves this repository alone."
#: Files that a repository has on every branch.
_OF_THE_REPOSITORY = frozenset((".gitattributes", "README.md"))
#: The most files of a commit, and the most bytes of those that go inside it.
FILES_PER_COMMIT = 200
BYTES_PER_COMMIT = 64 << 20
#: What is larger goes next to the commit, as an LFS object.
_INSIDE_A_COMMIT_BYTES = 10 << 20


class FarNote(msgspec.Struct, frozen=True, kw_only=True):
    """`opsctl.json` of a repository."""

    schema_version: int = 1
    about: str = _ABOUT
    run: str  # its name
    run_id: str = ""
    repos: dict[str, str] = {}  # kind -> repository, of all that the run sends
    checkpoints: str = ""  # how they are stored there, one of HUB_CHECKPOINTS


@dataclass(frozen=True)
class Spot:
    """The place of a checkpoint in a repository: a folder of main, or a revision of its own."""

    form: str  # "folder" or "branch"
    tag: str  # `global_stepN`

    @property
    def revision(self) -> str:
        """Return its branch."""
        return MAIN if self.form == "folder" else self.tag

    def path(self, name: str) -> str:
        """Return a file's name in the repository."""
        return f"{CHECKPOINTS}/{self.tag}/{name}" if self.form == "folder" else name


@dataclass
class Outcome:
    """The result of a sync so far. left: what is to be sent and was not, each with the reason."""

    commits: list[PrintedHubCommit] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class HubPlace:
    """One repository of a run, which is this run's or becomes so with the next commit."""

    paths: RunPaths
    name: str  # the run's
    form: str  # of checkpoints
    remote: Repository
    retry: RetryPolicy
    outcome: Outcome
    unsaid: bytes = b""  # its note, where that is not there yet

    @property
    def where(self) -> str:
        """OWNER/NAME."""
        return self.remote.name

    def send_files(self, sending: Sending) -> None:
        """Have all files there, proven by a listing. A manifest and files of another save go with the first commit."""
        if self.unsaid:
            self._commit(MAIN, {}, [], f"{self.name}: the owner of this repository")
        spot, files = self._spot(sending), sending.manifest.files
        if spot.revision != MAIN:
            self.remote.begin(spot.revision, private=True)
        wanted, marks = {spot.path(name) for name in files}, dict[str, tuple[str, str]]()
        stale = [
            path
            for path in sorted(self.remote.listed(spot.revision))
            if path.startswith(spot.path("")) and path not in wanted and path not in _OF_THE_REPOSITORY
        ]
        parts = groups((name, files[name].bytes) for name in sorted(files))
        for number, names in enumerate(parts, start=1):
            with contextlib.ExitStack() as stack:
                moments = {}
                for name in names:
                    moment = Moment(
                        open_below(sending.folder, name), name, xxh64=files[name].xxh64, tick=self.retry.check
                    )
                    moments[spot.path(name)] = stack.enter_context(moment)
                self._commit(spot.revision, moments, stale, f"{spot.tag}: files, part {number} of {len(parts)}")
                marks |= {path: (one.sha256, one.git_oid) for path, one in moments.items()}
            stale = []
        there = self.remote.listed(spot.revision)
        gone = [path for path, of in marks.items() if path not in there or there[path].mark not in of]
        gone += self.remote.missing({path: there[path] for path in marks if path in there})
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise OpsctlError(f"sent files are missing on the hub ({gone[0]}{more}): the next sync sends them again")

    def send_manifest(self, sending: Sending) -> None:
        """Put the manifest there in a commit of its own."""
        spot = self._spot(sending)
        with Moment(open_bytes(sending.text), MANIFEST) as moment:
            self._commit(spot.revision, {spot.path(MANIFEST): moment}, [], f"{spot.tag}: whole")

    def has(self, sending: Sending) -> bool:
        """Return whether a commit has it, with all its contents."""
        spot = self._spot(sending)
        there = self.remote.listed(spot.revision)
        with Moment(open_bytes(sending.text), MANIFEST) as moment:
            if not has_content(there.get(spot.path(MANIFEST)), moment):
                return False
        sizes = {spot.path(name): file.bytes for name, file in sending.manifest.files.items()}
        found = {path: there[path] for path in sizes if path in there and there[path].bytes == sizes[path]}
        return len(found) == len(sizes) and not self.remote.missing(found)

    def proof(self, sending: Sending) -> str:
        """Return the proof by the listing of its revision."""
        spot = self._spot(sending)
        return proof_of(self.remote.listed(spot.revision), spot, sending.manifest.files)

    def send_batch(self, files: Iterable[SeenFile], growing: set[str], title: str) -> None:
        """Send what can be read of some files in one commit; a file that cannot is left. growing: by whole lines."""
        with contextlib.ExitStack() as stack:
            moments: dict[str, Moment] = {}
            for file in files:
                with self._left_if_unreadable(file.name):
                    fd = open_file(self.paths.output, self.paths.output / file.name)
                    moment = Moment(fd, file.name, file.name in growing, tick=self.retry.check)
                    moments[file.name] = stack.enter_context(moment)
            commit = None
            while commit is None and (moments or self.unsaid):
                try:
                    commit = self._commit(MAIN, moments, [], title)
                except Changed as changed:  # the next sync sends it as it is then
                    del moments[changed.name]
                    self.outcome.left.append(str(changed))
            lines = [self._line(moment) for moment in moments.values()]
        for problem in record_sent(self.paths, lines, self.paths.hub_ledger):
            if problem not in self.outcome.notes:
                self.outcome.notes.append(problem)
        self.retry.say(f"{self.where}: {len(lines)} files, {bytes_words(sum(line.bytes for line in lines))} on {MAIN}")

    @contextlib.contextmanager
    def _left_if_unreadable(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # the next sync finds that it has gone
        except Changed as changed:
            self.outcome.left.append(str(changed))
        except OSError as error:
            self.outcome.left.append(f"{name}: {error.strerror or error}")

    def _line(self, moment: Moment) -> BackedUp:
        at = now().replace(microsecond=0)
        return BackedUp(
            to=self.where,
            what=What.FILE,
            name=moment.name,
            of=moment.sha256,
            size=moment.stat.st_size,
            mtime_ns=moment.stat.st_mtime_ns,
            files=1,
            bytes=moment.size,
            sent_at=at,
            by=account_and_host(),
            verified_at=at,
            proof=moment.git_oid,
        )

    def _commit(self, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        """Make a commit, with the note where main has none yet, and count it."""
        if self.unsaid and branch == MAIN:
            with Moment(open_bytes(self.unsaid), NOTE) as note:
                commit = self.remote.commit(branch, {NOTE: note, **add}, delete, title)
            self.unsaid = b""
        else:
            commit = self.remote.commit(branch, add, delete, title)
        if add:
            self.outcome.commits.append(PrintedHubCommit(repo=self.where, branch=branch, commit=commit))
            self.outcome.files += len(add)
            self.outcome.bytes += sum(one.size for one in add.values())
            tell_progress(len(self.outcome.commits))
        return commit

    def _spot(self, sending: Sending) -> Spot:
        return Spot(self.form, tag_of(sending.line.iteration))


def proof_of(there: Mapping[str, FarFile], spot: Spot, names: Iterable[str]) -> str:
    """Return the proof of a checkpoint with the files `names` and its manifest, by a listing of its revision."""
    return listing_proof(there, [spot.path(name) for name in (*sorted(names), MANIFEST)])


def groups(files: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Return the names of (name, bytes) in as few commits as take them all, small files first."""
    parts: list[list[str]] = [[]]
    inside = 0
    for name, size in sorted(files, key=lambda one: (one[1] > _INSIDE_A_COMMIT_BYTES, one[0])):
        own = size if size <= _INSIDE_A_COMMIT_BYTES else 0
        if len(parts[-1]) == FILES_PER_COMMIT or (parts[-1] and inside + own > BYTES_PER_COMMIT):
            parts.append([])
            inside = 0
        parts[-1].append(name)
        inside += own
    return parts


def open_place(
    paths: RunPaths, name: str, settings: HubSettings, repo: str, retry: RetryPolicy, outcome: Outcome
) -> HubPlace:
    """Return a repository of the run, made if needed. Raises Refused if it is another run's or its owner is unknown."""
    refuse_a_copy(paths, "send to the hub")
    form = settings.table.checkpoints or ""
    own = FarNote(run=name, run_id=read_run_id(paths) or "", repos=settings.repos, checkpoints=form)
    remote = open_repository(settings, repo, retry)
    remote.begin(MAIN, settings.table.private)
    place = HubPlace(paths, name, form, remote, retry, outcome)
    text = json_file_text(own).encode()
    there = remote.listed(MAIN, [NOTE]).get(NOTE)
    with Moment(open_bytes(text), NOTE) as moment:
        if has_content(there, moment):
            return place
    data = None if there is None else remote.read(NOTE)
    if data is not None:
        _refuse_another_runs(repo, read_note(data), own)
    place.unsaid = text
    return place


def read_note(data: bytes) -> FarNote | None:
    """Parse the note; None if it cannot be read."""
    return decode(data, FarNote) if len(data) <= LARGEST_NOTE_BYTES else None


def _refuse_another_runs(repo: str, found: FarNote | None, own: FarNote) -> None:
    if found is None:
        raise Refused(f"{repo}: its {NOTE} cannot be read, so its owner is unknown: check this file, or remove it")
    if not is_same_run((found.run, found.run_id), (own.run, own.run_id)):
        raise Refused(
            f"{repo} is another run's, {found.run} (id {found.run_id or 'unknown'}), and {own.run} has "
            f"{f'the id {own.run_id}' if own.run_id else 'no id'}: give each run separate repositories in [hub], or "
            f"remove {NOTE} there if this run replaces it"
        )
