"""Many files at once to and from a store, each proven where it went."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Self

from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.sources import Source, digest_of, file_source, new_digest
from opsctl.transfer.object_store.types import (
    Expected,
    FarFile,
    FileFault,
    Moved,
    Outcome,
    StoreError,
    check_name,
)


class Store:
    """A place for copies of files; `urls.open_store` makes one. Used in a `with`.

    Each kind of store has its own `stat`, `list`, `pieces`, `send` and `remove_one`. All methods raise StoreError where
    the store takes or answers no more.
    """

    where: str  # the destination, without any secret
    workers = 4

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def stat(self, name: str) -> FarFile | None:
        """Return a file; None where there is none."""
        raise NotImplementedError

    def list(self, prefix: str = "") -> dict[str, FarFile]:
        """Return every whole file below the folder `prefix`, by its name there; empty where there is no such folder."""
        raise NotImplementedError

    def pieces(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """Yield the bytes from `begin` to before `end`, each piece valid until the next. Raises FileFault for fewer."""
        raise NotImplementedError

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Write the file, prove it where it went, and return its xxh64. Raises FileFault."""
        raise NotImplementedError

    def remove_one(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""
        raise NotImplementedError

    def proves(self, name: str, source: Source) -> str | None:
        """Return the source's xxh64 where a checksum that the store computed proves the file there; else None."""
        return None

    def close(self) -> None:
        """Let go of the store."""

    def settle(self, names: Collection[str]) -> None:
        """Make the names of files durable."""

    def tidy(self, names: Collection[str]) -> None:
        """Remove what killed transfers left in the folders of `names`, if no other process can be writing it now."""

    def put(
        self, folder: Path | int, files: Mapping[str, Expected], prefix: str = "", flow: Flow | None = None
    ) -> Outcome:
        """Send `files` of `folder` (a path, or a descriptor of it), each to its name below the folder `prefix`.

        What is there with the right size and contents is not sent again. Raises StoreError.
        """
        with held_folder(folder) as held:
            return self.send_all(files, lambda name: file_source(held, name, files[name]), prefix, flow or Flow())

    def put_source(self, source: Source, name: str, flow: Flow | None = None) -> Moved:
        """Send one content. Raises FileFault, StoreError."""
        self.tidy([name])
        moved = self._send(source, name, flow or Flow())
        self.settle([name])
        return moved

    def check(self, files: Mapping[str, Expected], prefix: str = "", flow: Flow | None = None) -> Outcome:
        """Read all bytes of `files` below `prefix` and compare them with what they have to be. Raises StoreError."""
        flow = flow or Flow()

        def check(name: str) -> Moved:
            source = self.source(_joined(prefix, name), files[name], flow)
            return Moved(source.bytes, digest_of(source), was_there=True)

        return self._each(files, check, flow)

    def source(self, name: str, expected: Expected, flow: Flow | None = None) -> Source:
        """Return a whole file of the store. Raises FileFault where it is not there, or has another size; StoreError.

        flow: for what is read and goes nowhere.
        """
        far = self.stat(name)
        if far is None or expected.bytes not in (None, far.bytes):
            raise FileFault(self._wrong(name, far, expected.bytes))

        def chunks() -> Iterator[memoryview]:
            for chunk in self.pieces(name, 0, far.bytes):
                if flow:
                    flow.take(len(chunk))
                    flow.done(len(chunk))
                yield chunk

        return Source(name, far.bytes, expected.xxh64, chunks, where=f"in {self.where}")

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return a small file, or a part of one. Raises FileFault where there is none, StoreError."""
        return b"".join(bytes(piece) for piece in self.pieces(name, begin, end))

    def read_if_there(self, name: str) -> bytes | None:
        """Return a small file; None where there is none. Raises StoreError."""
        return None if self.stat(name) is None else self.read(name)

    def remove(self, names: Iterable[str], prefix: str = "") -> None:
        """Remove files; those that are not there are ignored. Raises StoreError."""

        def remove(name: str) -> Moved:
            check_name(name)
            self.remove_one(_joined(prefix, name))
            return Moved(0, "", was_there=True)

        self._each(list(names), remove, Flow()).raise_faults()

    def send_all(self, names: Collection[str], opened: Callable[[str], Source], prefix: str, flow: Flow) -> Outcome:
        """Send what `opened` returns for each of `names`, as `put` does."""
        self.tidy([_joined(prefix, name) for name in names])

        def send(name: str) -> Moved:
            check_name(name)
            return self._send(opened(name), _joined(prefix, name), flow)

        return self._settled(self._each(names, send, flow), prefix)

    def _send(self, source: Source, name: str, flow: Flow) -> Moved:
        far = self.stat(name)
        found = self._holds(name, source) if far is not None and far.bytes == source.bytes else None
        if found is not None:
            flow.done(source.bytes)
            return Moved(source.bytes, found, was_there=True)
        return Moved(source.bytes, self.send(source, name, flow), was_there=False)

    def _holds(self, name: str, source: Source) -> str | None:
        """Return the checksum where the file there has the source's contents: by the store's word, or by reading it."""
        if (proven := self.proves(name, source)) is not None:
            return proven
        expected = source.xxh64 or digest_of(source)
        return expected if self.digest(name) == expected else None

    def digest(self, name: str) -> str:
        """Return the xxh64 of a file, which is read."""
        digest = new_digest()
        for piece in self.pieces(name, 0, None):
            digest.update(piece)
        return str(digest.hexdigest())

    def _settled(self, outcome: Outcome, prefix: str) -> Outcome:
        """Make what was sent durable, and list it once more: a store may lose what it has acknowledged."""
        if not outcome.moved:
            return outcome
        self.settle([_joined(prefix, name) for name in outcome.moved])
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

        with ThreadPoolExecutor(min(self.workers, max(1, len(names)))) as pool:
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
