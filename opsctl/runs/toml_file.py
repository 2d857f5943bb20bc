"""Reading a TOML file that a person writes: a run file, a profile, a table of rules; and a value written into one."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from opsctl.errors import RunFileError
from opsctl.output import printable

#: More than any such file has.
LARGEST_BYTES = 4 << 20


def read_toml(path: Path, what: str = "run file") -> dict[str, Any]:
    """The tables of the file. Raises RunFileError with line and column. what: it should be."""
    return parse_toml(path, toml_bytes(path, what))


def toml_bytes(path: Path, what: str = "run file") -> bytes:
    """All of the file. Raises RunFileError where it cannot be read, or is larger than such a file can be."""
    try:
        # What takes a file's place while runs are looked at keeps nobody waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RunFileError(f"{path}: is no plain file, and no {what}")
            raw = file.read(LARGEST_BYTES + 1)
    except IsADirectoryError:
        raise RunFileError(f"{path}: is a folder, not a {what}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunFileError(f"{path}: cannot read the {what}: {reason}") from None
    if len(raw) > LARGEST_BYTES:
        raise RunFileError(f"{path}: larger than any {what} ({LARGEST_BYTES} bytes)")
    return raw


def parse_toml(path: Path, raw: bytes) -> dict[str, Any]:
    """The tables of a TOML file. Raises RunFileError with line and column."""
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RunFileError(f"{path}: line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error))}") from None


def toml_value(value: Any) -> str:
    """A text, number, true or false, or a list of such, as a run file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(one) for one in value) + "]"
    # JSON's texts and numbers are TOML's too, but for one character, and but for halves of pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
