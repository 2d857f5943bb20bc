"""Unix users for tests, and functions that run as one of them in a forked process.

A new interpreter would not do: another user may not read this one's library.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pwd
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import pytest

T = TypeVar("T")


@contextlib.contextmanager
def made_users() -> Iterator[Callable[..., str]]:
    """Give a function that makes Unix users, and remove these users at the end. Skips the test without root.

    `make("alice", groups_of=["team"])` returns the name that the user really has.
    """
    if os.getuid():
        pytest.skip("making Unix users needs root")
    users: list[str] = []
    groups: list[str] = []

    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=60)

    def make(name: str = "user", groups_of: Sequence[str] = ()) -> str:
        user = f"oc{name}{os.getpid()}"
        for group in groups_of:
            if group not in groups:
                run("groupadd", group)
                groups.append(group)
        more = ["--groups", ",".join(groups_of)] if groups_of else []
        run("useradd", "--create-home", "--shell", "/bin/bash", *more, user)
        users.append(user)
        return user

    try:
        yield make
    finally:
        for user in users:
            subprocess.run(["userdel", "--remove", "--force", user], capture_output=True, timeout=60)
        for group in groups:
            subprocess.run(["groupdel", group], capture_output=True, timeout=60)


def as_user(user: str, do: Callable[[], T]) -> T:
    """Return the result of `do()` as `user`, with that user's groups; its exceptions are raised here (root only)."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            become(user)
            answer = pickle.dumps((do(), None))
        except BaseException as error:
            answer = _carried(error)
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    found, raised = pickle.loads(data)
    if raised is not None:
        raise raised
    return cast(T, found)


def become(user: str) -> None:
    """Make this process one of `user` with that user's groups (root only)."""
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def _carried(error: BaseException) -> bytes:
    """`error` for the parent; one whose class cannot be made from its arguments as a plain one that says the same."""
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((None, RuntimeError(repr(error))))
    return data
