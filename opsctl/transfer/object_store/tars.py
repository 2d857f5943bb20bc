"""One tar instead of many files, for places with few inodes: written while it is sent, read member by member.

`NAME.index.json`, which is put there last, has each member's place in the tar and its checksum, so that a member is
fetched or checked without the others. A tar without an index was never finished.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.sources import Source, bytes_source, file_source, new_digest
from opsctl.transfer.object_store.store import Store, held_folder
from opsctl.transfer.object_store.types import Expected, FileFault, Moved, check_name, key_of, name_of

INDEX = ".index.json"
_END = bytes(2 * tarfile.BLOCKSIZE)


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

    def member(self, name: str) -> Member:
        """Return where `name` is. Raises FileFault if it is not in the tar."""
        if (found := self.members.get(key_of(name))) is None:
            raise FileFault(f"{name!a} is not in the tar")
        return found

    def expected(self) -> dict[str, Expected]:
        """Return every member's name, with what it has to be."""
        return {name_of(key): Expected(one.bytes, one.xxh64) for key, one in self.members.items()}


def put_tar(
    store: Store, folder: Path | int, files: Mapping[str, Expected], name: str, flow: Flow | None = None
) -> Moved:
    """Send `files` of `folder`, in their order, as the tar `name` of the store, which has it whole or not at all.

    What is there with the same contents is not sent again. Raises FileFault for the first file that cannot be sent or
    is not what it was when the tar was begun, StoreError.
    """
    flow = flow or Flow()
    with held_folder(folder) as held:
        sources = [file_source(held, one, expected) for one, expected in files.items()]
        members: dict[str, Member] = {}
        heads = [_head(source) for source in sources]
        size = sum(
            len(head) + source.bytes + len(_padding(source)) for head, source in zip(heads, sources, strict=True)
        )

        def chunks() -> Iterator[memoryview]:
            at = 0
            for head, source in zip(heads, sources, strict=True):
                digest = new_digest()
                yield memoryview(head)
                yield from source.checked(digest)
                yield memoryview(_padding(source))
                members[key_of(source.name)] = Member(at + len(head), source.bytes, digest.hexdigest())
                at += len(head) + source.bytes + len(_padding(source))
            yield memoryview(_END)

        moved = store.put_source(Source(name, size + len(_END), None, chunks), name, flow)
        text = msgspec.json.encode(Index(moved.bytes, moved.xxh64, members))
        store.put_source(bytes_source(name + INDEX, text), name + INDEX, flow)
        return moved


def _head(source: Source) -> bytes:
    info = tarfile.TarInfo(source.name)
    info.size, info.mtime, info.mode = source.bytes, (source.changed_ns or 0) // 10**9, 0o664
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(source: Source) -> bytes:
    return bytes(-source.bytes % tarfile.BLOCKSIZE)


def read_index(store: Store, name: str) -> Index:
    """Return what is in the tar `name`. Raises FileFault where it has no index, or a damaged one; StoreError."""
    try:
        index = msgspec.json.decode(store.read(name + INDEX), type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise FileFault(f"{name + INDEX!a} in {store.where} cannot be read") from None
    for member in index.expected():
        check_name(member)
    return index
