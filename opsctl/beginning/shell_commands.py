"""Simple commands of a script: what they set, and what they are put down as. Pure; none is run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from opsctl.beginning.shell_values import Values, in_braces
from opsctl.beginning.shell_words import Word
from opsctl.beginning.traced import Traced, joined

_DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
#: They set the variables that they are handed the names of.
_READING = frozenset(("read", "mapfile", "readarray"))
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))


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
    folder: Traced | None  # where the script is by then
    is_sure: bool  # else it stands under a condition that the script does not decide

    @property
    def name(self) -> str:
        """What is run, without its folder."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""


@dataclass
class Script:
    """What a script does."""

    values: Values
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, int] = field(default_factory=dict)  # name -> line
    functions: dict[str, tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)  # see changed_by
    added_to: dict[str, list[Traced]] = field(default_factory=dict)  # exports of what the caller has, and more
    files: dict[str, Traced] = field(default_factory=dict)  # what here-documents write, by the path as it is known

    def changed_by(self, function: str) -> set[str]:
        """The variables that a call of `function` may change; by those that it calls, too."""
        seen, wanted, changed = set[str](), [function], set[str]()
        while wanted:
            one = wanted.pop()
            if one in self.functions and one not in seen:
                seen.add(one)
                assigned, called = self.functions[one]
                changed |= assigned
                wanted += called
        return changed


def carry_out(script: Script, words: Sequence[Word], line: int, done: Done) -> Command | None:
    """Do what the command does to variables, and put it down; None where it is nothing but assignments."""
    assigned = [split for word in words if (split := _assignment(word)) is not None]
    first = next((number for number, word in enumerate(words) if _assignment(word) is None), len(words))
    if first == len(words):
        for split in assigned:
            _assign(script.values, *split, done)
        return None
    name = words[first].plain
    if name in _DECLARING or name == "unset":
        if name in ("declare", "typeset", "local") and any(_is_for_numbers(word) for word in words[first + 1 :]):
            declared = (split[0] if (split := _assignment(word)) else word.plain or "" for word in words[first + 1 :])
            script.values.whole |= set(declared)
        for word in words[first + 1 :]:
            _declare(script, word, name, done)
        if name == "unset":
            script.commands.append(
                Command(tuple(script.values.fields(words[first:])), line, script.values.folder, done is Done.YES)
            )
        return None
    fields = script.values.fields(words[first:])
    if not fields:
        return None
    command = Command(tuple(fields), line, script.values.folder, done is Done.YES)
    script.commands.append(command)
    if command.name == "cd" and len(fields) > 1:
        script.values.folder = _gone_to(script.values.folder, fields[1]) if command.is_sure else None
    if command.name in ("pushd", "popd"):
        script.values.folder = Traced.on("$(pwd)", line)
    if command.name == "let":
        for one in fields[1:]:
            script.values.reckon(one.text, line, command.is_sure)
    if command.name == "printf" and len(fields) > 2 and fields[1].text == "-v":
        script.values.forget(fields[2].text, line)
    if command.name == "getopts" and len(fields) > 2:
        script.values.forget(fields[2].text, line)
    if command.name in script.functions:
        for changed in script.changed_by(command.name):
            script.values.forget(changed, line)
    if command.name in _READING:
        for one in fields[1:]:
            script.values.forget(one.text, line)
    return command


def handed_to_a_shell(words: Sequence[Traced]) -> Traced | None:
    """The script that `bash -c TEXT` and `eval TEXT` hand to a shell; None of any other command."""
    if words[0].text == "eval":
        inner = [Traced.on(" ", one.line) + one for one in words[1:]]
    else:
        inner = []
        for place, word in enumerate(words):
            after = words[place + 1 : place + 3]
            flag = next((number for number, one in enumerate(after) if _runs_text(one.text)), None)
            if word.text.rpartition("/")[2] in _SHELLS and flag is not None:
                inner = list(words[place + flag + 2 : place + flag + 3])
                break
    if not inner:
        return None
    return Traced("".join(one.text for one in inner), tuple(line for one in inner for line in one.lines))


def _declare(script: Script, word: Word, how: str | None, done: Done) -> None:
    split = _assignment(word)
    name = split[0] if split else word.plain or ""
    if how == "unset" and done is Done.UNSURE:
        script.values.forget(name, word.line)
    elif how == "unset":
        script.values.assign(name, Traced())
        script.exported.pop(name, None)
    elif split:
        if how == "export":
            _keep_added(script, *split, done)
        _assign(script.values, *split, done)
    if how == "export" and name.isidentifier():
        script.exported[name] = word.line


def _keep_added(script: Script, name: str, word: Word, append: bool, done: Done) -> None:
    """Put `export NAME=more:${NAME:-}` down with the variable itself as it is written."""
    own = [part.is_expansion and re.search(rf"\b{name}\b", part.traced.text) is not None for part in word.parts]
    is_callers = name in script.added_to or not script.values.is_set(name)
    if any(own) and is_callers and done is Done.YES and not append:
        parts = zip(word.parts, own, strict=True)
        text = joined(in_braces(part.traced) if is_own else script.values.text([part]) for part, is_own in parts)
        script.added_to.setdefault(name, []).append(text)
    else:
        script.added_to.pop(name, None)


def _assign(values: Values, name: str, word: Word, append: bool, done: Done) -> None:
    if done is Done.UNSURE:
        values.forget(name, word.line)
    elif name in values.whole and word.elements is None:
        values.reckon(f"{name}{'+' if append else ''}={values.text(word.parts).text}", word.line, True)
    elif word.elements is not None:
        values.assign(name, values.fields(word.elements), append)
    else:
        values.assign(name, values.text(word.parts), append)


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


def _runs_text(option: str) -> bool:
    """Whether a shell's option says that a text follows: `-c`, `-lc`."""
    return option.startswith("-") and not option.startswith("--") and option.endswith("c")
