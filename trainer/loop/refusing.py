"""Saying why a training cannot go on: at once, in one line, whether all ranks know of it or a single one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.core.console import complain
from trainer.core.files import be_as_open_as_its_folder
from trainer.formats.attempt.error_file import write_error_file
from trainer.formats.errors import SampleError
from trainer.parallel.agreement import Refusal

# How long others give the first rank to say what it knows too: seconds, where it may be busy with something else that
# waits for this very rank, and where it has been told.
_HEARING_S = 2.0
_HEARING_OF_A_REFUSAL_S = 30.0
_LOOK_EVERY_S = 0.02


def refuse(error: Exception) -> None:
    """Say in one line why this rank leaves, unless another has said the same, and leave it where the launcher looks.

    Not collective: the others may be waiting for this rank in something else. The first rank says what it knows; what
    it does not say within seconds, the first of those that know it does, and of a sample at once, as whoever reads it
    is alone with it. Nobody returns before it is said, because at the first exit the launcher ends what is left.
    """
    line = " ".join(str(error).split())
    try:
        store: Any = dist.distributed_c10d._get_default_store() if dist.is_initialized() else None
        if store is None:
            _say_without_the_others(line)
        elif dist.get_rank() == 0:
            _say_first(line, store)
        elif isinstance(error, SampleError) or not _is_heard(line, store, isinstance(error, Refusal)):
            _say_if_nobody_has(line, store)
    finally:
        leave_error_file(line)


def leave_error_file(line: str) -> None:
    """The reason where torch's launcher looks for one, so that it is in the attempt's record too."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        try:
            write_error_file(Path(path), line, time.time())
            be_as_open_as_its_folder(Path(path))
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}")


def _say_without_the_others(line: str) -> None:
    """Before the ranks have met: each comes to the same end, as a rule, and the first says it."""
    if int(os.environ.get("RANK", "0")) == 0:
        complain(f"trainer: {line}")
    else:
        time.sleep(_HEARING_S)


def _say_first(line: str, store: Any) -> None:
    """On the first rank, which may hold the store: it stays until the others have heard it, or for as long as they."""
    _say_if_nobody_has(line, store)
    until = time.monotonic() + _HEARING_S
    with contextlib.suppress(RuntimeError):
        store.set(_key("first", line), "said")
        while store.add("refusal/heard", 0) < dist.get_world_size() - 1 and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)


def _is_heard(line: str, store: Any, is_known_to_all: bool) -> bool:
    """Whether the first rank says it."""
    wait_s = _HEARING_OF_A_REFUSAL_S if is_known_to_all else _HEARING_S
    try:
        store.wait([_key("first", line)], timedelta(seconds=wait_s))
        store.add("refusal/heard", 1)
    except RuntimeError:  # in vain, or the store has gone with the first rank
        return False
    return True


def _say_if_nobody_has(line: str, store: Any) -> None:
    try:
        is_first = store.add(_key("said", line), 1) == 1
    except RuntimeError:
        is_first = True
    if is_first:
        complain(f"trainer: {line}")


def _key(what: str, line: str) -> str:
    return f"refusal/{what}/{hashlib.blake2b(line.encode(), digest_size=8).hexdigest()}"
