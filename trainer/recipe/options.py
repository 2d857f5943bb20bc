"""The trainer's options: the command line, and the tables of a run file with their check, from `option_table`.

It imports nothing heavy, so that `opsctl` can check a run file with it. A wrong name, type, value or combination gives
one line: the given value, the allowed ones, and the nearest known name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.recipe.layout import layout_if_any, sequence_notices
from trainer.recipe.model_options import with_model_defaults
from trainer.recipe.option_rules import combination_errors, missing_errors
from trainer.recipe.option_table import OPTIONS, REFUSED, Option
from trainer.recipe.spike_guard import ROLLBACK

__all__ = ["OPTIONS", "Option"]

BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}
_REFUSED_BY_KEY = {name.removeprefix("--").replace("-", "_"): reason for name, reason in REFUSED.items()}
_TYPE_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


class OptionsError(ValueError):
    """A wrong option, type, value or combination; the text is one line."""


class Options(Mapping[str, Any]):
    """All options by attribute (`options.num_layers`) or key, with defaults. `replace` makes a changed copy.

    Derived if not given: ffn_hidden_size, kv_channels, max_position_embeddings, and, if the world size is known,
    global_batch_size (micro-batch x DP). `notices` are lines to print once, about options that have no effect here.
    """

    __slots__ = ("_values", "notices")
    notices: tuple[str, ...]

    def __init__(self, values: Mapping[str, Any], notices: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "_values", {**{key: option.default for key, option in BY_KEY.items()}, **values})
        object.__setattr__(self, "notices", notices)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(f"the trainer has no option {key!r}{_hint(key)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"options cannot be changed (tried {key!r}); use replace()")

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (self._values, self.notices)

    def __repr__(self) -> str:
        changed = {key: value for key, value in self._values.items() if value != BY_KEY[key].default}
        return f"Options({changed})"

    def replace(self, **changes: Any) -> Options:
        """Return the options with some changed. Unknown keys raise OptionsError; combinations are not checked again."""
        for key in changes:
            if key not in BY_KEY:
                raise OptionsError(_unknown(f"--{key.replace('_', '-')}", key))
        return Options({**self._values, **changes}, self.notices)


def given(argv: Sequence[str]) -> dict[str, Any]:
    """Return the typed value of every option on a command line, by key. The last value of an option counts.

    Names may have `_` instead of `-`, and may be abbreviated if only one option fits. Missing options and combinations
    are not checked: `parse` does that. Raises OptionsError.
    """
    values: dict[str, Any] = {}
    position = 0
    while position < len(argv):
        name, equals, inline = argv[position].partition("=")
        if not name.startswith("--") or name == "--":
            raise OptionsError(f"{argv[position]!r} belongs to no option: options begin with --, e.g. --num-layers 12")
        option = _find(name)
        position += 1
        words = [inline] if equals else []
        if option.type is bool and position < len(argv) and not argv[position].startswith("--"):
            raise OptionsError(f"{name} {argv[position]}: it is a flag and takes no value: leave the value out")
        if option.type is not bool and not equals:
            while position < len(argv) and not argv[position].startswith("--") and _takes_more(option, len(words)):
                words.append(argv[position])
                position += 1
        values[option.key] = _values_of(option, words, flag_value=bool(equals))
    return values


def parse(argv: Sequence[str], world_size: int | None = None, consumed_samples: int | None = 0) -> Options:
    """Return the options of a command line, with derived values filled in.

    With `world_size` (ranks) divisibility by the layout is checked too, for a ramp-up from `consumed_samples` on;
    None: not yet. Raises OptionsError.
    """
    values = given(argv)
    options = _with_derived(values, world_size)
    errors = missing_errors(options) + combination_errors(options, world_size, consumed_samples)
    errors += [
        f"{BY_KEY[key].name} without --save: give the folder that checkpoints go to"
        for key in ("save_interval", "save_schedule", "save_iterations")
        if values.get(key) and not values.get("save")
    ]
    if ROLLBACK in (options.spike_guard or ()) and not options.save:
        errors.append(f"{BY_KEY['spike_guard'].name} {ROLLBACK} without --save: there is no checkpoint to go back to")
    if errors:
        raise OptionsError(
            errors[0] if len(errors) == 1 else f"{errors[0]} (and {len(errors) - 1} more: {'; '.join(errors[1:])})"
        )
    return options


def to_arguments(mapping: Mapping[str, Any]) -> list[str]:
    """Return command-line words for options by key: True is a flag, False and None are absent, lists several."""
    words: list[str] = []
    for key, value in mapping.items():
        name = BY_KEY[key].name if key in BY_KEY else f"--{key.replace('_', '-')}"
        if value is None or value is False:
            continue
        if isinstance(value, (list, tuple)):
            words += [name, *(str(one) for one in value)]
        elif value is True:
            words.append(name)
        elif str(value).startswith("--"):
            words.append(f"{name}={value}")
        else:
            words += [name, str(value)]
    return words


def check_mapping(mapping: Mapping[str, Any], world_size: int | None, consumed_samples: int = 0) -> list[str]:
    """Return the errors in options by key, as typed in a run file, one line each.

    Checks unknown names, types, choices, bounds, missing options, combinations and, with `world_size` (ranks),
    divisibility. Options that opsctl sets itself may be absent.
    """
    errors: list[str] = []
    for key, value in mapping.items():
        option = BY_KEY.get(key)
        if option is None:
            errors.append(_unknown(key, key, as_key=True))
            continue
        wrong = _typed_error(option, value)
        if wrong:
            errors.append(f"{key} = {value!r}: {wrong}")
    if errors:
        return errors
    options = from_tables(mapping, world_size)
    return missing_errors(options) + combination_errors(options, world_size, consumed_samples)


def from_tables(mapping: Mapping[str, Any], world_size: int | None = None) -> Options:
    """Return the options of a run file's tables, complete or not, as `parse` returns those of a command line.

    The values must have the right types; `check_mapping` reports wrong ones.
    """
    values = {key: _as_parsed(BY_KEY[key], value) for key, value in mapping.items() if value is not None}
    return _with_derived(values, world_size)


def nearest(name: str) -> str | None:
    """Return the known option most like `name` (`--num-layers` form); None if none is similar."""
    from trainer.recipe.nearest_name import nearest_name

    found = nearest_name(name.removeprefix("--").replace("-", "_"), BY_KEY)
    return BY_KEY[found].name if found else None


def _with_derived(given_values: Mapping[str, Any], world_size: int | None) -> Options:
    """Return options with derived values filled in. Given ones have the right types already."""
    values = with_model_defaults(given_values)
    layout = layout_if_any(Options(values), world_size)
    if layout is not None and values.get("micro_batch_size"):
        values.setdefault("global_batch_size", values["micro_batch_size"] * layout.data)
    notices = tuple(
        f"{BY_KEY[key].name} changes nothing: {BY_KEY[key].notice}"
        for key in given_values
        if BY_KEY[key].notice and given_values[key]
    )
    return Options(values, notices + sequence_notices(Options(values)))


def _find(name: str) -> Option:
    """Return the option of a command-line name, which may be abbreviated."""
    key = name.removeprefix("--").replace("-", "_")
    if key in BY_KEY:
        return BY_KEY[key]
    if key == "help":
        raise OptionsError("--help: `python -m trainer.recipe.option_help` lists every option")
    if key not in _REFUSED_BY_KEY:
        longer = [option for option in OPTIONS if option.key.startswith(key)]
        if len(longer) == 1:
            return longer[0]
        if longer:
            raise OptionsError(f"{name} could be any of {', '.join(option.name for option in longer)}: write it out")
    raise OptionsError(_unknown(name, key))


def _unknown(shown: str, key: str, as_key: bool = False) -> str:
    if key in _REFUSED_BY_KEY:
        return f"{shown} is refused: {_REFUSED_BY_KEY[key]}"
    return f"{shown} is no option of the trainer{_hint(key, as_key)}"


def _hint(key: str, as_key: bool = True) -> str:
    near = nearest(key)
    if near is None:
        return ""
    return f"; did you mean {near.removeprefix('--').replace('-', '_') if as_key else near}?"


def _takes_more(option: Option, taken: int) -> bool:
    return option.nargs == "+" or taken < (option.nargs if isinstance(option.nargs, int) else 1)


def _values_of(option: Option, words: list[str], flag_value: bool) -> Any:
    """Return the typed value of an option's command-line words. Raises OptionsError."""
    if option.type is bool:
        if flag_value:
            raise OptionsError(
                f"{option.name}={words[0]}: it is a flag and takes no value; to switch it off, remove it"
            )
        return True
    wanted = option.nargs if isinstance(option.nargs, int) else 1
    if len(words) < wanted:
        many = f"{wanted} values" if wanted > 1 else _TYPE_WORDS[option.type]
        raise OptionsError(f"{option.name} needs {many}, got {' '.join(words) or 'nothing'}")
    values = [_number_or_text(option, word) for word in words]
    for value in values:
        wrong = _bounds_error(option, value)
        if wrong:
            raise OptionsError(f"{option.name} {value}: {wrong}")
    return values[0] if option.nargs is None else values


