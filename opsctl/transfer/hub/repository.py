"""One repository of a hub, through huggingface_hub: every call is retried within the time that there is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from opsctl.transfer.hub.client import import_client, set_timeouts, token_of
from opsctl.transfer.hub.file_snapshot import Changed, Moment
from opsctl.transfer.hub.hub_errors import Absent, NotNow, OutOfTime, Refused, RetryPolicy, understood
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.object_store.types import FarFile

#: The branch of everything but checkpoints that have one of their own.
MAIN = "main"
#: The hub takes no more names in one question.
_PATHS_PER_QUESTION = 500
_OBJECTS_PER_QUESTION = 256
_UPLOADS_AT_ONCE = 4
_SHA256_DIGITS = 64
#: A content that arrives wrong, or a head that moves on, so often in a row is not chance.
_MOST_TRIES = 5
Value = TypeVar("Value")


class _Conflict(Exception):
    """Another process was first: the head has moved on, or the name is taken."""


class _Damaged(Exception):
    """The hub received other bytes than announced, or has lost what it took."""


class Repository:
    """One repository of models.

    Every method raises Refused where the hub refuses, and OutOfTime; no text has a token in it.
    """

    def __init__(self, repo: str, token: str, retry: RetryPolicy) -> None:
        self._hub = import_client()
        set_timeouts(self._hub, retry)
        self._api = self._hub.HfApi(token=token, library_name="opsctl")
        self._repo = repo
        self._retry = retry

    @property
    def name(self) -> str:
        """OWNER/NAME."""
        return self._repo

    def account(self) -> tuple[str, str]:
        """Return the name of the token's account, and the hub's word for what the token may do."""
        said = self._asked(lambda: self._api.whoami())
        token = (said.get("auth") or {}).get("accessToken") or {}
        return str(said.get("name", "")), str(token.get("role", ""))

    def may_write(self) -> bool | None:
        """Return whether our token may commit to it; None where there is no repository that we can see."""
        if self.head(MAIN) is None:
            return None
        try:
            self._asked(lambda: self._api.auth_check(self._repo, write=True))
        except Refused:
            return False
        return True

    def head(self, revision: str) -> str | None:
        """Return the commit that a branch or tag is at; None where there is no such revision, or no repository."""
        try:
            return str(self._asked(lambda: self._api.repo_info(self._repo, revision=revision)).sha)
        except Absent:
            return None
        except _NoRepository:
            return None

    def begin(self, branch: str, private: bool) -> None:
        """Make the repository and the branch, as main is, where they are not there yet."""
        if self.head(branch) is not None:
            return
        self._asked(lambda: self._api.create_repo(self._repo, private=private, exist_ok=True))
        with contextlib.suppress(_Conflict):
            self._asked(lambda: self._api.create_branch(self._repo, branch=branch, exist_ok=True))

    def listed(self, revision: str, paths: Sequence[str] | None = None) -> dict[str, FarFile]:
        """Return the files of a revision, or those of `paths` that are there; none of what is not there itself."""
        try:
            return {one.path: _far_file(one) for one in self._entries(revision, paths) if hasattr(one, "blob_id")}
        except (Absent, _NoRepository):
            return {}

    def _entries(self, revision: str, paths: Sequence[str] | None) -> Iterable[Any]:
        if paths is None:
            return self._asked(lambda: list(self._api.list_repo_tree(self._repo, recursive=True, revision=revision)))
        found: list[Any] = []
        for some in _groups(list(paths), _PATHS_PER_QUESTION):
            found += self._asked(partial(self._api.get_paths_info, self._repo, some, revision=revision))
        return found

    def read(self, path: str, revision: str = MAIN) -> bytes | None:
        """Return a small file of a revision; None where there is none."""
        url = self._hub.hf_hub_url(self._repo, path, revision=revision, endpoint=self._api.endpoint)
        headers = self._hub.utils.build_hf_headers(token=self._api.token, library_name="opsctl")

        def ask() -> bytes:
            answer = self._hub.utils.get_session().get(url, headers=headers, follow_redirects=True)
            self._hub.utils.hf_raise_for_status(answer)
            content: bytes = answer.content
            return content

        try:
            return self._asked(ask)
        except (Absent, _NoRepository):
            return None

    def commit(self, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        """Bring the branch to where all of `add` is there as given and nothing of `delete`, in one commit or none.

        Contents go first. Returns the commit that has it all. Raises Changed where a local file has changed.
        """
        for tries in range(1, _MOST_TRIES + 1):
            try:
                return self._commit_once(branch, add, delete, title)
            except _Conflict:
                self._retry.check()
            except _Damaged as damaged:
                for moment in add.values():
                    moment.check()
                if tries == 2:
                    raise Refused(f"{self._repo}: the hub did not store the sent files ({damaged})") from None
            except (Absent, _NoRepository):
                raise Refused(f"{self._repo} is there no more, or has no branch {branch}") from None
        raise Refused(f"{self._repo}: others commit to {branch} again and again: try later")

    def _commit_once(self, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        for moment in add.values():
            moment.seek(0)
        operations = {path: self._hub.CommitOperationAdd(path, moment) for path, moment in add.items()}
        if operations:
            self._asked(lambda: self._preuploaded(list(operations.values()), branch))
        return self._retry.through(lambda: self._committed(branch, add, operations, delete, title))

    def _preuploaded(self, operations: list[Any], branch: str) -> None:
        """Have the contents there; what the hub has is not sent.

        One file of each content at a time: for two of the same, as ranks of tensor parallelism save them, the client
        would have two threads read one of them at once.
        """
        with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as hashing:
            sums = list(hashing.map(lambda one: one.upload_info.sha256, operations))
        left = list(zip(sums, operations, strict=True))
        while left:
            some = dict(reversed(left))
            self._api.preupload_lfs_files(
                self._repo, list(some.values()), revision=branch, free_memory=False, num_threads=_UPLOADS_AT_ONCE
            )
            left = [(of, one) for of, one in left if some[of] is not one]

    def _committed(
        self, branch: str, add: Mapping[str, Moment], operations: Mapping[str, Any], delete: Sequence[str], title: str
    ) -> str:
        """Return the commit with all of it: the head, as after a commit whose answer was lost, else a new one.

        Raises NotNow if it is unknown whether it was made.
        """
        head = self.head(branch)
        if head is None:
            raise Refused(f"{self._repo} has no branch {branch} any more")
        there = self.listed(branch, [*add, *delete])
        left = [one for path, one in operations.items() if not has_content(there.get(path), add[path])]
        ignored = [one.path_in_repo for one in left if one._should_ignore]  # the client leaves these out, and is silent
        if ignored:
            raise Refused(f"{self._repo} has a .gitignore that keeps {ignored[0]} out: change it there")
        gone = [self._hub.CommitOperationDelete(path, is_folder=False) for path in delete if path in there]
        if not left and not gone:
            return head
        done = self._once(
            lambda: self._api.create_commit(
                self._repo, [*gone, *left], commit_message=title, revision=branch, parent_commit=head
            )
        )
        if done.oid == head:  # the client took the files for those that were there when it asked
            raise _Conflict
        return str(done.oid)

    def missing(self, files: Mapping[str, FarFile]) -> list[str]:
        """Return those of which the storage no longer has the content; git's own files are never among them."""
        from huggingface_hub.lfs import UploadInfo, post_lfs_batch_info

        large = {path: file for path, file in files.items() if len(file.mark) == _SHA256_DIGITS}
        infos = {file.mark: UploadInfo(file.bytes, b"", bytes.fromhex(file.mark)) for file in large.values()}
        lost: set[str] = set()
        for some in _groups(list(infos.values()), _OBJECTS_PER_QUESTION):
            ask = partial(post_lfs_batch_info, endpoint=self._api.endpoint)
            found, errors, _ = self._asked(partial(ask, some, self._api.token, "model", self._repo))
            lost |= {one["oid"] for one in found if one.get("actions")} | {one["oid"] for one in errors}
        return sorted(path for path, file in large.items() if file.mark in lost)

    def _asked(self, ask: Callable[[], Value]) -> Value:
        return self._retry.through(lambda: self._once(ask))

    def _once(self, ask: Callable[[], Value]) -> Value:
        """Return what the client returns. Raises what is one of ours, whatever the client made of it."""
        with _understood(self._repo):
            try:
                return ask()
            except RuntimeError as error:  # so it says that an upload failed
                raise error.__cause__ or error from None


