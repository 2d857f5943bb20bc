"""What is said of files and stores: what a file has to be, what it is far away, what became of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from opsctl.core.errors import OpsctlError

#: How what is written beside a file, until it is whole, begins: what a killed transfer leaves behind is known by it.
PART = ".opsctl-part-"
#: A name under a store or a folder: parts between single slashes, none of which leads out. Anything else may stand in
#: it: spaces, newlines, dashes at its beginning.
_INSIDE = re.compile(r"(?!.*(?:\A|/)\.{0,2}(?:/|\Z))[^\0]+", re.DOTALL)


class StoreError(OpsctlError):
    """Nothing more can be done at this store: it is not there, is full, refuses, or does not answer."""


class FileFault(OpsctlError):
    """One file cannot be sent, fetched or believed. The text names it; the others go on."""


@dataclass(frozen=True)
class Expected:
    """What a file has to be; what is None may be anything, and is what it is when it is opened."""

    bytes: int | None = None
    xxh64: str | None = None  # 16 hexadecimal digits
    grows: bool = False  # somebody may be appending: its first `bytes`, or what there are when it is opened, are meant


ANYTHING = Expected()


@dataclass(frozen=True)
class FarFile:
    """One file of a store, as the store lists it."""

    bytes: int
    changed_at: float  # seconds since 1970, by the store's clock
    mark: str = ""  # changes with every write, as an ETag does; empty where the store has no such thing


@dataclass(frozen=True)
class Moved:
    """One file that is now where it was to be, and was proven there."""

    bytes: int
    xxh64: str
    was_there: bool  # nothing had to be sent


@dataclass(frozen=True)
class Outcome:
    """What became of every file that was to be sent or fetched."""

    moved: Mapping[str, Moved] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)  # name -> one line

    def raise_faults(self) -> None:
        """Raise FileFault with the first, and how many more there are."""
        if self.faults:
            first, *others = self.faults.values()
            raise FileFault(first + (f" (and {len(others)} more)" if others else ""))


@dataclass(frozen=True)
class Access:
    """How a store is reached where its own variables and files (AWS_*, ~/.aws, GOOGLE_*) do not say it all.

    The secrets come from whoever follows references; they are in no text that is made of this.
    """

    endpoint: str | None = None
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    patience_s: float = 300.0  # how long one request is repeated before the store counts as down


def is_name(name: str) -> bool:
    """Whether a name leads to a file below a folder."""
    return _INSIDE.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raise FileFault for a name that leads out of the folder, or is one of a part."""
    if not is_name(name):
        raise FileFault(f"{name!a} is no name of a file below a folder")
    if name.rpartition("/")[2].startswith(PART):
        raise FileFault(f"{name!a} is called like what a killed transfer leaves behind: remove or rename it")
