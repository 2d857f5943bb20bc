"""Simple commands of a script: what they set, and what they are put down as. Pure; none is run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from opsctl.run.init.shell_files import Files
from opsctl.run.init.shell_state import in_braces, nowhere
from opsctl.run.init.shell_tokens import Part, Token, Unreadable, Word
from opsctl.run.init.shell_values import Values
from opsctl.run.init.traced_text import Traced, joined

_DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
#: They set the variables that they are handed the names of.
_READING = frozenset(("read", "mapfile", "readarray"))
#: Commands that are gone through of one script.
MOST_STEPS = 20_000
_INDEX = re.compile(r"\[[^]]*(\]\+?=|$)")
_ELEMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\[(?P<index>[^]]*)\](?P<append>\+?)=")


class Done(Enum):
    """Whether a stretch of the script is gone through."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"


@dataclass(frozen=True)
class Command:
    """One command with its words; `line` is where it begins."""

    words: tuple[Traced, ...]
    line: int
    values: Values  # the shell's state by then
    is_sure: bool  # else it stands under a condition that the script does not decide
    files: Files  # written by then
    shell: tuple[int, ...] = ()  # in which of the shells within shells; none: in the script's own

    @property
    def name(self) -> str:
        """What is run, without its folder."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""


@dataclass
class Script:
    """What a script does."""

    values: Values
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, list[list[Token]]] = field(default_factory=dict)  # name -> its body, or those that may be it
    files: Files = field(default_factory=Files)
    refused: list[tuple[int, str]] = field(default_factory=list)  # line and text of what no shell reads
    turns_left: int = 2000  # of loops that are followed: more than anybody trains
    steps_left: int = field(
        default_factory=lambda: MOST_STEPS
    )  # commands that are gone through, each as often as it is
    shells: int = 0  # that were begun within the script's own
    told: list[tuple[int, str]] = field(default_factory=list)  # line and text of what was not followed

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Behind what may be done or not, nobody can tell what it has set, written and defined."""
        before = dict(self.functions)
        with self.values.perhaps(), self.files.perhaps():
            yield
        for name in self.functions.keys() | before.keys():
            bodies, others = self.functions.get(name, [[]]), before.get(name, [[]])
            if bodies is not others:
                self.functions[name] = [*bodies, *(one for one in others if one not in bodies)]

    def step(self, line: int) -> None:
        """Count one command. Raises Unreadable where there were too many."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Unreadable(f"line {line}: more commands are gone through up to here than a launch script has")


def split_prefix(words: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """The assignments that a command begins with, and the command; all of them, where there is no command."""
    first = next((number for number, word in enumerate(words) if not is_assignment(word)), len(words))
    return words[:first], words[first:]


def is_assignment(word: Word) -> bool:
    """Whether it is `NAME=value`, `NAME+=value` or `NAME[index]=value`."""
    return _assignment(word) is not None or _element(word) is not None


def name_assigned(word: Word) -> str | None:
    """The variable of `NAME=value` and `NAME+=value`; None of any other word."""
    split = _assignment(word)
    return split[0] if split else None


def assign_alone(script: Script, words: Sequence[Word], done: Done) -> None:
    """A line of nothing but assignments. `PATH=more:$PATH` exports: what it adds to is the caller's, so exported."""
    for word in words:
        split = _assignment(word)
        own = split is not None and split[0].endswith("PATH") and ":" in "".join(one.traced.text for one in word.parts)
        if split is not None and own and any(_names(part, split[0]) for part in word.parts):
            is_callers = split[0] in script.values.added_to or not script.values.is_set(split[0])
            if is_callers or split[0] in script.values.exported:
                _declare(script, word, "export", done)
                continue
        if split is not None and split[0] in script.values.exported:
            script.values.added_to.pop(split[0], None)
            script.values.exported_behind[split[0]] = len(script.commands)
        assign(script.values, [word])


def assign(values: Values, words: Sequence[Word]) -> None:
    """Do assignments one after another, as in front of a command."""
    for word in words:
        split = _assignment(word)
        if split is not None:
            _assign(values, *split)
        elif (match := _element(word)) is not None:
            value = values.text(_behind(word.parts, match.end()))
            values.assign_element(match["name"], match["index"], value, match["append"] != "", word.line)


