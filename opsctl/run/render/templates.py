"""The Jinja environment of the scripts: undefined names fail, and every value goes through a quoting filter."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.core.shipped import templates_folder
from opsctl.run.config.locate import CRON_FOLDER_VARIABLE
from opsctl.slurm.cluster import Cluster

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,=%@[]|&*()!~^{}")


def shell_word(value: Any) -> str:
    """Quote `value` as one word of bash. Raises RunFileError for control characters."""
    return shlex.quote(one_line(str(value)))


def directive_word(value: Any) -> str:
    """Return `value` as one word of a `#SBATCH` line; text with both kinds of quotes is joined from pieces."""
    text = one_line(str(value)).replace("\\", "\\\\")
    if text and all(character in _PLAIN for character in text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return "".join(f'"{piece}"' if piece.startswith("'") else f"'{piece}'" for piece in _pieces(text))


def filename_pattern(path: Any) -> str:
    """Return a path for `--output`, with every `%` doubled. Raises RunFileError for a backslash."""
    text = one_line(str(path))
    if "\\" in text:
        raise RunFileError(
            f"{text!r}: Slurm cannot write its output below a folder with a backslash in its name; rename it"
        )
    return text.replace("%", "%%")


def one_line(text: str) -> str:
    """Return `text` unchanged. Raises RunFileError if it has control characters."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise RunFileError(
            f"{text!r} cannot go into a job script: line breaks and control characters are not allowed; rename it"
        )
    return text


def _pieces(text: str) -> list[str]:
    """Split `text` into runs of single quotes and runs of other characters."""
    pieces: list[str] = []
    for character in text:
        if pieces and (character == "'") == pieces[-1].startswith("'"):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def render_template(name: str, **values: Any) -> str:
    """Render `templates/NAME` with `values`. Raises an error for a name without a value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates_folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = shell_word
    environment.filters["directive"] = directive_word
    return environment.get_template(name).render(**values)


#: Variables of the folders with an account's profile and state, and their defaults in a home folder.
_OWN_FOLDERS = {"XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".local/state"}


def exports_of(environment: Mapping[str, str], home: str, *more: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that a job gets, including those named in `more`, if they are set and printable.

    home: the folder in which the account's jobs begin. If HOME differs here, its profile and state are named.
    """
    here = environment.get("HOME")
    own = {name: f"{here}/{folder}" for name, folder in _OWN_FOLDERS.items()} if here and here != home else {}
    names = sorted((CRON_FOLDER_VARIABLE, *_OWN_FOLDERS, *more))
    found = {name: environment.get(name) or own.get(name, "") for name in names}
    return tuple((name, value) for name, value in found.items() if value and value.isprintable())


def cluster_lines(cluster: Cluster) -> list[str]:
    """Return lines of bash that give access to `cluster`: folders in front of the job's own."""
    lines = []
    if cluster.slurm_conf:
        # If nodes have their configuration elsewhere, that one takes precedence.
        lines.append(f"if [ -r {shell_word(cluster.slurm_conf)} ]; then")
        lines.append(f"    export SLURM_CONF={shell_word(cluster.slurm_conf)}")
        lines.append("fi")
    if cluster.bin_folders:
        lines.append("export PATH=" + shell_word(os.pathsep.join(cluster.bin_folders)) + ':"$PATH"')
    if cluster.library_folders:
        folders = shell_word(os.pathsep.join(cluster.library_folders))
        lines.append(f'export LD_LIBRARY_PATH={folders}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    return lines
