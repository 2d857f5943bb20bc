"""The cache of sample orders: files built by one rank, mapped by all, and copied to each node's own disk.

A file's name contains a hash of everything that its content depends on, also the data's size and time, so a stale file
is never found. Two runs that build the same order write the same bytes to separate files and rename them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.core.files import create_file, make_folder, write_atomically
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

#: Bytes of the disk that stay free.
SPARED_SHARE = 0.05
#: Seconds to wait for another process's copy. After that the file itself is read.
WAIT_S = 20.0
#: Age since the last use after which a process that makes a copy deletes another.
UNUSED_S = 14 * 86_400.0
_PIECE = 1 << 24
_LOOK_S = 0.02


class NodeCache:
    """Local copies in `folder`/opsctl-data-UID, which other users cannot read; None: files are read in place.

    say: receives one message, why there are no copies.
    """

    def __init__(self, folder: Path | None, say: Callable[[str], None] = lambda _: None) -> None:
        self._above, self._say = folder, say
        self._folder: Path | None = None

    def local(self, source: Path) -> Path:
        """Return a whole local copy of `source`, made if missing; `source` itself if there can be none.

        Raises OSError if `source` itself cannot be read.
        """
        if self._above is None:
            return source
        try:
            folder = self._folder = self._folder or _own_folder(self._above)
            return _copy_in(folder, source)
        except _SourceFailed as failed:
            raise failed.error from None
        except OSError as error:
            why = f"warning: no copies in {self._above} on {os.uname().nodename}: {error.strerror or error}"
            self._say(f"{why}; {source} and later files are read in place")
            self._above = None
            return source


def expanded(text: str) -> Path:
    """Return the folder of an option, with environment variables expanded.

    Raises DataError for an unset variable, and for a path relative to the current folder.
    """
    found = os.path.expandvars(text)
    if "$" in found:
        raise DataError(f"--data-node-cache-path {text}: this node's environment lacks some of its variables")
    if not found.startswith("/"):
        raise DataError(f"--data-node-cache-path {text}: give an absolute path, a folder on each node's own disk")
    return Path(found)


def _own_folder(above: Path) -> Path:
    folder = above / f"opsctl-data-{os.getuid()}"
    above.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    # In a shared folder another user may have created it first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, f"{folder.name} exists and is not a private folder (0700)", str(folder))
    return folder


def _copy_in(folder: Path, source: Path) -> Path:
    with _of_source():
        state, path = source.stat(), source.resolve()
    version = f"{path}\0{state.st_size}\0{state.st_mtime_ns}"
    copy = folder / f"{hashlib.sha256(version.encode()).hexdigest()[:32]}{source.suffix}"
    if _is_whole(copy, state.st_size):
        return copy
    deadline = time.monotonic() + WAIT_S
    while True:
        with _begun(copy.with_name(f"{copy.name}.partial")) as file:
            if file is not None:
                if not _is_whole(copy, state.st_size):  # otherwise it was made while we waited for the lock
                    _make(folder, source, state, file, copy)
                return copy
        if time.monotonic() > deadline:
            return source
        time.sleep(_LOOK_S)
        if _note(copy).exists() and _is_whole(copy, state.st_size):
            return copy


@contextlib.contextmanager
def _begun(partial: Path) -> Iterator[int | None]:
    """Yield a descriptor of `partial`, locked; None while another process has the lock."""
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = _is_at(partial, fd)
    except BlockingIOError:
        is_ours = False
    try:
        # It may have been renamed between the open and the lock.
        yield fd if is_ours else None
    finally:
        if is_ours and _is_at(partial, fd):
            partial.unlink()
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(fd))
    return False


def _make(folder: Path, source: Path, state: os.stat_result, file: int, copy: Path) -> None:
    """Fill `file`, which is next to `copy`, and rename it. Raises OSError."""
    import xxhash

    _take_away_unused(folder)
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize - state.st_size < SPARED_SHARE * disk.f_blocks * disk.f_frsize:
        free = f"{disk.f_bavail * disk.f_frsize / 1e6:,.1f} MB free"
        raise OSError(errno.ENOSPC, f"{free} are not enough for {state.st_size / 1e6:,.1f} MB and the reserve")
    os.ftruncate(file, 0)
    digest, done = xxhash.xxh64(), 0
    with _of_source():
        original = source.open("rb", buffering=0)
    with original:
        while piece := _read(original):
            digest.update(piece)
            done += _write_all(file, piece)
        with _of_source():
            now = os.fstat(original.fileno())
    if (done, now.st_size, now.st_mtime_ns) != (state.st_size, state.st_size, state.st_mtime_ns):
        raise OSError(errno.EBUSY, f"{source} changed while it was copied")
    Path(f"{copy}.partial").replace(copy)
    # The note is written last: without it the copy does not count.
    write_atomically(_note(copy), json.dumps({"source": str(source), "bytes": done, "xxh64": digest.hexdigest()}))


def _read(original: io.FileIO) -> bytes:
    with _of_source():
        return original.read(_PIECE)


@contextlib.contextmanager
def _of_source() -> Iterator[None]:
    """Mark errors of the source, as opposed to those of the node's disk."""
    try:
        yield
    except OSError as error:
        raise _SourceFailed(error) from None


