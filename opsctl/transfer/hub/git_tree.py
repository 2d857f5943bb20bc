"""Commits as git has them, here: their files, which of these lie beside git, and what a change of one is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from opsctl.transfer.hub.file_snapshot import Moment
from opsctl.transfer.hub.git_program import Git, quoted
from opsctl.transfer.hub.remote import NOT_TOLD, Far

ATTRIBUTES = ".gitattributes"
#: A file that nobody has written to for so long is sent from where it is; others are copied first.
_RESTED_S = 60.0
_COPIED_BYTES = 4 << 20


class Entry(NamedTuple):
    """A file in a tree."""

    oid: str
    size: int  # NOT_TOLD: its content was not fetched


NOTHING = Entry("", NOT_TOLD)


def tree_of(git: Git, commit: str) -> dict[str, Entry]:
    """Every file of a commit by path."""
    found: dict[str, str] = {}
    for line in git.run("ls-tree", "-r", "-z", commit).split(b"\0"):
        if line:
            words, _, path = line.partition(b"\t")
            found[os.fsdecode(path)] = words.split()[2].decode()
    sizes = _sizes(git, set(found.values()))
    return {path: Entry(oid, sizes.get(oid, NOT_TOLD)) for path, oid in found.items()}


def _sizes(git: Git, oids: Iterable[str]) -> dict[str, int]:
    """Of those contents that are here: asked by the names of all that is, so that none is fetched for it."""
    here = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objectsize)").decode().splitlines()
    sizes = {oid: int(size) for oid, size in (line.split() for line in here)}
    return {oid: sizes[oid] for oid in oids if oid in sizes}


def pointers_among(git: Git, oids: Iterable[str]) -> dict[str, tuple[str, int]]:
    """(sha256, size) of those small contents that are git-lfs's pointers."""
    found = {}
    for oid in oids:
        lines = git.run("cat-file", "blob", oid).splitlines()
        if lines[:1] == [b"version https://git-lfs.github.com/spec/v1"]:
            said = dict(line.partition(b" ")[::2] for line in lines)
            with contextlib.suppress(KeyError, ValueError):
                found[oid] = (said[b"oid"].removeprefix(b"sha256:").decode(), int(said[b"size"]))
    return found


def far_of(entry: Entry, pointer: tuple[str, int] | None) -> Far:
    """A tree's file as a remote tells of it; `pointer` is what it points to beside git."""
    return Far(entry.size, None, entry.oid) if pointer is None else Far(pointer[1], pointer[0], entry.oid)


def looked_after(git: Git, commit: str, paths: Iterable[str]) -> list[str]:
    """Those paths that `.gitattributes` gives to git-lfs."""
    git.run("read-tree", commit)
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    if not names:
        return []
    fields = git.run("check-attr", "--cached", "--stdin", "-z", "filter", stdin=names).split(b"\0")
    return [os.fsdecode(path) for path, value in zip(fields[::3], fields[2::3], strict=False) if value == b"lfs"]


def attributes_of(git: Git, commit: str, tree: Mapping[str, Entry]) -> str:
    """The text of a commit's `.gitattributes`, its last line ended; empty without one."""
    if ATTRIBUTES not in tree:
        return ""
    text = git.run("cat-file", "blob", f"{commit}:{ATTRIBUTES}").decode(errors="surrogateescape")
    return text if text.endswith("\n") or not text else f"{text}\n"


def oid_of(moment: Moment, pointer: bytes | None) -> str:
    """Git's name of what stands in the tree for it."""
    if pointer is None:
        return moment.git_oid
    return hashlib.sha1(b"blob %d\0" % len(pointer) + pointer, usedforsecurity=False).hexdigest()


def content_of(moment: Moment) -> bytes:
    """All of it, for what goes inside a commit."""
    moment.seek(0)
    return moment.read()


def change_of(path: str, content: bytes) -> bytes:
    """What `git fast-import` reads to have this content under this name."""
    return f"M 100644 inline {quoted(path)}\ndata {len(content)}\n".encode() + content + b"\n"


def place_content(store: Path, moment: Moment) -> Path:
    """Where git-lfs looks for this content: a copy, or a link to the open file where that is all of it and rests."""
    name = moment.sha256
    path = store / name[:2] / name[2:4] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    found = os.fstat(moment.fileno())
    if found.st_size == moment.size and time.time() - found.st_mtime > _RESTED_S:
        path.symlink_to(f"/proc/{os.getpid()}/fd/{moment.fileno()}")
        return path
    moment.seek(0)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as copy:
        while data := moment.read(_COPIED_BYTES):
            copy.write(data)
    Path(copy.name).rename(path)
    return path
