"""A pair of files that is told apart when a training starts, and opened when it is first read."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from trainer.data.indexed import IndexedTokens
from trainer.data.node_cache import NodeCache
from trainer.formats.data.index_header import idx_path, read_header
from trainer.formats.errors import DataError


def file_identity(prefix: str) -> dict[str, Any]:
    """What tells one version of a `.bin/.idx` pair from another. Raises DataError where one is missing."""
    # A prefix is no file, so nothing but its folder can be a link.
    folder, _, name = prefix.rpartition("/")
    folder = os.path.realpath(folder or ("/" if prefix.startswith("/") else "."))
    return {"prefix": f"{folder.rstrip('/')}/{name}", **_versions(prefix)}


def _versions(prefix: str) -> dict[str, list[int]]:
    found = {}
    for ending in ("bin", "idx"):
        try:
            state = os.stat(f"{prefix}.{ending}")  # noqa: PTH116
        except OSError as error:
            read_header(prefix)  # says by name what is missing
            raise DataError(f"cannot read {prefix}.{ending}: {error.strerror}") from None
        found[ending] = [state.st_size, state.st_mtime_ns]
    return found


class Pair:
    """`PREFIX.bin` and `PREFIX.idx`; their header and sizes are checked when they are opened.

    Thousands are told apart by two looks each; what was found to be whole then, and is as old and as large, is whole.
    """

    def __init__(self, prefix: str, node: NodeCache) -> None:
        self.prefix, self._node = prefix, node

    @cached_property
    def identity(self) -> dict[str, Any]:
        """See `file_identity`. Raises DataError."""
        return file_identity(self.prefix)

    @cached_property
    def told(self) -> str:
        """`identity` as text. Raises DataError."""
        versions = ", ".join(f"{ending} {self.identity[ending]}" for ending in ("bin", "idx"))
        return f"{self.identity['prefix']} ({versions})"

    @cached_property
    def data(self) -> IndexedTokens:
        """The files, mapped. Raises DataError, also where they are no longer those that `identity` told."""
        known = self.identity
        opened = IndexedTokens(self.prefix, self._node.local(idx_path(self.prefix)))
        for ending, version in _versions(self.prefix).items():
            if version != known[ending]:
                raise DataError(
                    f"{self.prefix}.{ending} has changed since the training looked at it, and the order of its samples "
                    "with it; let whoever writes it end, then start again"
                )
        return opened