class _NoRepository(Exception):
    """There is none, or it is hidden from us."""


@contextlib.contextmanager
def _understood(repo: str) -> Iterator[None]:
    """Errors of the client, as `answers.understood` has them, and those that a sync goes on after."""
    from huggingface_hub import errors

    with understood(repo):
        try:
            yield
        except (Changed, OutOfTime, NotNow):
            raise
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if isinstance(error, errors.RepositoryNotFoundError) and status == 404:
                raise _NoRepository from None
            if status in (409, 412):
                raise _Conflict from None
            request = error.response.request
            of_content = request.method == "PUT" or any(part in request.url.path for part in ("/info/lfs/", "/commit/"))
            if of_content and status in (400, 404, 422):
                raise _Damaged(f"{status} to {request.method}") from None
            raise


def _far_file(entry: Any) -> FarFile:
    """Return a file there. Its mark is the SHA-256 of a content in LFS, else git's name of the blob."""
    return FarFile(entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)


def has_content(far: FarFile | None, moment: Moment) -> bool:
    """Return whether a file there has the content of `moment`."""
    return far is not None and far.bytes == moment.size and far.mark in (moment.sha256, moment.git_oid)


def open_repository(settings: HubSettings, repo: str, retry: RetryPolicy) -> Repository:
    """Return the repository, with the token that the settings refer to. Raises OpsctlError where there is none."""
    return Repository(repo, token_of(settings), retry)


def _groups(values: list[Any], most: int) -> list[list[Any]]:
    return [values[at : at + most] for at in range(0, len(values), most)]
