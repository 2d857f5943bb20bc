"""Many files at once to and from a store, each proven where it went."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from urllib.parse import SplitResult, unquote, urlsplit

from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.fsspec_store import SCHEMES, FsspecStore
from opsctl.transfer.object_store.sources import Source, digest_of, file_source
from opsctl.transfer.object_store.types import (
    Access,
    Expected,
    FarFile,
    FileFault,
    Moved,
    Outcome,
    StoreError,
    check_name,
)

_FORMS = "a destination is /FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"


class Store:
    """A place for copies of files; `open_store` makes one. Used in a `with`."""

    def __init__(self, backend: FolderStore | FsspecStore) -> None:
        self.backend = backend

    @property
    def where(self) -> str:
        """Return the destination, without any secret."""
        return self.backend.where

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backend.close()

    def put(
        self, folder: Path | int, files: Mapping[str, Expected], prefix: str = "", flow: Flow | None = None
    ) -> Outcome:
        """Send `files` of `folder` (a path, or a descriptor of it), each to its name below the folder `prefix`.

        What is there with the right size and contents is not sent again. Raises StoreError.
        """
        with held_folder(folder) as held:
            return self._send_all(files, lambda name: file_source(held, name, files[name]), prefix, flow or Flow())

    def put_source(self, source: Source, name: str, flow: Flow | None = None) -> Moved:
        """Send one content. Raises FileFault, StoreError."""
        self.backend.tidy([name])
        moved = self._send(source, name, flow or Flow())
        self.backend.settle([name])
        return moved

    def get(self, files: Mapping[str, Expected], folder: Path, prefix: str = "", flow: Flow | None = None) -> Outcome:
        """Fetch `files` from below `prefix` into the folder `folder`, which is there, proven on its disk.

        What is there with the right size and contents is not fetched again. Raises StoreError.
        """
        return self.fetch(files, lambda name: self.source(_joined(prefix, name), files[name]), folder, flow)

    def fetch(
        self, names: Collection[str], opened: Callable[[str], Source], folder: Path, flow: Flow | None = None
    ) -> Outcome:
        """Fetch what `opened` returns for each of `names`, as `get` does."""
        with Store(FolderStore(str(folder))) as here:
            return here._send_all(names, opened, "", flow or Flow())

    def check(
        self,
        files: Mapping[str, Expected],
        prefix: str = "",
        flow: Flow | None = None,
        opened: Callable[[str], Source] | None = None,
    ) -> Outcome:
        """Read all bytes of `files` below `prefix` and compare them with what they have to be. Raises StoreError.

        opened: returns each file, such as a member of a tar, in place of an object below `prefix`.
        """
        flow = flow or Flow()

        def check(name: str) -> Moved:
            source = opened(name) if opened else self.source(_joined(prefix, name), files[name], flow)
            return Moved(source.bytes, digest_of(source), was_there=True)

        return self._each(files, check, flow)

    def proven(self, folder: int, files: Mapping[str, Expected], prefix: str, flow: Flow) -> Collection[str]:
        """Return those of `files` that the store's own checksums prove, by reading them in `folder` and not there.

        Raises StoreError.
        """

        def prove(name: str) -> Moved:
            source = file_source(folder, name, Expected(files[name].bytes))
            found = self.backend.proves(_joined(prefix, name), source)
            if found is None or found != files[name].xxh64:
                raise FileFault(f"{name!a} in {self.where} is not proven by a checksum of the store's own")
            return Moved(source.bytes, found, was_there=True)

        return self._each(files, prove, flow).moved.keys()

    def source(self, name: str, expected: Expected, flow: Flow | None = None) -> Source:
        """Return a whole file of the store. Raises FileFault where it is not there, or has another size; StoreError.

        flow: for what is read and goes nowhere.
        """
        far = self.backend.stat(name)
        if far is None or expected.bytes not in (None, far.bytes):
            raise FileFault(self._wrong(name, far, expected.bytes))
        return self.part(name, name, 0, far.bytes, expected.xxh64, flow)

    def part(self, file: str, name: str, begin: int, size: int, xxh64: str | None, flow: Flow | None = None) -> Source:
        """Return `size` bytes of the store's file `file` as a source `name`."""

        def chunks() -> Iterator[memoryview]:
            for chunk in self.backend.read(file, begin, begin + size):
                if flow:
                    flow.take(len(chunk))
                    flow.done(len(chunk))
                yield chunk

        return Source(name, size, xxh64, chunks, where=f"in {self.where}")

    def list(self, prefix: str = "") -> dict[str, FarFile]:
        """Return every whole file below the folder `prefix`, by its name there; empty where there is no such folder."""
        return self.backend.list(prefix)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return a small file, or a part of one. Raises FileFault where there is none, StoreError."""
        return b"".join(bytes(piece) for piece in self.backend.read(name, begin, end))

    def read_if_there(self, name: str) -> bytes | None:
        """Return a small file; None where there is none. Raises StoreError."""
        return None if self.backend.stat(name) is None else self.read(name)

    def remove(self, names: Iterable[str], prefix: str = "") -> None:
        """Remove files; those that are not there are ignored. Raises StoreError."""

        def remove(name: str) -> Moved:
            check_name(name)
            self.backend.remove(_joined(prefix, name))
            return Moved(0, "", was_there=True)

        self._each(list(names), remove, Flow()).raise_faults()

    def _send_all(self, names: Collection[str], opened: Callable[[str], Source], prefix: str, flow: Flow) -> Outcome:
        self.backend.tidy([_joined(prefix, name) for name in names])

        def send(name: str) -> Moved:
            check_name(name)
            return self._send(opened(name), _joined(prefix, name), flow)

        return self._settled(self._each(names, send, flow), prefix)

    def _send(self, source: Source, name: str, flow: Flow) -> Moved:
        far = self.backend.stat(name)
        found = self.backend.holds(name, source) if far is not None and far.bytes == source.bytes else None
        if found is not None:
            flow.done(source.bytes)
            return Moved(source.bytes, found, was_there=True)
        return Moved(source.bytes, self.backend.send(source, name, flow), was_there=False)

    def _settled(self, outcome: Outcome, prefix: str) -> Outcome:
        """Make what was sent durable, and list it once more: a store may lose what it has acknowledged."""
        if not outcome.moved:
            return outcome
        self.backend.settle([_joined(prefix, name) for name in outcome.moved])
        there = self.list(prefix)
        lost = {
            name: self._wrong(_joined(prefix, name), there.get(name), moved.bytes)
            for name, moved in outcome.moved.items()
            if name not in there or there[name].bytes != moved.bytes
        }
        kept = {name: moved for name, moved in outcome.moved.items() if name not in lost}
        return Outcome(kept, {**outcome.faults, **lost})

    def _wrong(self, name: str, found: FarFile | None, expected_bytes: int | None) -> str:
        if found is None:
            return f"{name!a} is not in {self.where}"
        return f"{name!a} in {self.where} has {found.bytes} bytes instead of {expected_bytes}"

    def _each(self, names: Collection[str], do: Callable[[str], Moved], flow: Flow) -> Outcome:
        """Call `do` for every name, several at once. The first StoreError, or an interruption, ends the others."""
        moved: dict[str, Moved] = {}
        faults: dict[str, str] = {}

        def one(name: str) -> None:
            try:
                moved[name] = do(name)
            except FileFault as fault:
                faults[name] = str(fault)

        with ThreadPoolExecutor(min(self.backend.workers, max(1, len(names)))) as pool:
            futures = [pool.submit(one, name) for name in names]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and not future.exception() for future in futures):
                    flow.stop()
                    pool.shutdown(cancel_futures=True)
        _raise_first(futures)
        return Outcome(
            {name: moved[name] for name in names if name in moved},
            {name: faults[name] for name in names if name in faults},
        )


def open_store(url: str, access: Access | None = None) -> Store:
    """Return the store behind `/folder`, `file:///folder`, `s3://bucket/prefix` or `gs://bucket/prefix`.

    Only a folder is known to be there then. Raises StoreError where there can be no such store, or a package is
    missing.
    """
    if url.startswith("/"):
        return Store(FolderStore(url))
    parts = _parts(url)
    if parts.scheme == "file" and not parts.netloc:
        return Store(FolderStore(unquote(parts.path)))
    if parts.scheme in SCHEMES and parts.netloc:
        return Store(FsspecStore(url, parts.scheme, access or Access()))
    raise StoreError(f"{url!a} names no store: {_FORMS}")


def refuse_secret(url: str) -> None:
    """Raise StoreError for a URL that may have a secret in it. The text has none of it."""
    if not url.startswith("/"):
        _parts(url)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_secret = parts.username is not None or bool(parts.query or parts.fragment)
    except ValueError:
        raise StoreError(f"a destination's URL cannot be read: {_FORMS}") from None
    if has_secret:
        raise StoreError(
            f"a destination's URL, {parts.scheme}://..., has a user, a password, a query or a # in it: "
            "everybody sees URLs; give credentials by the store's own variables and files"
        )
    return parts


def _raise_first(futures: Iterable[Future[None]]) -> None:
    """Raise the error that ended the workers, and not that they were stopped."""
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in sorted(errors, key=lambda one: isinstance(one, Stopped)):
        raise error


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


@contextlib.contextmanager
def held_folder(folder: Path | int) -> Iterator[int]:
    """Yield a descriptor of the folder."""
    if isinstance(folder, int):
        yield folder
        return
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{str(folder)!a} cannot be read: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)
