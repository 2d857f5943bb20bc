"""Moving bytes past the page cache, on file systems that can and on such that say so sooner, later or never."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opsctl.transfer.object_store import direct
from opsctl.transfer.object_store.sources import CHUNK_BYTES
from opsctl.transfer.object_store.types import FileFault

SIZES = (0, 1, 4095, 4096, (1 << 20) - 1, (1 << 20) + 4097, CHUNK_BYTES, CHUNK_BYTES + 4096, 2 * CHUNK_BYTES + 17)


def written(path: Path, data: bytes) -> int:
    """A descriptor of the file, that was written in pieces as a copy is."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    view = direct.make_buffer(len(data))
    for begin in range(0, len(data), CHUNK_BYTES):
        count = min(CHUNK_BYTES, len(data) - begin)
        view[:count] = data[begin : begin + count]
        direct.write_piece(fd, view[:count])
    os.fsync(fd)
    return fd


def there(fd: int, begin: int, end: int) -> bytes:
    return b"".join(bytes(piece) for piece in direct.pieces(fd, begin, end, "a"))


def refuse_to_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system does that says so at once; there is none here."""
    real = fcntl.fcntl

    def refusing(fd: int, command: int, *flags: int) -> int:
        if command == fcntl.F_SETFL and flags[0] & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, *flags)

    monkeypatch.setattr(fcntl, "fcntl", refusing)


def refuse_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system does that says so only when something is to be moved; there is none here."""

    def refusing(real: Any, fd: int, *arguments: Any) -> Any:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, *arguments)

    monkeypatch.setattr(os, "write", partial(refusing, os.write))
    monkeypatch.setattr(os, "preadv", partial(refusing, os.preadv))


@pytest.mark.parametrize("refuse", [None, refuse_to_switch, refuse_to_move])
@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_is_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, refuse: Any
) -> None:
    if refuse:
        refuse(monkeypatch)
    data = os.urandom(size)
    fd = written(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data and there(fd, 0, size) == data
    os.close(fd)


def test_any_range_of_a_file_is_read_and_none_past_its_end(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 8192 + 5)
    fd = written(tmp_path / "a", data)
    edges = (0, 1, 4095, 4096, 4097, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, len(data) - 1, len(data))
    for begin in edges:
        for end in edges:
            assert there(fd, begin, end) == data[begin:end], (begin, end)
    for end in (len(data) + 1, len(data) + 5000):
        with pytest.raises(FileFault, match=f"ends after {len(data)} bytes"):
            there(fd, 0, end)
    os.close(fd)


def test_whole_blocks_go_past_the_cache_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = written(tmp_path / "a", b"")
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        pytest.skip("the file system cannot do it")
    os.close(fd)
    moved = []

    def seen(real: Any, fd: int, data: Any, *arguments: Any) -> Any:
        count = real(fd, data, *arguments)
        moved.append((bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT), count))
        return count

    monkeypatch.setattr(os, "write", partial(seen, os.write))
    fd = written(tmp_path / "a", os.urandom(CHUNK_BYTES + (2 << 20) + 3))
    assert moved == [(True, CHUNK_BYTES), (True, 2 << 20), (False, 3)]
    moved.clear()
    monkeypatch.setattr(os, "preadv", partial(seen, os.preadv))
    assert len(there(fd, 5000, CHUNK_BYTES + 17)) == CHUNK_BYTES + 17 - 5000
    assert moved and all(is_past for is_past, _ in moved)
    os.close(fd)


def test_what_fails_otherwise_is_not_tried_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(*_: Any) -> int:
        tries.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path / "a", os.urandom(2 << 20))
    assert len(tries) == 1
