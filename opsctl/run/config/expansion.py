"""`${VAR}` in a run file's values, and relative paths made absolute from its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.core.output import printable
from opsctl.run.config.schema import RunFile
from trainer.recipe.data_options import SPLITS, is_number, weighted_file_key, weighted_key

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Options whose values are paths (in `data_path`, weights may stand between the paths).
PATH_OPTIONS = frozenset({"data_path", *map(weighted_file_key, SPLITS), "vocab_file", "merge_file", "data_cache_path"})
#: Options whose values have prefixes inside.
WEIGHTED_OPTIONS = frozenset(map(weighted_key, SPLITS))


def expand_text(text: str, variables: Mapping[str, str], where: str) -> str:
    """Return `text` with `${VAR}`s replaced. Raises RunFileError, which begins with `where`, for one not set."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if not VARIABLE_NAME.fullmatch(name):
            raise RunFileError(f"{where}: ${{{printable(name)[:60]}}} is not a variable's name; write ${{NAME}}")
        if name not in variables:
            raise RunFileError(f"{where}: ${{{name}}} is not set; export {name}, or give it a value in [env]")
        return variables[name]

    return _VARIABLE.sub(value_of, text)


def unset_variables(text: str, variables: Mapping[str, str]) -> list[str]:
    """Return the names in `text` that `expand_text` would refuse."""
    return [name for name in _VARIABLE.findall(text) if name not in variables]


def absolute(text: str, folder: Path, environment: Mapping[str, str]) -> Path:
    """Return the path that `text` means in a run file in `folder`; `~/` is the user's home."""
    if text.startswith("~/") and environment.get("HOME"):
        text = environment["HOME"] + text[1:]
    return Path(os.path.abspath(folder / text))  # noqa: PTH100 - links stay as written


def expand_file(file: RunFile, path: Path, variables: Mapping[str, str], environment: Mapping[str, str]) -> RunFile:
    """`file` with variables replaced everywhere they may stand and its paths absolute. Raises RunFileError."""

    def text(table: str, key: str, value: str) -> str:
        return expand_text(value, variables, f"{path}: [{table}] {key}")

    def option(table: str, key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [option(table, key, item) for item in value]
        if not isinstance(value, str):
            return value
        expanded = text(table, key, value)
        if key in PATH_OPTIONS and not is_number(expanded):
            return str(absolute(expanded, path.parent, environment))
        if key == "tokenizer_name_or_path" and expanded.startswith((".", "~/")):
            return str(absolute(expanded, path.parent, environment))  # without a dot it is a hub's name
        if key in WEIGHTED_OPTIONS:
            from trainer.formats.data.data_sources import with_prefixes  # few runs need it

            return with_prefixes(expanded, lambda prefix: str(absolute(prefix, path.parent, environment)))
        return expanded

    def place(table: str, key: str, value: str) -> str:
        return str(absolute(text(table, key, value), path.parent, environment))

    run = msgspec.structs.replace(
        file.run,
        output=place("run", "output", file.run.output),
        environment=None if file.run.environment is None else place("run", "environment", file.run.environment),
    )
    program = file.program
    if program is not None:

        def words(key: str, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if values is None else tuple(text("program", key, value) for value in values)

        pattern = None if program.checkpoints is None else text("program", "checkpoints", program.checkpoints)
        if pattern is not None and pattern.startswith("~/"):  # any other relative one starts in `folder`
            pattern = place("program", "checkpoints", pattern)
        program = msgspec.structs.replace(
            program,
            command=words("command", program.command),
            resume=words("resume", program.resume),
            folder=None if program.folder is None else place("program", "folder", program.folder),
            checkpoints=pattern,
        )
    evaluation = file.evaluation
    if evaluation is not None:
        evaluation = msgspec.structs.replace(
            evaluation,
            python=None if evaluation.python is None else place("evaluation", "python", evaluation.python),
            include=tuple(place("evaluation", "include", one) for one in evaluation.include),
            scratch=None if evaluation.scratch is None else place("evaluation", "scratch", evaluation.scratch),
        )
    return msgspec.structs.replace(
        file,
        run=run,
        program=program,
        evaluation=evaluation,
        trainer={key: option("trainer", key, value) for key, value in file.trainer.items()},
        data={key: option("data", key, value) for key, value in file.data.items()},
        checkpoints={key: option("checkpoints", key, value) for key, value in file.checkpoints.items()},
        env={key: text("env", key, value) for key, value in file.env.items()},
    )
