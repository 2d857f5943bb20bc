"""A folder on any file system: a file gets its name when it is durable and was read back from the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from opsctl.core.files.trusted import Untrusted, create_file, readable
from opsctl.transfer.object_store.below import folder_of, open_below
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.sources import Source, check_digest, new_digest, read_chunks
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import PART, FarFile, FileFault, Outcome, StoreError, is_part

#: What concerns one name only; everything else is the file system's, and the next file would meet it too.
_OF_ONE_FILE = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EILSEQ, errno.ENOENT, 0)


class FolderStore(Store):
    """A folder that is there, held open. Raises StoreError where it is not, or cannot be looked into."""

    def __init__(self, path: str) -> None:
        self.where = path
        try:
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            remedy = ": mount it, or make it with mkdir -p" if error.errno == errno.ENOENT else ""
            raise StoreError(f"{path!a} cannot be used as a destination: {error.strerror}{remedy}") from None

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._root)

    def stat(self, name: str) -> FarFile | None:
        """Return the file, None where there is none."""
        with self._saying(name):
            try:
                with folder_of(self._root, name) as (folder, last):
                    found = os.stat(last, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None
        return _far(found) if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str = "") -> dict[str, FarFile]:
        """Return every whole file below the folder `prefix`, by its name there."""
        return {name: _far(one) for name, one in self._walk(prefix) if not is_part(name)}

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Write the file beside its place, prove that the disk has it, and put it there. Returns its xxh64."""
        part = f"{PART}{secrets.token_hex(8)}"
        with self._saying(name), folder_of(self._root, name, make=True) as (folder, last):
            fd = create_file(folder, Path(part))
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)  # dies with this process, and tells that it is at work
                written = _fill(fd, source, flow)
                if source.changed_ns is not None:
                    os.utime(fd, ns=(source.changed_ns, source.changed_ns))
                os.fsync(fd)
                read = _digest_from_disk(fd, flow)
                check_digest(name, read, written, f"read back from {self.where}")
                os.rename(part, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
            finally:
                os.close(fd)
        return written

    def pieces(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """Yield the bytes of a file from `begin` to before `end`, as the disk has them; each is valid until the next.

        Raises FileFault where there is no such file, or it ends before `end`.
        """
        with self._saying(name):
            fd = open_below(self._root, name)
            try:
                yield from _from_disk(fd, begin, os.fstat(fd).st_size if end is None else end, name)
            finally:
                os.close(fd)

    def remove_one(self, name: str) -> None:
        """Remove a file, and folders above it that are empty then; nothing happens where there is none."""
        with self._saying(name), contextlib.suppress(FileNotFoundError), folder_of(self._root, name) as (folder, last):
            os.unlink(last, dir_fd=folder)
        with contextlib.suppress(OSError):
            while "/" in name:
                name = name.rpartition("/")[0]
                with folder_of(self._root, name) as (folder, last):
                    os.rmdir(last, dir_fd=folder)

    def settle(self, names: Collection[str]) -> None:
        """Make the names of files durable."""
        folders = {""}
        for name in names:
            steps = name.split("/")[:-1]
            folders |= {"/".join(steps[:count]) for count in range(1, len(steps) + 1)}
        for one in sorted(folders):
            folder_there = folder_of(self._root, f"{one}/." if one else ".")
            with self._saying(one), folder_there as (folder, _), readable(folder) as fd:
                os.fsync(fd)

    def tidy(self, names: Collection[str]) -> None:
        """Remove what killed transfers left in the folders of `names`, but nothing that another process writes now."""
        for folder in sorted({name.rpartition("/")[0] for name in names}):
            with contextlib.suppress(FileFault):  # a folder that cannot be one is reported with its files
                for name, _ in self._walk(folder, deep=False):
                    if is_part(name):
                        with self._saying(name), contextlib.suppress(FileNotFoundError):
                            self._clean_one(f"{folder}/{name}" if folder else name)

    def _clean_one(self, name: str) -> None:
        with folder_of(self._root, name) as (folder, last):
            fd = open_below(folder, last)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(last, dir_fd=folder)
            except BlockingIOError:
                pass
            finally:
                os.close(fd)

    def _walk(self, prefix: str, deep: bool = True) -> Iterator[tuple[str, os.stat_result]]:
        """Yield every plain file below the folder `prefix`, or only in it: its name there, and what it is."""
        with self._saying(prefix):
            try:
                with folder_of(self._root, f"{prefix}/." if prefix else ".") as (top, _):
                    for above, below, files, folder in os.fwalk(".", dir_fd=top, onerror=_raise):
                        if not deep:
                            below.clear()
                        for file in files:
                            with contextlib.suppress(FileNotFoundError):
                                found = os.stat(file, dir_fd=folder, follow_symlinks=False)
                                if stat.S_ISREG(found.st_mode):
                                    yield os.path.normpath(f"{above}/{file}"), found
            except FileNotFoundError:
                return

    @contextlib.contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except OSError as error:
            is_of_one = isinstance(error, Untrusted) or error.errno in _OF_ONE_FILE
            kind = FileFault if is_of_one else StoreError
            raise kind(f"{name!a} in {self.where}: {error.strerror or error}") from None


def fetch(names: Collection[str], opened: Callable[[str], Source], folder: Path, flow: Flow) -> Outcome:
    """Fetch what `opened` returns for each of `names` into `folder`, which is there, proven on its disk.

    What is there with the right size and contents is not fetched again. Raises StoreError.
    """
    with FolderStore(str(folder)) as here:
        return here.send_all(names, opened, "", flow)


def _raise(error: OSError) -> None:
    raise error


def _far(found: os.stat_result) -> FarFile:
    # No program can set the time of the last change of the inode, so who keeps the mtime is noticed too.
    return FarFile(found.st_size, f"{found.st_ino}.{found.st_mtime_ns}.{found.st_ctime_ns}")


def _fill(fd: int, source: Source, flow: Flow) -> str:
    """Write a source to a new file; return its xxh64."""
    digest = new_digest()
    for chunk in source.checked(digest):
        flow.take(len(chunk))
        written = 0
        while written < len(chunk):
            written += os.write(fd, chunk[written:])
        flow.done(len(chunk))
    return str(digest.hexdigest())


def _from_disk(fd: int, begin: int, end: int, name: str) -> Iterator[memoryview]:
    """Yield a durable file's bytes, without what the page cache still has of it."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return read_chunks(fd, begin, end, name)


def _digest_from_disk(fd: int, flow: Flow) -> str:
    digest = new_digest()
    for chunk in _from_disk(fd, 0, os.fstat(fd).st_size, ""):
        flow.pause(0)
        digest.update(chunk)
    return str(digest.hexdigest())
