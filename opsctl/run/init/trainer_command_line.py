"""Read the words of a trainer's command line as options of a run file, by the trainer's own table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from opsctl.run.config.expansion import PATH_OPTIONS, WEIGHTED_OPTIONS
from opsctl.run.config.toml_types import option_names, option_problem, why_refused
from opsctl.run.init.draft import Draft
from opsctl.run.init.shell_script import Command
from opsctl.run.init.shell_values import State, is_argument, is_known_but_for_variables, is_open, names_in, why_open
from trainer.formats.data.data_sources import with_prefixes
from trainer.recipe.data_options import is_number
from trainer.recipe.lengths import EVALUATE_ONLY
from trainer.recipe.options import BY_KEY, OptionsError, given

#: Options that opsctl sets itself and that get a note of their own.
NOTED_SEPARATELY = frozenset(("save", "load", "exit_duration_in_mins", "deepspeed_config", *EVALUATE_ONLY))


def take_options(
    draft: Draft, words: Sequence[str], command: Command, folder: str, line_of: Callable[[str], int]
) -> dict[str, tuple[str, int]]:
    """Set `[trainer]`, `[data]` and `[checkpoints]`. Returns what opsctl sets itself: key -> (text, line).

    folder: where the script starts the trainer, for relative paths. line_of: finds the line of an option.
    """
    state = command.state
    own: dict[str, tuple[str, int]] = {}
    without_effect: dict[str, None] = {}
    for option in _options(words, draft, command, line_of):
        line, shown = line_of(option[0]), " ".join(option)
        if unknown := _why_unknown(option, state):
            draft.note(line, f"{shown}: {unknown}")
            continue
        try:
            found = given(option[:1] if _key(option[0]) in EVALUATE_ONLY else option)
        except OptionsError as error:
            draft.note(line, str(error))
            continue
        for key, value in found.items():
            if BY_KEY[key].table == "opsctl":
                own[key] = ("" if value is True else str(value), line)
            elif BY_KEY[key].notice:
                without_effect[BY_KEY[key].name] = None
            elif problem := option_problem(key, value) or why_refused(key):
                draft.note(line, f"{shown}: {problem}")
            else:
                placed = _placed(key, value, folder)
                alone = placed[0] if isinstance(placed, list) and len(placed) == 1 else placed
                draft.set(BY_KEY[key].table, key, alone, f"line {line}" if line else "as the script is called")
    if without_effect:
        draft.note(0, f"left out, because they change nothing here: {', '.join(without_effect)}")
    for table in ("trainer", "data", "checkpoints"):  # in the order of the help
        if values := draft.tables.get(table):
            draft.tables[table] = {key: values[key] for key in option_names(table) if key in values}
    return own


def _options(
    words: Sequence[str], draft: Draft, command: Command, line_of: Callable[[str], int]
) -> Iterator[list[str]]:
    """Yield each option with as many values as it takes; note further words."""
    option: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if option:
                yield option
            option = [word]
        elif option and len(option) <= _most_values(option[0]) and not _adds_alone(option[0], word):
            option.append(word)
        else:
            names, line = names_in(word), line_of(word) or command.line
            why = command.state.why_unknown(names[0]) if names else why_open(word)
            if is_open(word):
                draft.note(line, f"{word}: {why}, so the options that it adds are unknown")
            else:
                draft.note(line, f"{word}: belongs to no option")
    if option:
        yield option


def _adds_alone(name: str, word: str) -> bool:
    """Return whether an unknown variable follows an unknown option: it may be more than its value."""
    return _key(name) not in BY_KEY and is_known_but_for_variables(word) and word.startswith("${")


def _most_values(name: str) -> float:
    option = BY_KEY.get(_key(name))
    if option is None or option.nargs == "+":
        return math.inf
    if option.key in EVALUATE_ONLY:
        return 1  # the fork has a value behind it, of which even False means yes
    if option.type is bool or "=" in name:
        return 0
    return option.nargs if isinstance(option.nargs, int) else 1


def _key(name: str) -> str:
    return name.removeprefix("--").partition("=")[0].replace("-", "_")


def _why_unknown(option: list[str], state: State) -> str | None:
    """Explain why the script alone does not determine this option's values; None if it does."""
    known = BY_KEY.get(_key(option[0]))
    for word in option if known else ():
        if not is_known_but_for_variables(word):
            return why_open(word)
        names = names_in(word)
        not_the_environments = next((name for name in names if is_argument(name) or name in state.variables), None)
        if not_the_environments:
            return state.why_unknown(not_the_environments)
        if names and known is not None and known.type is not str:
            return state.why_unknown(names[0])
    return None


def _placed(key: str, value: object, folder: str) -> object:
    """Put relative paths into `folder`, where the script would have found them."""

    def place(path: str) -> str:
        return path if path.startswith(("/", "~/", "${")) else f"{folder}/{path.removeprefix('./')}"

    if isinstance(value, list):
        return [_placed(key, one, folder) for one in value]
    if not isinstance(value, str):
        return value
    if key in PATH_OPTIONS:
        return float(value) if is_number(value) else place(value)
    if key == "tokenizer_name_or_path" and value.startswith("."):
        return place(value)
    return with_prefixes(value, place) if key in WEIGHTED_OPTIONS else value
