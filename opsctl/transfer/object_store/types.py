"""Values and errors of stores, and names of files as keys of objects."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from opsctl.core.errors import OpsctlError

#: The beginning of a file's name until it is whole: what a killed transfer leaves behind is known by it.
PART = ".opsctl-part-"
#: A name under a store or a folder: parts between single slashes, none of which leads out. Spaces, newlines and
#: dashes at its beginning are allowed.
_INSIDE = re.compile(r"(?!.*(?:\A|/)\.{0,2}(?:/|\Z))[^\0]+", re.DOTALL)
_UNFIT = re.compile(r"%(?=[0-9A-Fa-f]{2})|[\x00-\x1f\x7f\udc80-\udcff]")
_ESCAPED = re.compile(rb"%(25|[01][0-9A-F]|7F|[89A-F][0-9A-F])")


class StoreError(OpsctlError):
    """The store is not there, is full, refuses, or does not answer: no other file would fare better."""


class FileFault(OpsctlError):
    """One file cannot be sent, fetched or proven. The text names it; the other files are not affected."""


@dataclass(frozen=True)
class Expected:
    """The size and checksum that a file must have; None is any."""

    bytes: int | None = None
    xxh64: str | None = None  # 16 hexadecimal digits
    grows: bool = False  # another process may append: its first `bytes`, or what there is when it is opened, counts


ANYTHING = Expected()


@dataclass(frozen=True)
class FarFile:
    """One file of a store, as the store lists it."""

    bytes: int
    mark: str = ""  # changes with every write, as an ETag does; empty where the store has no such value


@dataclass(frozen=True)
class Moved:
    """One file that is at its destination, and was proven there."""

    bytes: int
    xxh64: str
    was_there: bool  # nothing had to be sent


@dataclass(frozen=True)
class Outcome:
    """The result for every file that was to be sent, fetched or checked."""

    moved: Mapping[str, Moved] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)  # name -> one line

    def raise_faults(self) -> None:
        """Raise FileFault with the first fault and the number of others."""
        if self.faults:
            first, *others = self.faults.values()
            raise FileFault(first + (f" (and {len(others)} more)" if others else ""))


@dataclass(frozen=True)
class Access:
    """The access to a store beyond its own variables and files (AWS_*, ~/.aws, GOOGLE_*), and its time-outs."""

    endpoint: str | None = None
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    patience_s: float = 300.0  # of one call with all its repetitions, before the store counts as down


def check_name(name: str) -> None:
    """Raise FileFault for a name that leads out of the folder, or is one of a part."""
    if _INSIDE.fullmatch(name) is None:
        raise FileFault(f"{name!a} is no name of a file below a folder")
    if is_part(name):
        raise FileFault(f"{name!a} is called like what a killed transfer leaves behind: remove or rename it")


def is_part(name: str) -> bool:
    """Return whether a file is what a transfer has not finished."""
    return name.rpartition("/")[2].startswith(PART)


def key_of(name: str) -> str:
    """Return the key of an object for a file's name, as Python has names of files.

    Keys are UTF-8 and may hold no control characters everywhere: such a byte is written as %XX, and a % that two
    hexadecimal digits follow as %25.
    """
    return _UNFIT.sub(lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), name)


def name_of(key: str) -> str:
    """Return the name for a key of `key_of`."""
    return os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), key.encode()))
