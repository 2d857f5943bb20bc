"""What data sets look like at a destination, which several runs may share: each content is there once.

    data/NAME-DIGEST/...              a data set's files, under the names that they had where they were sent from first
    data/NAME-DIGEST/opsctl-data-set.json  what they are, with their checksums; comes last
    data/runs/NAME-ID.json            which of them a run's options name, and where it had them

DIGEST is of the contents alone: a set that was renamed or moved is the same.
"""

from __future__ import annotations

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import FarFile
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.json_text import Moment, json_line
from trainer.formats.tolerant import decode

FOLDER = "data"
#: No pair is called so: `PREFIX.json` is one of its files.
NOTE = "opsctl-data-set.json"
_RUNS = "runs"


class Part(msgspec.Struct, frozen=True):
    """One file of a set."""

    bytes: int
    xxh64: str
    name: str  # there


class FarSet(msgspec.Struct, frozen=True, kw_only=True):
    """`opsctl-data-set.json`."""

    schema_version: int = 1
    about: str = "A data set of trainings, copied by opsctl; `opsctl restore --data` brings it back."
    name: str
    parts: dict[str, Part]  # by what each is: `.bin`, `.idx`, `.json`; a name in a folder; nothing
    sent_at: Moment | None = None
    by: str = ""

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(part.bytes for part in self.parts.values())


class OfRun(msgspec.Struct, frozen=True, kw_only=True):
    """One set as a run names it."""

    options: tuple[str, ...]
    kind: str
    path: str  # where it was
    folder: str  # below data/
    parts: dict[str, Part]


class FarRunData(msgspec.Struct, frozen=True, kw_only=True):
    """`data/runs/NAME-ID.json`."""

    schema_version: int = 1
    run: str
    run_id: str = ""
    sets: tuple[OfRun, ...]
    at: Moment | None = None
    by: str = ""

    @property
    def files(self) -> dict[str, Part]:
        """Every file by its name below data/, once."""
        return {f"{one.folder}/{part.name}": part for one in self.sets for part in one.parts.values()}

    @property
    def of(self) -> str:
        """What tells these contents from others: for the ledger."""
        return digest_of(json_line(sorted({one.folder for one in self.sets})).encode())


def digest_of_parts(parts: dict[str, tuple[int, str]]) -> str:
    """What tells one set's contents from another's: of (bytes, xxh64) by part."""
    return digest_of(json_line(sorted((part, *found) for part, found in parts.items())).encode())


def name_of_run(run: str, run_id: str) -> str:
    """Where a run's note is."""
    return f"{FOLDER}/{_RUNS}/{run}-{run_id or 'unnumbered'}.json"


def read_set(store: Store, folder: str) -> FarSet | None:
    """What lies in a folder below data/, by its note; None where that says nothing. Raises StoreError."""
    name = f"{FOLDER}/{folder}/{NOTE}"
    return None if store.backend.stat(name) is None else decode(store.read(name), FarSet)


def has_its_sizes(far: FarSet, folder: str, there: dict[str, FarFile]) -> bool:
    """Whether every file of a set is there in its size. there: all below data/."""
    found = {part.name: there.get(f"{folder}/{part.name}") for part in far.parts.values()}
    return all((one := found[part.name]) is not None and one.bytes == part.bytes for part in far.parts.values())


def read_runs(store: Store) -> list[FarRunData]:
    """Of every run whose data sets are there. Raises StoreError."""
    names = [name for name in store.list(f"{FOLDER}/{_RUNS}") if name.endswith(".json")]
    found = (decode(store.read(f"{FOLDER}/{_RUNS}/{name}"), FarRunData) for name in sorted(names))
    return [one for one in found if one is not None]


def read_data_of(store: Store, run: str, run_id: str) -> FarRunData | None:
    """What of one run is there; None where nothing is, or what is there cannot be read. Raises StoreError."""
    name = name_of_run(run, run_id)
    if store.backend.stat(name) is None:
        return None
    return decode(store.read(name), FarRunData)


def choose(store: Store, run: str | None) -> FarRunData:
    """The run's, by its name or id; without one the only one there. Raises OpsctlError, StoreError."""
    found = read_runs(store)
    fitting = [one for one in found if run in (None, one.run, one.run_id)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{one.run} ({one.run_id or 'no id'})" for one in found) or "none"
    which = "no data sets" if not found else f"no data sets of {run}" if not fitting else "several runs' data sets"
    raise OpsctlError(f"{store.where} has {which}; --run says whose, by name or id; there: {names}")
