"""One tar instead of many files, where inodes are few: written as it is sent, and read again member by member.

Beside `NAME` lies `NAME.index.json`, put there last: where each member's bytes are, and their checksum. So a member is
fetched or checked without the others. What is no index is no tar of ours, and a tar without one was never finished.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.keys import key_of, name_of
from opsctl.transfer.object_store.remote_source import far_range
from opsctl.transfer.object_store.sources import CHUNK_BYTES, FileSource, PiecesSource, digest_of
from opsctl.transfer.object_store.store import Store, held_folder
from opsctl.transfer.object_store.types import Expected, FileFault, Moved, Outcome, check_name

INDEX = ".index.json"
_BLOCK_BYTES = tarfile.BLOCKSIZE


class Member(msgspec.Struct, frozen=True):
    """One file in a tar."""

    offset: int  # of its contents' first byte
    bytes: int
    xxh64: str


class Index(msgspec.Struct, frozen=True):
    """What is in a tar."""

    bytes: int
    xxh64: str
    members: dict[str, Member]  # by name, escaped as in `keys`

    def expected(self) -> dict[str, Expected]:
        """Every member's name, with what it has to be."""
        return {name_of(key): Expected(one.bytes, one.xxh64) for key, one in self.members.items()}


@dataclass
class _Tar:
    """The bytes of a tar of files below a folder that is held open."""

    folder: int
    files: Mapping[str, Expected]

    def __post_init__(self) -> None:
        self.heads: dict[str, bytes] = {}
        self.members: dict[str, Member] = {}
        at = 0
        for name, expected in self.files.items():
            check_name(name)
            source = FileSource(self.folder, name, expected)
            source.close()
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = source.bytes, (source.changed_ns or 0) // 10**9, 0o664
            self.heads[name] = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            at += len(self.heads[name])
            self.members[name] = Member(at, source.bytes, "")
            at += source.bytes + _padding(source.bytes)
        self.bytes = at + 2 * _BLOCK_BYTES

    def pieces(self) -> Iterator[memoryview]:
        """All of it. Raises FileFault for a member that is not what it was when the tar was begun."""
        view = memoryview(bytearray(CHUNK_BYTES))
        for name, head in self.heads.items():
            yield memoryview(head)
            size = self.members[name].bytes
            expected = self.files[name]
            source = FileSource(self.folder, name, Expected(size, expected.xxh64, expected.grows))
            try:
                while count := source.read_into(view):
                    yield view[:count]
                self.members[name] = Member(self.members[name].offset, size, source.finish())
            finally:
                source.close()
            yield memoryview(bytes(_padding(size)))
        yield memoryview(bytes(2 * _BLOCK_BYTES))


def _padding(size: int) -> int:
    return -size % _BLOCK_BYTES


def put_tar(
    store: Store, folder: Path | int, files: Mapping[str, Expected], name: str, flow: Flow | None = None
) -> Outcome:
    """Send `files` of `folder`, in their order, as the tar `name` of the store, which has it whole or not at all.

    What is there with the same contents is not sent again. Of several faults the first is told. Raises StoreError.
    """
    flow = flow or Flow()
    try:
        with held_folder(folder) as held:
            tar = _Tar(held, files)
            moved = store.put_source(PiecesSource(name, tar.bytes, None, tar.pieces), name, flow)
            members = {key_of(one): member for one, member in tar.members.items()}
            text = msgspec.json.encode(Index(moved.bytes, moved.xxh64, members))
            source = PiecesSource(name + INDEX, len(text), None, lambda: iter((memoryview(text),)))
            store.put_source(source, name + INDEX, flow)
    except FileFault as fault:
        return Outcome({}, {name: str(fault)})
    return Outcome({one: Moved(member.bytes, member.xxh64, moved.was_there) for one, member in tar.members.items()})


def read_index(store: Store, name: str) -> Index:
    """What is in the tar `name`. Raises FileFault where it has no index, or a damaged one; StoreError."""
    try:
        index = msgspec.json.decode(store.read(name + INDEX), type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise FileFault(f"{name + INDEX!a} in {store.where} cannot be read") from None
    for member in index.expected():
        check_name(member)
    return index


def get_members(
    store: Store, name: str, folder: Path, members: Collection[str] | None = None, flow: Flow | None = None
) -> Outcome:
    """Fetch `members`, or all, of the tar `name` into `folder`, which is there; only their bytes are asked for."""
    index = read_index(store, name)
    names = list(index.expected()) if members is None else list(members)
    return store.fetch(names, _opener(store, name, index), folder, flow)


def check_tar(store: Store, name: str, members: Collection[str] | None = None, flow: Flow | None = None) -> Outcome:
    """Read `members`, or all, where they are, against their checksums; without `members` the tar's size too."""
    index = read_index(store, name)
    opened = _opener(store, name, index)
    moved, faults = {}, {}
    far = store.backend.stat(name)
    if far is None or far.bytes != index.bytes:
        faults[name] = f"{name!a} in {store.where} is missing or of another size than its index says"
        return Outcome({}, faults)
    flow = flow or Flow()
    for member in index.expected() if members is None else members:
        try:
            source = opened(member)
            flow.take(source.bytes)
            moved[member] = Moved(source.bytes, digest_of(source), was_there=True)
            flow.done(source.bytes)
        except FileFault as fault:
            faults[member] = str(fault)
    return Outcome(moved, faults)


def _opener(store: Store, name: str, index: Index) -> Callable[[str], PiecesSource]:
    def opened(member: str) -> PiecesSource:
        found = index.members.get(key_of(member))
        if found is None:
            raise FileFault(f"{member!a} is not in {name!a} in {store.where}")
        return far_range(store.backend, name, member, found.offset, found.bytes, found.xxh64)

    return opened
