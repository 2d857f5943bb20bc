"""Reading a TOML file that a person writes: a run file, a profile, a table of rules; and a value written into one."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.core.output import printable, shortened

#: More than any such file has.
LARGEST_BYTES = 4 << 20
_AT_LINE = re.compile(r"at line (\d+)")
#: Of a line that is not shown: a person may have put a secret there.
_SECRET = re.compile(r"\btoken\b|secret|passw|_key\b|credential|://", re.IGNORECASE)
_LONGEST_LINE = 100
#: Words of `tomllib` for a key that it has read already.
_TWICE = "Cannot overwrite a value"


def read_toml(path: Path, what: str = "run file") -> dict[str, Any]:
    """Return the tables of the file. Raises RunFileError with line and column. what: the expected kind of file."""
    return parse_toml(path, toml_bytes(path, what))


def toml_bytes(path: Path, what: str = "run file") -> bytes:
    """All of the file. Raises RunFileError where it cannot be read, or is larger than such a file can be."""
    try:
        # A FIFO in a file's place must not block the reader.
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
    """Return the tables of a TOML file. Raises RunFileError with line and column."""
    try:
        return tomllib.loads(text := raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RunFileError(f"{path}: line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error) + _line_words(str(error), text))}") from None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error))}") from None


def _line_words(error: str, text: str) -> str:
    """Return the line at which the parser stopped, with advice; empty without one. A possible secret is not shown."""
    found, lines = _AT_LINE.search(error), text.splitlines()
    number = int(found[1]) if found else 0
    if not 0 < number <= len(lines):
        return ""
    line = lines[number - 1].strip()
    table = next((one.strip() for one in reversed(lines[:number]) if one.lstrip().startswith("[")), "")
    if table.startswith("[alerts") or _SECRET.search(line):
        return ": a text goes in quotes, with both of them on its line"
    advice = (
        "remove one of the two" if error.startswith(_TWICE) else "write a text in quotes, true or false in lower case"
    )
    return f": {shortened(line, _LONGEST_LINE)}; {advice}"


def toml_value(value: Any) -> str:
    """Return a text, number, boolean, or list of these as written in a run file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(one) for one in value) + "]"
    # JSON's texts and numbers are TOML's too, but for one character, and but for halves of pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
