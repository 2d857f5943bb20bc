"""Where the sources of what is compiled are, and which files make what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_INCLUDED = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def csrc_folder() -> Path:
    """`csrc`: beside the packages in a checkout, inside opsctl's in an installed wheel."""
    packages = Path(__file__).resolve().parents[3]
    inside = packages / "opsctl" / "_shipped" / "csrc"
    return inside if inside.is_dir() else packages / "csrc"


def kernel_sources(csrc: Path) -> tuple[Path, ...]:
    """The `.cu` files, each of which becomes one cubin per architecture."""
    return tuple(sorted((csrc / "cuda").glob("*.cu")))


def library_sources(csrc: Path, folder: str) -> tuple[Path, ...]:
    """The `.cpp` files of `csrc/folder`, which become one library."""
    return tuple(sorted((csrc / folder).glob("*.cpp")))


def with_included(sources: Sequence[Path]) -> tuple[Path, ...]:
    """`sources` and every file of ours that they include by `"name"`, however deep, always in the same order.

    A name that is no file is left to the compiler. Raises OSError.
    """
    found: dict[Path, None] = {}
    todo = [source.resolve() for source in sources]
    while todo:
        source = todo.pop()
        if source in found:
            continue
        found[source] = None
        for name in _INCLUDED.findall(source.read_bytes()):
            included = (source.parent / name.decode(errors="replace")).resolve()
            if included.is_file():
                todo.append(included)
    return tuple(sorted(found))
