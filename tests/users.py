"""Being another Unix user for a moment, in a forked process: another user may not read this interpreter's library."""

from __future__ import annotations

import os
import pickle
import pwd
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


def as_user(user: str, do: Callable[[], T]) -> T:
    """What `do()` returns when `user` does it, with that user's groups; what it raises is raised here (root only).

    Import what it needs before. What it returns must be something that pickle can carry.
    """
    entry = pwd.getpwnam(user)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.initgroups(user, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
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


def _carried(error: BaseException) -> bytes:
    """`error` for the parent; one whose class cannot be made from its arguments as a plain one that says the same."""
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((None, RuntimeError(repr(error))))
    return data
