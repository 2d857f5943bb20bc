"""Reading files of a repository on the hub, or parts of them, without a clone: only what is asked for travels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from opsctl.core.errors import UsageError
from opsctl.transfer.hub.client import import_client
from opsctl.transfer.hub.hub_errors import Absent, NotNow, understood

TIMEOUT_S = 30.0
#: What one request fetches at most, and so what is held in memory.
BLOCK_BYTES = 4 << 20
_KINDS = {"datasets": "dataset", "models": "model"}


@dataclass(frozen=True)
class FarRepo:
    """A repository, and which state of it: a branch, a tag or a commit."""

    name: str  # OWNER/NAME
    kind: str = "model"
    revision: str = "main"

    def __str__(self) -> str:
        """Return it as a person writes it."""
        return self.name if self.kind == "model" else f"{self.kind}s/{self.name}"


def repo_of(text: str) -> FarRepo:
    """`OWNER/NAME`, `datasets/OWNER/NAME`, or the address of its page. Raises UsageError."""
    path = re.sub(r"^https?://[^/@]+/", "", text.strip()).strip("/")
    first, _, rest = path.partition("/")
    kind, name = (_KINDS[first], rest) if first in _KINDS else ("model", path)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"{text!r} is no repository's name: OWNER/NAME, or datasets/OWNER/NAME")
    return FarRepo(name, kind)


@dataclass(frozen=True)
class Look:
    """A file as it is at one commit."""

    commit: str
    size_bytes: int


class FarFiles:
    """The files of one repository. Every call raises `NotNow` or an OpsctlError; see `opsctl.transfer.hub.hub_errors`.

    The token is the account's own, as huggingface_hub keeps it; without one everything public can be read.
    """

    def __init__(self, repo: FarRepo) -> None:
        self.repo = repo
        self.told_at: datetime | None = None  # what time it was by the clock of who answered last

    def look(self, path: str) -> Look | None:
        """Return the file as it is now; None where there is none. One request, no content."""
        hub = import_client()
        with understood(str(self.repo)):
            try:
                found = hub.get_hf_file_metadata(self._url(path, self.repo.revision), timeout=TIMEOUT_S)
            except hub.errors.RevisionNotFoundError:
                raise UsageError(f"{self.repo} has no revision {self.repo.revision!r}") from None
            except hub.errors.EntryNotFoundError:
                return None
        if found.size is None:
            raise NotNow("the hub does not report the size of the file")
        return Look(found.commit_hash or self.repo.revision, found.size)

    def read(self, path: str, look: Look, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end` of the file as it was looked at, block by block.

        Raises `NotNow` also where that state is gone meanwhile: look again.
        """
        hub = import_client()
        while start < end:
            stop = min(start + BLOCK_BYTES, end)
            wanted = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
            headers = {**hub.utils.build_hf_headers(), **wanted}
            try:
                with understood(str(self.repo)):
                    # A link to the storage is followed there without the token: it is another host.
                    answer = hub.utils.get_session().get(
                        self._url(path, look.commit), headers=headers, timeout=TIMEOUT_S, follow_redirects=True
                    )
                    hub.utils.hf_raise_for_status(answer)
            except Absent as gone:
                raise NotNow(str(gone)) from None
            self.told_at = _clock_of(answer.headers) or self.told_at
            data = answer.content if answer.status_code == 206 else answer.content[start:stop]
            if len(data) != stop - start:
                raise NotNow(f"it sent {len(data)} bytes for {stop - start}")
            yield data
            start = stop

    def read_all(self, path: str, look: Look) -> bytes:
        """Return a small file's content."""
        return b"".join(self.read(path, look, 0, look.size_bytes))

    def sizes(self, below: str = "", revision: str | None = None) -> dict[str, int]:
        """Path -> bytes of every file, or of those in the folder `below`; none where there is no such folder."""
        hub = import_client()
        with understood(str(self.repo)):
            try:
                tree = hub.HfApi().list_repo_tree(
                    self.repo.name,
                    below or None,
                    recursive=True,
                    revision=revision or self.repo.revision,
                    repo_type=self.repo.kind,
                )
                return {one.path: one.size for one in tree if isinstance(one, hub.hf_api.RepoFile)}
            except (hub.errors.EntryNotFoundError, hub.errors.RevisionNotFoundError):
                return {}

    def changed_at(self, paths: Sequence[str], commit: str) -> dict[str, datetime]:
        """Return when each file was last changed there, where the hub tells."""
        hub = import_client()
        with understood(str(self.repo)):
            try:
                found = hub.HfApi().get_paths_info(
                    self.repo.name, list(paths), expand=True, revision=commit, repo_type=self.repo.kind
                )
            except hub.errors.RevisionNotFoundError:
                return {}
        return {one.path: one.last_commit.date for one in found if getattr(one, "last_commit", None) is not None}

    def references(self) -> list[str]:
        """Return the names of its branches and tags."""
        hub = import_client()
        with understood(str(self.repo)):
            refs = hub.HfApi().list_repo_refs(self.repo.name, repo_type=self.repo.kind)
        return [one.name for one in (*refs.branches, *refs.tags)]

    def _url(self, path: str, revision: str) -> str:
        url: str = import_client().hf_hub_url(self.repo.name, path, repo_type=self.repo.kind, revision=revision)
        return url


def _clock_of(headers: Mapping[str, str]) -> datetime | None:
    try:
        return parsedate_to_datetime(headers.get("date") or "")
    except (TypeError, ValueError):
        return None
