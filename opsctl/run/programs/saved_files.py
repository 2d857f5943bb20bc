"""Check files of checkpoints without loading them: nothing in a file is ever executed."""

from __future__ import annotations

import json
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: Longest header of a safetensors file, in bytes, as its library allows.
_LONGEST_HEADER = 100_000_000
#: The last file of torch's distributed checkpoint to be written; it names all others.
DISTRIBUTED = ".metadata"
#: Bytes of a pickle that are read.
_LARGEST_PICKLE = 64 << 20
#: Operations of a pickle that push a string or a whole number.
_VALUE = re.compile(r"UNICODE|STRING|INT|LONG[14]?$")


def torn_zip(path: Path) -> str | None:
    """Return why a file of torch.save cannot be loaded; None for a complete one.

    torch.save writes a zip archive, whose directory is its last part.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return None if archive.namelist() else f"{path.name} is empty"
    except zipfile.BadZipFile:
        return f"{path.name} is cut off"
    except OSError as error:
        return f"{path.name}: {error.strerror}"


def torn_safetensors(path: Path) -> str | None:
    """Return why a safetensors file cannot be loaded; None for a complete one. Its header states its length."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else _LONGEST_HEADER + 1
            header = json.loads(file.read(length)) if length <= min(size, _LONGEST_HEADER) else {}
    except ValueError:
        return f"{path.name} has a damaged header"
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
    if not ends or 8 + length + max(ends) != size:
        return f"{path.name} is cut off"
    return None


def torn_shards(folder: Path, index: str) -> str | None:
    """Return which file of a sharded model is missing or torn; None if all are complete."""
    try:
        names = set(json.loads((folder / index).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{index} is damaged"
    except OSError as error:
        return f"{index}: {error.strerror}"
    for name in sorted(names):
        if problem := torn_safetensors(folder / Path(name).name):
            return problem
    return None


def distributed_problem(folder: Path) -> str | None:
    """Return why torch's distributed checkpoint cannot be loaded; None for a complete one."""
    try:
        metadata = (folder / DISTRIBUTED).read_bytes()
    except FileNotFoundError:
        return f"its save was interrupted (no {DISTRIBUTED})"
    except OSError as error:
        return f"{DISTRIBUTED}: {error.strerror}"
    ends = _ends_of_files(metadata)
    for name, end in sorted(ends.items()):
        try:
            size = (folder / Path(name).name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size < end:
            return f"{name} is cut off"
    # A whole pickle ends in the operation STOP.
    return None if ends and metadata.endswith(b".") else f"{DISTRIBUTED} is damaged"


def _ends_of_files(metadata: bytes) -> dict[str, int]:
    """Return name -> bytes that a file has at least, of all files that a distributed checkpoint's metadata names.

    It stores the values as relative_path, offset and length of each part.
    """
    ends: dict[str, int] = {}
    name, offset, values = "", 0, iter(pickled_strings(metadata))
    for value in values:
        if value == "relative_path":
            name = str(next(values, ""))
            ends.setdefault(name, 0)
        elif value == "offset" and isinstance(number := next(values, None), int):
            offset = number
        elif value == "length" and name and isinstance(number := next(values, None), int):
            ends[name] = max(ends[name], offset + number)
    return {name: end for name, end in ends.items() if name.endswith(".distcp")}


def pickled_strings(data: bytes) -> Iterator[object]:
    """Yield the strings and whole numbers of a pickle in order, without unpickling it, also repeated ones."""
    known: dict[object, object] = {}  # what later operations refer to by its number
    newest: object = None
    try:
        for code, argument, _ in pickletools.genops(data[:_LARGEST_PICKLE]):
            if code.name == "MEMOIZE" or "PUT" in code.name:
                known[len(known) if code.name == "MEMOIZE" else argument] = newest
                continue
            is_known = code.name in ("GET", "BINGET", "LONG_BINGET")
            newest = known.get(argument) if is_known else argument if _VALUE.search(code.name) else None
            if newest is not None:
                yield newest
    except (ValueError, UnicodeDecodeError):
        return


def number_after(data: bytes, name: str) -> int | None:
    """Return the whole number that follows the string `name` in a pickle, None if there is none."""
    values = list(pickled_strings(data))
    for at, value in enumerate(values[:-1]):
        if value == name and isinstance(after := values[at + 1], int):
            return after
    return None


def pickle_in_zip(path: Path) -> bytes:
    """Return the pickle in a file of torch.save; empty for a file without one."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((one for one in archive.namelist() if one.endswith("/data.pkl")), None)
            return archive.read(name) if name else b""
    except (zipfile.BadZipFile, OSError):
        return b""
