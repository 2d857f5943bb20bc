"""The run file's tables, keys and types, checked one by one: whatever is wrong gets one line with the nearest name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.core.output import printable
from opsctl.run.config import schema
from opsctl.run.config.schema import RunFile, RunTable
from trainer.recipe.lengths import EVALUATE_ONLY
from trainer.recipe.option_table import OPTIONS, REFUSED
from trainer.recipe.options import BY_KEY, check_mapping

OPTION_TABLES = ("trainer", "data", "checkpoints")
_NAMES = {table: tuple(option.key for option in OPTIONS if option.table == table) for table in OPTION_TABLES}
_REASONS = {name.removeprefix("--").replace("-", "_"): reason for name, reason in REFUSED.items()}
#: Whole numbers up to here are exact as floats too, in whatever they are multiplied with.
_LARGEST = 2**53
#: A batch size ramp-up of more stages is a slip, and walking it would take minutes.
MOST_RAMP_STAGES = 10_000
_FLAG = re.compile(r"--([A-Za-z][A-Za-z0-9-]*)")
#: Table -> its struct, of run files and profiles.
STRUCTS: dict[str, type[msgspec.Struct]] = {
    name.removesuffix("Table").lower(): struct for name, struct in vars(schema).items() if name.endswith("Table")
}
#: What a profile may have; [cron], [jobs], [cluster], [nodes] and [triage] are nowhere else.
PROFILE_TABLES = ("slurm", "gpu", "carbon", "watch", "alerts", "hub", "cron", "jobs", "cluster", "nodes", "triage")
TABLES = tuple(field.name for field in msgspec.structs.fields(RunFile))
_ALLOWED = {
    "str": 'text in quotes, like "..."',
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": 'a list of texts, like ["...", "..."]',
    "tuple[int": "a list of whole numbers",
}


def option_names(table: str) -> tuple[str, ...]:
    """Return the keys that `[table]` may have."""
    return _NAMES[table]


def why_refused(key: str) -> str | None:
    """Why an option that Megatron has cannot stand in a run file; None for any other key."""
    if key in _REASONS:
        return _REASONS[key]
    if key in EVALUATE_ONLY:
        return "a run always trains: use it with python -m trainer.pretrain_gpt in a separate job"
    if key in BY_KEY and BY_KEY[key].table == "opsctl":
        return "opsctl sets it: remove it"
    return None


def option_problem(key: str, value: Any) -> str | None:
    """Return what is allowed for the known option `key`, if it cannot be `value`; else None."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int) and abs(one) > _LARGEST:
            return f"must be at most {_LARGEST}"
        if isinstance(one, str) and not one.isprintable():
            return "must be text on one line"
    if BY_KEY[key].type is str and BY_KEY[key].nargs is not None:
        # Among several texts a weight may be a number: but there must be a text, and a lone value is one.
        texts = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        if not texts:
            return "must be a string, or a list of strings with their weights"
    start = f"{key} = {value!r}: "
    for error in check_mapping({key: value}, None):
        if error.startswith(start):
            return error.removeprefix(start)
    return None


def combination_problems(options: Mapping[str, Any], world_size: int | None, consumed_samples: int = 0) -> list[str]:
    """Return what is wrong with all options together on `world_size` ranks, in a run file's words."""
    return [_in_run_file_words(error) for error in check_mapping(options, world_size, consumed_samples)]


def _in_run_file_words(error: str) -> str:
    """Return `error` with `[trainer] num_layers` for `--num-layers`."""
    tables = [BY_KEY[key].table for name in _FLAG.findall(error) if (key := name.replace("-", "_")) in BY_KEY]
    text = _FLAG.sub(lambda match: match[1].replace("-", "_"), error)
    return f"[{tables[0]}] {text}" if tables and tables[0] in OPTION_TABLES else text


def check_tables(path: Path, written: Mapping[str, Any], profile: bool = False) -> None:
    """Raise RunFileError for the first unknown table or key, wrong type or missing key; a profile requires none."""
    known = PROFILE_TABLES if profile else TABLES
    for name, table in written.items():
        if name not in known:
            raise RunFileError(f"{path}: {_unknown_table(name, table, known)}")
        if not isinstance(table, dict):
            raise RunFileError(f"{path}: {name} = {shown(table)}: {name} is a table: write [{name}] on a separate line")
    for name, struct in STRUCTS.items():
        if name in written:
            _check_struct(path, name, struct, written[name])
    for name in OPTION_TABLES:
        for key, value in written.get(name, {}).items():
            problem = _option_problem(name, key, value)
            if problem:
                raise RunFileError(f"{path}: {problem}")
    for key, value in written.get("env", {}).items():
        if not isinstance(value, str):
            text = shown(value)
            raise RunFileError(f"{path}: [env] {shown_key(key)} = {text}: expected text in quotes")
    if not profile:
        _check_required(path, written)