def carry_out(
    script: Script, words: Sequence[Word], line: int, done: Done, shell: tuple[int, ...], prefix: Sequence[Word] = ()
) -> Command | None:
    """Do what the command does to variables, and put it down; None where that is all there is to it.

    prefix: assignments in front of it. They are set and exported from here on, and its words do not have them yet.
    """
    values, name = script.values, words[0].plain
    if name in _DECLARING or name == "unset":
        if name in ("declare", "typeset", "local") and any(_is_for_numbers(word) for word in words[1:]):
            declared = (split[0] if (split := _assignment(word)) else word.plain or "" for word in words[1:])
            values.whole |= frozenset(declared)
        flags = "".join(one[1:] for word in words[1:] if (one := word.plain or "").startswith("-"))
        if "n" in flags and name != "unset":
            _refer(values, words[1:], name == "local")
            return None
        if name == "unset" and ("f" in flags or any("[" in (word.plain or "") for word in words)):
            _unset_others(script, words[1:], "f" in flags)
            return None
        for word in words[1:]:
            if name == "local" or (name in ("declare", "typeset") and values.is_in_function and "g" not in flags):
                _hide(values, word)
            _declare(script, word, "export" if "x" in flags else name, done)
        if name == "unset":
            fields = tuple(values.fields(words))
            script.commands.append(Command(fields, line, values.copy(), done is Done.YES, script.files.copy(), shell))
        return None
    fields = tuple(values.fields(words, finds_files=name != "let"))
    if not fields:
        return None
    assign(values, prefix)
    for word in prefix:
        if (name_here := name_assigned(word)) is not None:
            values.export(name_here, word.line)
    command = Command(fields, line, values.copy(), done is Done.YES, script.files.copy(), shell)
    script.commands.append(command)
    _change_folder(values, command)
    _set_by_its_own(values, command)
    return command


def _change_folder(values: Values, command: Command) -> None:
    into = next((word for word in command.words[1:] if not word.text.startswith("-") or word.text == "-"), None)
    here = values.folder
    if command.name == "cd" or (command.name == "pushd" and into is not None):
        if command.name == "pushd":
            values.left.append(here)
        home = Traced.on("${HOME}", command.line)
        values.folder = values.before_this if into and into.text == "-" else _gone_to(here, into or home)
        values.before_this = here
    elif command.name == "popd" and len(command.words) == 1 and values.left:
        values.folder, values.before_this = values.left.pop(), here
    elif command.name in ("pushd", "popd"):
        values.folder = nowhere(command.line)


def _set_by_its_own(values: Values, command: Command) -> None:
    """What commands of the shell set that are handed the names of variables."""
    name, fields, line = command.name, command.words, command.line
    if name == "let":
        for one in fields[1:]:
            values.reckon(one.text, line)
    elif len(fields) > 2 and (name == "getopts" or (name == "printf" and fields[1].text == "-v")):
        values.forget(fields[2].text, line)
    elif name == "printf" and len(fields) > 1 and fields[1].text.startswith("-v"):
        values.forget(fields[1].text[2:], line)
    elif name in ("source", ".") and len(fields) > 1:
        values.may_be_set_over(line, f"{fields[1].text} is not opened")
    elif name in _READING:
        for one in fields[1:]:
            values.forget(one.text, line)
    elif name == "set" and len(fields) > 1 and fields[1].text == "--":
        values.arguments = list(fields[2:])
    elif name == "set" and len(fields) > 1:
        _set_option(values, [one.text for one in fields[1:]])
    elif name == "shift" and values.arguments is not None:
        by = fields[1].text if len(fields) > 1 else "1"
        values.arguments = values.arguments[int(by) :] if by.isdigit() else None