def _number_or_text(option: Option, word: str) -> Any:
    if option.type is str:
        return word
    text = word.removeprefix("default=")  # the tr11-176B README writes `--hidden-dropout default=0.1`
    try:
        value = option.type(text)
    except ValueError:
        raise OptionsError(f"{option.name} {word}: must be {_TYPE_WORDS[option.type]}") from None
    if text != word and value != option.default:
        raise OptionsError(f"{option.name} {word}: the default is {option.default}")
    return value


def _typed_error(option: Option, value: Any) -> str:
    """Return why a run file's value does not fit the option; empty if it does."""
    if value is None:
        return ""
    if option.nargs is None:
        return _one_value_error(option, value)
    values = value if isinstance(value, (list, tuple)) else [value]
    if isinstance(option.nargs, int) and len(values) != option.nargs:
        return f"must be a list of {option.nargs} values"
    if not values:
        return "must not be an empty list"
    if any(str(one).startswith("--") for one in values):
        return "no value of a list may begin with --"
    return next((wrong for one in values if (wrong := _one_value_error(option, one))), "")


def _one_value_error(option: Option, value: Any) -> str:
    if (
        option.type is str
        and option.nargs is not None
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    ):
        return ""  # weights between data prefixes
    allowed = (int, float) if option.type is float else option.type
    if not isinstance(value, allowed) or (isinstance(value, bool) and option.type is not bool):
        return f"must be {_TYPE_WORDS[option.type]}{' (or a list of such)' if option.nargs == '+' else ''}"
    return _bounds_error(option, value)


def _bounds_error(option: Option, value: Any) -> str:
    if option.choices and value not in option.choices:
        return f"must be one of {', '.join(str(choice) for choice in option.choices)}"
    if option.type in (int, float):
        if value != value or value in (float("inf"), float("-inf")):
            return "must be finite"
        if option.at_least is not None and value < option.at_least:
            return f"must be at least {option.at_least:g}"
        if option.below is not None and value >= option.below:
            return f"must be below {option.below:g}"
        if option.type is int and not -(2**63) <= value < 2**63:
            return "must be a number that 64 bits can hold"
    return ""


def _as_parsed(option: Option, value: Any) -> Any:
    """Return a run file's value as the command line gives it: lists for options of many, text for weights."""
    if option.nargs is None:
        return option.type(value)
    return [option.type(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
