"""The record of what `--json` prints, `json_fields.txt`: one line for each key, with its type.

`python -m release.json_fields` writes the record again, unless that breaks it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from docs.reference import fields_of, name_of, type_words
from opsctl.cli.json_schema import Printed, all_printed, shapes
from trainer.formats.json_text import SCHEMA_VERSION

RECORD = Path(__file__).parent / "json_fields.txt"
_LINK = re.compile(r"\[(.*?)\]\(.*?\)")
_WORDS = re.compile(r"`([^`]+)`(?:, )?")


def lines_of(printed: Sequence[Printed]) -> list[str]:
    """Return the lines of the record: the schema version, the keys of commands, the keys of shapes."""
    lines = {f"{one.command}: {one.key}: {type_words(one.shape)}" for one in printed}
    for struct in shapes(one.shape for one in printed):
        lines |= {f"{name_of(struct)}.{field.encode_name}: {words}" for field, words in fields_of(struct)}
    return [f"schema_version: {SCHEMA_VERSION}", *sorted(_LINK.sub(r"\1", line) for line in lines)]


def broken(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return the lines of `before` that `now` breaks. Another schema version breaks nothing.

    Keys, commands and words of an enumeration may be added. A key that may be missing may become required.
    """
    if before[0] != now[0]:
        return []
    words = {_WORDS.sub("", line): set(_WORDS.findall(line)) for line in now}

    def is_kept(line: str) -> bool:
        bare = _WORDS.sub("", line)
        return bare in words and words[bare].issuperset(_WORDS.findall(line))

    return [line for line in before if not (is_kept(line) or is_kept(line.replace("; may be missing", "")))]


def main() -> int:
    """Write the record. Return the exit code."""
    before = RECORD.read_text().splitlines() if RECORD.exists() else []
    now = lines_of(all_printed())
    if before and (lost := broken(before, now)):
        sys.stderr.write("\n".join(["gone or changed:", *lost, "keep them, or raise SCHEMA_VERSION", ""]))
        return 1
    RECORD.write_text("\n".join(now) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