def _set_option(values: Values, words: Sequence[str]) -> None:
    """`set -a` and `set -o allexport`: what is set from here on is exported."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if (word[1:].isalpha() and "a" in word[1:] and len(word) < 5) or following == "allexport":
            values.exports_all = {"-": True, "+": False}.get(word[:1], values.exports_all)


def _unset_others(script: Script, words: Sequence[Word], are_functions: bool) -> None:
    """`unset -f NAME`, and `unset NAME[index]`, behind which nobody can tell what is left of the array."""
    for word in words:
        if are_functions:
            script.functions.pop(word.plain or "", None)
        else:
            script.values.forget((word.plain or "").partition("[")[0], word.line)


def _hide(values: Values, word: Word) -> None:
    split = _assignment(word) or _quoted_assignment(values, word)
    name = split[0] if split else word.plain or ""
    if name.isidentifier():
        values.hide(name)


def _declare(script: Script, word: Word, how: str | None, done: Done) -> None:
    values = script.values
    split = _assignment(word) or _quoted_assignment(values, word)
    name = split[0] if split else word.plain or ""
    if how == "unset":
        values.remove(name, word.line)
    elif split:
        if how == "export":
            _keep_added(script, *split, done)
        _assign(values, *split)
    if how == "export" and name.isidentifier():
        values.export(name, word.line, len(script.commands))


def _refer(values: Values, words: Sequence[Word], is_local: bool) -> None:
    """`declare -n NAME=OTHER`; `export -n NAME`, which takes back that it is exported."""
    for word in words:
        split = _assignment(word)
        if split is not None and is_local:
            values.hide(split[0])
        if split is not None:
            values.refer(split[0], values.text(split[1].parts).text, word.line)
        else:
            values.exported.pop(word.plain or "", None)


def _keep_added(script: Script, name: str, word: Word, append: bool, done: Done) -> None:
    """Put `export NAME=more:${NAME:-}` down with the variable itself as it is written."""
    values = script.values
    own = [_names(part, name) for part in word.parts]
    is_callers = name in values.added_to or not values.is_set(name)
    if any(own) and is_callers and done is Done.YES and not append:
        parts = zip(word.parts, own, strict=True)
        text = joined(in_braces(part.traced) if is_own else values.text([part]) for part, is_own in parts)
        values.added_to.setdefault(name, []).append((len(script.commands), text))
    else:
        values.added_to.pop(name, None)


def _names(part: Part, name: str) -> bool:
    """Whether it is an expansion in which the variable is named."""
    return part.is_expansion and re.search(rf"\b{name}\b", part.traced.text) is not None


def _assign(values: Values, name: str, word: Word, append: bool) -> None:
    if name in values.whole and word.elements is None:
        values.reckon(f"{name}{'+' if append else ''}={values.text(word.parts).text}", word.line)
    elif word.elements is not None and any(
        _INDEX.match(one.parts[0].traced.text) for one in word.elements if one.parts
    ):
        values.forget(name, word.line)  # `([1]=a [key]=b)`: not followed
    elif word.elements is not None:
        values.assign(name, values.fields(word.elements), append, word.line)
    else:
        values.assign(name, values.text(word.parts), append, word.line)


def _assignment(word: Word) -> tuple[str, Word, bool] | None:
    """(name, the value as a word, whether it is appended) of `NAME=value`; None for any other word."""
    if not word.parts or word.parts[0].is_expansion or word.parts[0].is_quoted:
        return None
    head, first = word.parts[0].traced, word.parts[0].traced.text
    name, equals, _ = first.partition("=")
    append = name.endswith("+")
    if not equals or not name.removesuffix("+").isidentifier():
        return None
    value = Word(word.line, list(word.parts), word.elements)
    value.parts[0] = type(word.parts[0])(head[len(name) + 1 :])
    return name.removesuffix("+"), value, append


def _quoted_assignment(values: Values, word: Word) -> tuple[str, Word, bool] | None:
    """The same of `"NAME=value"` and `"$NAME=value"`, which only a command that declares takes for one."""
    if word.plain is not None:
        return None
    text = values.text(word.parts)
    name = text.text.partition("=")[0]
    if "=" not in text.text or not name.isidentifier():
        return None
    return name, Word(word.line, [Part(text[len(name) + 1 :], is_quoted=True)]), False


def _element(word: Word) -> re.Match[str] | None:
    """`NAME[index]=` at its beginning; None for any other word."""
    if not word.parts or word.parts[0].is_expansion or word.parts[0].is_quoted:
        return None
    return _ELEMENT.match("".join(part.traced.text for part in word.parts))


def _behind(parts: Sequence[Part], length: int) -> list[Part]:
    """What is left of the parts behind their first `length` characters."""
    rest = []
    for part in parts:
        text = part.traced[min(length, len(part.traced)) :]
        length -= min(length, len(part.traced))
        if len(text) == len(part.traced):
            rest.append(part)
        elif text.text:
            rest.append(replace(part, traced=text))
    return rest


def _is_for_numbers(word: Word) -> bool:
    """Whether it is `declare`'s option for a variable that holds whole numbers."""
    return (word.plain or "").startswith("-") and "i" in (word.plain or "")


def _gone_to(here: Traced | None, into: Traced) -> Traced:
    """Where `cd into` leads; what is behind a variable, or was before, is not known."""
    if into.text == "-":
        return Traced.on("$(pwd)", into.line)
    if here is None or into.text.startswith(("/", "~", "$")):
        return into
    text = f"{here.text}/{into.text}"
    return Traced.on(text if "$" in text or "~" in text else posixpath.normpath(text), into.line)
