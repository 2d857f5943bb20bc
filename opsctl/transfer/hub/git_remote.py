"""A repository on any git server with LFS, through the installed git and git-lfs.

Nothing is kept from one sync to the next: each makes a bare repository of its own in the account's temporary folder,
with the newest commit's trees and none of its larger contents, and throws it away. What a kill leaves there needs no
mending, the next one removes it; what has arrived is not sent again, for the server says what it has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.errors import UsageError
from opsctl.run.config.hub_values import git_url_problem
from opsctl.transfer.hub.file_snapshot import LARGEST_REGULAR_BYTES, Moment
from opsctl.transfer.hub.git_program import (
    Git,
    MovedOn,
    NoRepository,
    Unclear,
    Unwanted,
    attribute_line,
    lfs_pointer,
    quoted,
)
from opsctl.transfer.hub.git_tree import (
    ATTRIBUTES,
    NOTHING,
    attributes_of,
    change_of,
    content_of,
    far_of,
    looked_after,
    oid_of,
    place_content,
    pointers_among,
    tree_of,
)
from opsctl.transfer.hub.hub_errors import Refused
from opsctl.transfer.hub.remote import MAIN, Far, Who
from opsctl.transfer.hub.retry_policy import WAITS_S, Patience

_PREFIX = "opsctl-git-"
#: What is larger is left at the server: git-lfs's pointers are smaller.
_FETCHED_BYTES = 1024
#: Somebody else's commits, and contents that arrive wrong, so often in a row are no chance.
_MOST_TRIES = 5
_UNCLEAR_TRIES = 3


class GitRemote:
    """The repository at a URL. What a method asks is asked again while there is time."""

    def __init__(self, url: str, token: str, patience: Patience) -> None:
        problem = git_url_problem(url)
        if problem:
            raise UsageError(problem)
        self._url = url
        self._patience = patience
        self._token = token

    @property
    def name(self) -> str:
        """Its URL."""
        return self._url

    def who(self) -> Who:
        """Nobody is told by git's protocol: only whether the token is taken."""
        self.head(MAIN)
        return Who("", "")

    def may_write(self) -> bool | None:
        """Whether a push would be let in; nothing is pushed."""
        with self._repository() as git:
            try:
                head = self._fetched(git, MAIN)
                if head is None:
                    return None
                self._asked(git, "push", "--dry-run", "--quiet", "origin", f"{head}:refs/heads/opsctl-may-write")
            except NoRepository:
                return None
            except Refused:
                return False
        return True

    def head(self, revision: str) -> str | None:
        """The commit that a branch or tag is at; None where there is no such revision, or no repository."""
        with self._repository() as git, contextlib.suppress(NoRepository):
            there = self._reference(git, revision)
            return there[1] if there else None
        return None

    def begin(self, branch: str, private: bool) -> None:
        """Make the branch, as main is, where it is not there yet, and main with an empty commit."""
        with self._repository() as git:
            try:
                head = self._fetched(git, branch)
                if head is not None:
                    return
                head = self._fetched(git, MAIN) or self._committed(git, None, "Begin", b"")
                for name in dict.fromkeys((MAIN, branch)):
                    with contextlib.suppress(MovedOn):  # somebody else made it this very moment
                        self._asked(git, "push", "--quiet", "origin", f"{head}:refs/heads/{name}")
            except NoRepository:
                raise Refused(f"no repository {self._url} that this token sees: make it on the server first") from None

    def listed(self, revision: str, paths: Sequence[str] | None = None) -> dict[str, Far]:
        """The files of a revision, or those of `paths` that are there."""
        with self._repository() as git:
            try:
                head = self._fetched(git, revision)
            except NoRepository:
                head = None
            if head is None:
                return {}
            tree = tree_of(git, head)
            wanted = tree if paths is None else {path: tree[path] for path in paths if path in tree}
            pointers = pointers_among(git, {one.oid for one in wanted.values() if 0 <= one.size <= _FETCHED_BYTES})
            return {path: far_of(entry, pointers.get(entry.oid)) for path, entry in wanted.items()}

    def read(self, path: str) -> bytes | None:
        """A small file of main; None where there is none."""
        with self._repository() as git:
            head = self._fetched(git, MAIN)
            if head is None or path not in tree_of(git, head):
                return None
            return self._asked(git, "cat-file", "blob", f"{head}:{path}")

    def commit(self, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        """LFS contents first, then one commit on the head, pushed unless somebody else's was there first."""
        with self._repository() as git:
            for tries in range(1, _MOST_TRIES + 1):
                try:
                    return self._commit_once(git, branch, add, delete, title)
                except MovedOn:
                    self._patience.check()
                except Unwanted:
                    for moment in add.values():
                        moment.check()
                    if tries == 2:
                        raise Refused(f"{self._url} does not keep what it is sent") from None
                except NoRepository:
                    break
        if tries == _MOST_TRIES:
            raise Refused(f"{self._url}: others push to {branch} again and again: try later")
        raise Refused(f"{self._url} is there no more")

    def missing(self, sent: Mapping[str, tuple[str, int]]) -> list[str]:
        """Nothing: the server is asked for each content only by who has it at hand to send."""
        return []

    def tag(self, tag: str, branch: str) -> None:
        """Give where `branch` is a name that stays, and let the branch go."""
        with self._repository() as git:
            head = self._fetched(git, branch)
            if head is None:
                if self._reference(git, tag) is None:
                    raise Refused(f"{self._url} has no branch {branch} to tag")
                return
            self._asked(git, "push", "--quiet", "origin", f"+{head}:refs/tags/{tag}")
            with contextlib.suppress(MovedOn):
                self._asked(git, "push", "--quiet", "origin", f":refs/heads/{branch}")

    def _commit_once(self, git: Git, branch: str, add: Mapping[str, Moment], delete: Sequence[str], title: str) -> str:
        head = self._fetched(git, branch)
        if head is None:
            raise Refused(f"{self._url} has no branch {branch} any more")
        tree = tree_of(git, head)
        beside = looked_after(git, head, add)
        large = [path for path, moment in add.items() if moment.size > LARGEST_REGULAR_BYTES and path not in beside]
        pointers = {path: lfs_pointer(add[path].sha256, add[path].size) for path in (*beside, *large)}
        left = [
            path for path, moment in add.items() if oid_of(moment, pointers.get(path)) != tree.get(path, NOTHING).oid
        ]
        gone = [path for path in delete if path in tree]
        if not left and not gone and not large:
            return head
        self._push_contents(git, [add[path] for path in left if path in pointers])
        changes = b"".join(change_of(path, pointers.get(path) or content_of(add[path])) for path in left)
        changes += b"".join(f"D {quoted(path)}\n".encode() for path in gone)
        if large:
            attributes = attributes_of(git, head, tree) + "".join(f"{attribute_line(path)}\n" for path in large)
            changes += change_of(ATTRIBUTES, attributes.encode())
        done = self._committed(git, head, title, changes)
        self._asked(git, "push", "--quiet", "origin", f"{done}:refs/heads/{branch}")
        return done

    def _committed(self, git: Git, head: str | None, title: str, changes: bytes) -> str:
        """A commit on top of `head`, here only."""
        who = f"{account_name()} <{account_name()}@opsctl> {int(time.time())} +0000"
        message = title.encode()
        lines = [b"commit refs/opsctl/next", f"committer {who}".encode(), b"data %d" % len(message), message]
        start = [f"from {head}".encode()] if head else []
        git.run("fast-import", "--quiet", "--force", stdin=b"\n".join([*lines, *start, changes, b"done\n"]))
        return git.run("rev-parse", "refs/opsctl/next").decode().strip()

    def _push_contents(self, git: Git, moments: list[Moment]) -> None:
        """Have git-lfs send what the server has not; it says so of each."""
        store = git.folder / "lfs" / "objects"
        placed = [place_content(store, moment) for moment in moments]
        try:
            if placed:
                self._push_placed(git, [path.name for path in placed])
        finally:
            for path in placed:
                path.unlink(missing_ok=True)

    def _push_placed(self, git: Git, oids: list[str]) -> None:
        """git-lfs tells what a server says in words, and not with which status: it is asked again some times."""
        for wait_s in WAITS_S[:_UNCLEAR_TRIES]:
            try:
                self._asked(git, "lfs", "push", "origin", "--object-id", *oids)
                return
            except Unclear as unclear:
                self._patience.wait(wait_s, str(unclear))
        self._asked(git, "lfs", "push", "origin", "--object-id", *oids)

    def _reference(self, git: Git, revision: str) -> tuple[str, str] | None:
        """The branch or tag of this name, and its commit."""
        told = self._asked(git, "ls-remote", "origin", f"refs/heads/{revision}", f"refs/tags/{revision}*")
        found = {name: oid for oid, name in (line.split("\t") for line in told.decode().splitlines())}
        for name in (f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in found:
                return name, found.get(f"{name}^{{}}", found[name])
        return None

    def _fetched(self, git: Git, revision: str) -> str | None:
        """As `head`, with its trees and small contents here."""
        there = self._reference(git, revision)
        if there is None:
            return None
        limit = f"--filter=blob:limit={_FETCHED_BYTES + 1}"
        self._asked(git, "fetch", "--quiet", "--depth=1", "--no-tags", limit, "origin", there[0])
        return git.run("rev-parse", "FETCH_HEAD^{commit}").decode().strip()

    def _asked(self, git: Git, *words: str) -> bytes:
        return self._patience.through(lambda: git.run(*words))

    @contextlib.contextmanager
    def _repository(self) -> Iterator[Git]:
        _remove_left_over()
        with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
            git = Git(self._url, Path(folder), self._patience, self._token)
            git.run("init", "--quiet", "--bare", f"--initial-branch={MAIN}", "--template=", ".")
            git.run("remote", "add", "origin", self._url)
            yield git


def _remove_left_over() -> None:
    """What processes of this account that are no more have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not Path(f"/proc/{pid}").exists() and folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
