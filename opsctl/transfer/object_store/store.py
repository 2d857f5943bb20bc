"""One engine over every kind of store: many files at once, each proven where it went, the last piece last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.remote_source import far_file
from opsctl.transfer.object_store.sources import FileSource, Source, check_digest, new_digest
from opsctl.transfer.object_store.types import (
    Expected,
    FarFile,
    FileFault,
    Moved,
    Outcome,
    StoreError,
    check_name,
    is_name,
)

T = TypeVar("T")


class Backend(Protocol):
    """What a kind of store has to be able to do. Each raises StoreError, or FileFault where only one name is wrong."""

    @property
    def where(self) -> str:
        """The destination, without any secret."""

    @property
    def workers(self) -> int:
        """How many files at once are best."""

    def stat(self, name: str) -> FarFile | None:
        """The file, None where there is none."""

    def list(self, prefix: str) -> dict[str, FarFile]:
        """Every whole file below the folder `prefix`, by its name there."""

    def look(self, names: Collection[str]) -> dict[str, FarFile]:
        """Those of `names` that are there."""

    def holds(self, name: str, source: Source) -> str | None:
        """The checksum, where the file of the source's size that is there has its contents."""

    def vouches(self, name: str, source: Source) -> str | None:
        """Return the source's xxh64 where a checksum of the store's own, not a note of ours, is that of the source."""

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Put it there whole, replacing what is there, and prove it. Returns its xxh64."""

    def read(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes from `begin` to before `end`; each piece is valid until the next."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""

    def settle(self, names: Collection[str]) -> dict[str, FarFile]:
        """Make names durable that were put there, and look once more: those that are there."""

    def tidy(self, names: Collection[str]) -> None:
        """Remove what killed transfers left in the folders of `names`, but what these can be gone on with."""

    def clean(self, prefix: str) -> int:
        """Remove what killed transfers left below `prefix`. Returns how many."""

    def close(self) -> None:
        """Let go of what is held."""


class Store:
    """A place for copies of files; `opening.open_store` makes one. Used in a `with`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @property
    def where(self) -> str:
        """The destination, without any secret."""
        return self.backend.where

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backend.close()

    def put(
        self,
        folder: Path | int,
        files: Mapping[str, Expected],
        prefix: str = "",
        last: Collection[str] = (),
        flow: Flow | None = None,
    ) -> Outcome:
        """Send `files` of `folder` (a path, or a descriptor of it), each to its name below the folder `prefix`.

        What is there with the right size and contents is not sent again. Those in `last` follow only when all others
        are there and durable: where any has a fault, they are not sent at all. Raises StoreError.
        """
        flow = flow or Flow()
        early = [name for name in files if name not in last]
        with held_folder(folder) as held:

            def send(name: str) -> Moved:
                return self._send(_opened(held, name, files[name]), _joined(prefix, name), flow, there)

            there = self._prepared(prefix, files)
            outcome = self._settled(self._each(early, send, flow), prefix)
            for name in (one for one in files if one in last):
                if outcome.faults:
                    return outcome
                outcome = _both(outcome, self._settled(self._each([name], send, flow), prefix))
        return outcome

    def put_source(self, source: Source, name: str, flow: Flow | None = None) -> Moved:
        """Send what is no file of a folder. Raises FileFault, StoreError."""
        moved = self._send(source, name, flow or Flow(), self._prepared("", [name]))
        self._settled(Outcome({name: moved}), "").raise_faults()
        return moved

    def get(self, files: Mapping[str, Expected], folder: Path, prefix: str = "", flow: Flow | None = None) -> Outcome:
        """Fetch `files` from below `prefix` into the folder `folder`, which is there, proven on its disk.

        What is there with the right size and contents is not fetched again. Raises StoreError.
        """
        return self.fetch(files, lambda name: far_file(self.backend, _joined(prefix, name), files[name]), folder, flow)

    def fetch(
        self, names: Collection[str], opened: Callable[[str], Source], folder: Path, flow: Flow | None = None
    ) -> Outcome:
        """`get` of what `opened` gives for each of `names`."""
        flow = flow or Flow()
        with Store(FolderStore(str(folder))) as here:

            def fetch(name: str) -> Moved:
                check_name(name)
                return here._send(opened(name), name, flow, there)

            there = here._prepared("", names)
            return here._settled(self._each(names, fetch, flow), "")

    def check(
        self, files: Mapping[str, Expected], prefix: str = "", reading: bool = True, flow: Flow | None = None
    ) -> Outcome:
        """Which of `files` are below `prefix` as they have to be: all their bytes are read, or only sizes looked at."""
        flow = flow or Flow()
        there = {} if reading else self.list(prefix)

        def check(name: str) -> Moved:
            expected = files[name]
            if reading:
                return self._read_through(_joined(prefix, name), expected, flow)
            found = there.get(name)
            if found is None or expected.bytes not in (None, found.bytes):
                raise FileFault(_gone(self.where, name, found, expected.bytes))
            return Moved(found.bytes, "", was_there=True)

        return self._each(files, check, flow)

    def vouched(
        self, folder: Path | int, files: Mapping[str, Expected], prefix: str = "", flow: Flow | None = None
    ) -> Collection[str]:
        """Return those of `files` that the store's own checksums prove, by reading them in `folder` and not there.

        Raises StoreError.
        """
        with held_folder(folder) as held:

            def vouch(name: str) -> Moved:
                with contextlib.closing(_opened(held, name, Expected(files[name].bytes))) as source:
                    found = self.backend.vouches(_joined(prefix, name), source)
                if found is None or found != files[name].xxh64:
                    raise FileFault(f"{name!a} in {self.where} is not proven by a checksum of the store's own")
                return Moved(source.bytes, found, was_there=True)

            return self._each(files, vouch, flow or Flow()).moved.keys()

    def list(self, prefix: str = "") -> dict[str, FarFile]:
        """Every whole file below the folder `prefix`, by its name there; empty where there is no such folder."""
        return self.backend.list(prefix)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """All of a file, or of a part of it, for what is small. Raises FileFault where there is none, StoreError."""
        return b"".join(bytes(piece) for piece in self.backend.read(name, begin, end))

    def remove(self, names: Iterable[str], prefix: str = "") -> None:
        """Remove files; those that are not there are none. Raises StoreError."""
        flow = Flow()

        def remove(name: str) -> Moved:
            check_name(name)
            self.backend.remove(_joined(prefix, name))
            return Moved(0, "", was_there=True)

        self._each(list(names), remove, flow).raise_faults()

    def clean(self, prefix: str = "") -> int:
        """Remove what killed transfers left below `prefix`. Returns how many."""
        return self.backend.clean(prefix)

    def _prepared(self, prefix: str, names: Iterable[str]) -> Mapping[str, FarFile]:
        """What is there, by its whole name, of the files that are to come, after a clean-up where they go."""
        far = [_joined(prefix, name) for name in names if is_name(name)]
        self.backend.tidy(far)
        return self.backend.look(far)

    def _send(self, source: Source, name: str, flow: Flow, there: Mapping[str, FarFile]) -> Moved:
        with contextlib.closing(source):
            is_alike = name in there and there[name].bytes == source.bytes
            found = self.backend.holds(name, source) if is_alike else None
            if found is not None:
                flow.done(source.bytes)
                return Moved(source.bytes, found, was_there=True)
            return Moved(source.bytes, self.backend.send(source, name, flow), was_there=False)

    def _read_through(self, name: str, expected: Expected, flow: Flow) -> Moved:
        digest, count = new_digest(), 0
        for piece in self.backend.read(name, 0, None):
            flow.take(len(piece))
            digest.update(piece)
            count += len(piece)
            flow.done(len(piece))
        found = str(digest.hexdigest())
        if expected.bytes not in (None, count):
            raise FileFault(f"{name!a} in {self.where} has {count} bytes instead of {expected.bytes}")
        check_digest(name, found, expected.xxh64, f"in {self.where}")
        return Moved(count, found, was_there=True)

    def _settled(self, outcome: Outcome, prefix: str) -> Outcome:
        """The outcome after what was put is durable, and was looked for once more: a store may lose what it took."""
        far = {name: _joined(prefix, name) for name in outcome.moved}
        there = self.backend.settle(list(far.values())) if far else {}
        lost = {
            name: _gone(self.where, far[name], there.get(far[name]), moved.bytes)
            for name, moved in outcome.moved.items()
            if (found := there.get(far[name])) is None or found.bytes != moved.bytes
        }
        kept = {name: moved for name, moved in outcome.moved.items() if name not in lost}
        return Outcome(kept, {**outcome.faults, **lost})

    def _each(self, names: Collection[str], do: Callable[[str], Moved], flow: Flow) -> Outcome:
        """Do it for every name, several at once. The first StoreError, or an interruption, ends the others."""
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
        order = list(names)
        return Outcome(
            {name: moved[name] for name in order if name in moved},
            {name: faults[name] for name in order if name in faults},
        )


def _raise_first(futures: Iterable[Future[None]]) -> None:
    """Raise what ended the workers: not that they were told to end."""
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in sorted(errors, key=lambda one: isinstance(one, Stopped)):
        raise error


def _gone(where: str, name: str, found: FarFile | None, expected_bytes: int | None) -> str:
    if found is None:
        return f"{name!a} is not in {where}, whatever it said before"
    return f"{name!a} in {where} has {found.bytes} bytes instead of {expected_bytes}"


def _both(one: Outcome, other: Outcome) -> Outcome:
    return Outcome({**one.moved, **other.moved}, {**one.faults, **other.faults})


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _opened(folder: int, name: str, expected: Expected) -> Source:
    check_name(name)
    return FileSource(folder, name, expected)


@contextlib.contextmanager
def held_folder(folder: Path | int) -> Iterator[int]:
    """A descriptor of the folder."""
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
