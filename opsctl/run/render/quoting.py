"""Quoting for the two readers of a batch script: bash, and sbatch with its `#SBATCH` lines. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from opsctl.core.errors import RunFileError

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,=%@[]|&*()!~^{}")


def shell_word(value: Any) -> str:
    """`value` as one word of bash, whatever is in it. Raises RunFileError for control characters."""
    return shlex.quote(one_line(str(value)))


def directive_word(value: Any) -> str:
    """`value` as sbatch reads it from a `#SBATCH` line: blanks separate, `#` begins a comment, quotes group.

    Inside quotes only a backslash and that quote are special; text with both kinds of quotes is made of pieces.
    """
    text = one_line(str(value)).replace("\\", "\\\\")
    if text and all(character in _PLAIN for character in text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return "".join(f'"{piece}"' if piece.startswith("'") else f"'{piece}'" for piece in _pieces(text))


def filename_pattern(path: Any) -> str:
    """A path for `--output`, in which Slurm replaces `%` patterns: every `%` of ours is doubled.

    Raises RunFileError for a backslash, which switches those patterns off.
    """
    text = one_line(str(path))
    if "\\" in text:
        raise RunFileError(
            f"{text!r}: Slurm cannot write its output below a folder with a backslash in its name; rename it"
        )
    return text.replace("%", "%%")


def one_line(text: str) -> str:
    """`text` itself. Raises RunFileError when it has control characters."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise RunFileError(
            f"{text!r} cannot go into a job script: line breaks and control characters are not allowed; rename it"
        )
    return text


def _pieces(text: str) -> list[str]:
    """`text` cut into runs of single quotes and runs of anything else."""
    pieces: list[str] = []
    for character in text:
        if pieces and (character == "'") == pieces[-1].startswith("'"):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces
