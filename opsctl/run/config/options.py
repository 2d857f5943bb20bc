"""The trainer's options as `[trainer]`, `[data]` and `[checkpoints]` of a run file see them: names with `_` for `-`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer.recipe.only_evaluating import EVALUATE_ONLY
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
_INDIVISIBLE = re.compile(r"(?P<given>\d+)(?P<extra> \+ 2 embeddings)? is not divisible by .*?(?P<divisor>\d+)$")


def option_names(table: str) -> tuple[str, ...]:
    """The keys that `[table]` may have."""
    return _NAMES[table]


def why_refused(key: str) -> str | None:
    """Why an option that Megatron has cannot stand in a run file; None for any other key."""
    if key in _REASONS:
        return _REASONS[key]
    if key in EVALUATE_ONLY:
        return "a run trains: give it to python -m trainer.pretrain_gpt in a job of its own"
    if key in BY_KEY and BY_KEY[key].table == "opsctl":
        return "opsctl sets it itself: leave it out"
    return None


def option_problem(key: str, value: Any) -> str | None:
    """What is allowed for the known option `key`, when it cannot be `value`; else None."""
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
    """What the options of all tables cannot be together on `world_size` ranks, a line each, in a run file's words.

    consumed_samples: where the training goes on, for a batch that grows.
    """
    return [_in_run_file_words(error) for error in check_mapping(options, world_size, consumed_samples)]


def _in_run_file_words(error: str) -> str:
    """`error` with `num_layers` for `--num-layers`, the table in front, and the nearest numbers that would divide."""
    tables = [BY_KEY[key].table for name in _FLAG.findall(error) if (key := name.replace("-", "_")) in BY_KEY]
    text = _FLAG.sub(lambda match: match[1].replace("-", "_"), error)
    if tables and tables[0] in OPTION_TABLES:
        text = f"[{tables[0]}] {text}"
    match = _INDIVISIBLE.search(text)
    if match and int(match["divisor"]):
        text += f"; {_nearest_multiples(int(match['given']), int(match['divisor']), 2 if match['extra'] else 0)}"
    return text


def _nearest_multiples(given: int, divisor: int, extra: int) -> str:
    """The numbers around `given` that, with `extra` added, divide by `divisor`."""
    below = (given + extra) // divisor * divisor - extra
    around = [str(one) for one in (below, below + divisor) if one > 0]
    return "the nearest that is: " + around[0] if len(around) == 1 else "the nearest that are: " + " and ".join(around)