def shown(value: Any) -> str:
    """Return a value as a run file would show it, short enough for one line."""
    if isinstance(value, (str, bool, int, float, list)) or value is None:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = "a value"
    else:
        text = "a table" if isinstance(value, dict) else str(value)
    text = printable(text)
    return text if len(text) <= 80 else text[:77] + "..."


def unknown_key(table: str, key: str, known: tuple[str, ...]) -> str:
    """Return the message for a key that `[table]` does not have: its right table, or the nearest name."""
    from trainer.recipe.nearest_name import nearest_name

    name, spelled = shown_key(key), key.replace("-", "_")
    others = [other for other in (*STRUCTS, *OPTION_TABLES) if other != table]
    if spelled in known:
        return f"[{table}] {name} is not known: run files write _ for -: {spelled}"
    for other in others:
        if spelled in keys_of(other):
            return f"[{table}] {name} is not known here: {spelled} goes into [{other}]"
    if near := nearest_name(spelled, known):
        return f"[{table}] {name} is not known; did you mean {near}?"
    for other in others:
        if near := nearest_name(spelled, keys_of(other)):
            return f"[{table}] {name} is not known; did you mean {near} in [{other}]?"
    return f"[{table}] {name} is not known; the nearest name is {nearest_name(spelled, known, 0.0) or ''}"


def keys_of(table: str) -> tuple[str, ...]:
    """Every key that `[table]` may have; for [env], none is special."""
    if table in STRUCTS:
        return tuple(field.name for field in msgspec.structs.fields(STRUCTS[table]))
    return option_names(table) if table in OPTION_TABLES else ()


def shown_key(key: str) -> str:
    """Return a key as it may be written, cut to one line."""
    return key if key.replace("-", "").replace("_", "").isalnum() and len(key) <= 60 else shown(key)


def _unknown_table(name: str, table: Any, known: tuple[str, ...]) -> str:
    label = f"[{shown_key(name)}]" if isinstance(table, dict) else shown_key(name)
    if name in PROFILE_TABLES and isinstance(table, dict):
        return f"{label} is the cluster's, not a run's: it goes into a profile (~/.config/opsctl/profile.toml)"
    from trainer.recipe.nearest_name import nearest_name

    near = nearest_name(name, known)
    for other in (*STRUCTS, *OPTION_TABLES):
        if not isinstance(table, dict) and name in keys_of(other):
            return f"{label} is outside any table: move it into [{other}]"
    hint = f"did you mean [{near}]?" if near else "tables are " + ", ".join(f"[{one}]" for one in known)
    return f"{label} is not a known table; {hint}"


def _option_problem(table: str, key: str, value: Any) -> str | None:
    if key not in option_names(table):
        reason = why_refused(key.replace("-", "_"))
        return f"[{table}] {shown_key(key)}: {reason}" if reason else unknown_key(table, key, option_names(table))
    wrong = option_problem(key, value)
    return f"[{table}] {key} = {shown(value)}: {wrong}" if wrong else None


def _check_struct(path: Path, table: str, struct: type[msgspec.Struct], written: Mapping[str, Any]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for key, value in written.items():
        if key not in fields:
            raise RunFileError(f"{path}: {unknown_key(table, key, tuple(fields))}")
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError:
            # What stands in [alerts], or as a token, may be a secret.
            is_secret = table == "alerts" or key == "token"
            what = f"[{table}] {key}" if is_secret else f"[{table}] {key} = {shown(value)}"
            raise RunFileError(f"{path}: {what}: expected {_allowed(fields[key].type)}") from None


def _allowed(type_: Any) -> str:
    text = str(type_)
    for name in ("tuple[int", "tuple", "float", "bool", "int", "str"):
        if name in text:
            return _ALLOWED[name]
    return text


def _check_required(path: Path, written: Mapping[str, Any]) -> None:
    for name in ("run", "slurm"):
        if name not in written:
            raise RunFileError(f"{path}: table [{name}] is missing")
    for field in msgspec.structs.fields(RunTable):
        if field.required and field.name not in written["run"]:
            raise RunFileError(f"{path}: [run] {field.name} is missing")
