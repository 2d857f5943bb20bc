"""One tar instead of many files, for places with few inodes: written while it is sent, read member by member.

`NAME.index.json`, which is put there last, has each member's place in the tar and its checksum, so that a member is
fetched or checked without the others. A tar without an index was never finished.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.sources import Source, bytes_source, digest_of, file_source, new_digest
from opsctl.transfer.object_store.store import Store, held_folder
from opsctl.transfer.object_store.types import Expected, FileFault, Moved, Outcome, check_name, key_of, name_of

INDEX = ".index.json"
_BLOCK_BYTES = tarfile.BLOCKSIZE


class Member(msgspec.Struct, frozen=True):
    """One file in a tar."""

    offset: int  # of its contents' first byte
    bytes: int
    xxh64: str


class Index(msgspec.Struct, frozen=True):
    """The contents of a tar."""

    bytes: int
    xxh64: str
    members: dict[str, Member]  # by name, escaped as in `keys`

    def expected(self) -> dict[str, Expected]:
        """Return every member's name, with what it has to be."""
        return {name_of(key): Expected(one.bytes, one.xxh64) for key, one in self.members.items()}


class _Tar:
    """The bytes of a tar of files below an open folder. Raises FileFault."""

    def __init__(self, folder: int, files: Mapping[str, Expected]) -> None:
        self.sources: dict[str, tuple[bytes, Source]] = {}
        self.members: dict[str, Member] = {}
        at = 0
        for name, expected in files.items():
            source = file_source(folder, name, expected)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = source.bytes, (source.changed_ns or 0) // 10**9, 0o664
            head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            self.sources[name] = head, source
            self.members[name] = Member(at + len(head), source.bytes, "")
            at += len(head) + source.bytes + _padding(source.bytes)
        self.bytes = at + 2 * _BLOCK_BYTES

    def chunks(self) -> Iterator[memoryview]:
        """Yield all of it. Raises FileFault for a member that is not what it was when the tar was begun."""
        for name, (head, source) in self.sources.items():
            digest = new_digest()
            yield memoryview(head)
            yield from source.checked(digest)
            self.members[name] = Member(self.members[name].offset, source.bytes, digest.hexdigest())
            yield memoryview(bytes(_padding(source.bytes)))
        yield memoryview(bytes(2 * _BLOCK_BYTES))


def _padding(size: int) -> int:
    return -size % _BLOCK_BYTES


def put_tar(
    store: Store, folder: Path | int, files: Mapping[str, Expected], name: str, flow: Flow | None = None
) -> Outcome:
    """Send `files` of `folder`, in their order, as the tar `name` of the store, which has it whole or not at all.

    What is there with the same contents is not sent again. Of several faults the first is reported. Raises StoreError.
    """
    flow = flow or Flow()
    try:
        with held_folder(folder) as held:
            tar = _Tar(held, files)
            moved = store.put_source(Source(name, tar.bytes, None, tar.chunks), name, flow)
            members = {key_of(one): member for one, member in tar.members.items()}
            text = msgspec.json.encode(Index(moved.bytes, moved.xxh64, members))
            store.put_source(bytes_source(name + INDEX, text), name + INDEX, flow)
    except FileFault as fault:
        return Outcome({}, {name: str(fault)})
    return Outcome({one: Moved(member.bytes, member.xxh64, moved.was_there) for one, member in tar.members.items()})


def read_index(store: Store, name: str) -> Index:
    """Return what is in the tar `name`. Raises FileFault where it has no index, or a damaged one; StoreError."""
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
    opened = _opener(store, name, index, flow or Flow())
    moved, faults = {}, {}
    far = store.backend.stat(name)
    if far is None or far.bytes != index.bytes:
        faults[name] = f"{name!a} in {store.where} is missing or of another size than its index says"
        return Outcome({}, faults)
    for member in index.expected() if members is None else members:
        try:
            source = opened(member)
            moved[member] = Moved(source.bytes, digest_of(source), was_there=True)
        except FileFault as fault:
            faults[member] = str(fault)
    return Outcome(moved, faults)


def _opener(store: Store, name: str, index: Index, flow: Flow | None = None) -> Callable[[str], Source]:
    def opened(member: str) -> Source:
        found = index.members.get(key_of(member))
        if found is None:
            raise FileFault(f"{member!a} is not in {name!a} in {store.where}")
        return store.part(name, member, found.offset, found.bytes, found.xxh64, flow)

    return opened