class _SourceFailed(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _write_all(file: int, piece: bytes) -> int:
    left = memoryview(piece)
    while left:
        left = left[os.write(file, left) :]
    return len(piece)


def _note(copy: Path) -> Path:
    return Path(f"{copy}.json")


def _is_whole(copy: Path, size: int) -> bool:
    """Return True if the copy has the length and contents in its note. Reads all of it."""
    import xxhash

    try:
        noted = json.loads(_note(copy).read_text())
        digest = xxhash.xxh64()
        with copy.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != size or noted["bytes"] != size:
                return False
            while piece := file.read(_PIECE):
                digest.update(piece)
        if digest.hexdigest() != noted["xxh64"]:
            return False
        os.utime(_note(copy))  # marks it as used
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _take_away_unused(folder: Path) -> None:
    """Delete unused copies. A process that still maps one keeps it until it closes the file."""
    for found in folder.iterdir():
        with contextlib.suppress(OSError):
            used = _note(found) if _note(found).exists() else found
            if time.time() - used.stat().st_mtime > UNUSED_S:
                found.unlink()


Arrays = dict[str, NDArray[Any]]


class IndexCache:
    """A cache of built arrays. `folders` are tried in order; if none is writable, every rank builds its own arrays.

    keeps: save what is built, on one rank only. node: maps its own copies.
    """

    def __init__(self, folders: list[Path], keeps: bool = True, node: NodeCache | None = None) -> None:
        self._folders, self._keeps, self._node = folders, keeps, node or NodeCache(None)

    def load_or_build(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """Return the arrays for `description`, mapped read-only, or build (and with `keeps` save) them."""
        text, stem = _named(description)
        found = self._find(stem)
        if found is not None:
            return found[1]
        built = build()
        if self._keeps:
            self._keep(stem, text, built)
            found = self._find(stem)
        # Otherwise the folder is not shared or not writable here, and building again gives the same arrays.
        return built if found is None else found[1]

    def kept(self, description: Mapping[str, Any]) -> tuple[Path, Arrays] | None:
        """Return the listing and the arrays for `description`; None if they are not completely cached."""
        return self._find(_named(description)[1])

    def _find(self, stem: str) -> tuple[Path, Arrays] | None:
        for folder in self._folders:
            listing = folder / f"{stem}.json"
            with contextlib.suppress(OSError, ValueError, KeyError, EOFError):
                names = json.loads(listing.read_text())["arrays"]
                local = {name: self._node.local(folder / f"{stem}-{name}.npy") for name in names}
                mapped = {name: np.load(path, mmap_mode="r") for name, path in local.items()}
                return listing, {name: array.view(np.ndarray) for name, array in mapped.items()}
        return None

    def _keep(self, stem: str, text: str, arrays: Arrays) -> None:
        failures = []
        for folder in self._folders:
            try:
                make_folder(folder)
                for name, array in arrays.items():
                    _save(folder / f"{stem}-{name}.npy", array)
                # The listing is written last: everything that it names is complete.
                listing = {"arrays": list(arrays), "made_from": json.loads(text)}
                write_atomically(folder / f"{stem}.json", json_file_text(listing))
                return
            except OSError as error:
                failures.append(f"{folder}: {error.strerror}")
        if failures:
            sys.stderr.write(
                f"warning: the sample order could not be saved ({'; '.join(failures)}), so every rank builds it at "
                "every start; give a writable --data-cache-path\n"
            )


def _named(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the description as text, and the common name of its files."""
    text = json.dumps(description, indent=1, sort_keys=True, default=str)
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]


def _save(path: Path, array: NDArray[Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    fd = create_file(beside)
    try:
        with os.fdopen(fd, "wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
