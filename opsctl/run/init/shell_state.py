"""A shell's state at one place of a script: variables, arguments, folder, as far as the script alone tells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from opsctl.run.init.shell_arithmetic import numbers_set, reckoned
from opsctl.run.init.shell_environment import is_every_jobs
from opsctl.run.init.traced_text import Traced, joined

VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*|\d+|[@*#])\}|(?P<bare>[A-Za-z_]\w*|[\d@*#]))")

#: Characters of a value: what Linux hands a program in one word.
_LONGEST = 1 << 17

Value = Traced | list[Traced]  # a list: an array


class State:
    """The shell's state at one place of a run through a script."""

    def __init__(self, given: Mapping[str, str], arguments: Sequence[str] | None = None) -> None:
        self.known: dict[str, Value] = {name: Traced.on(text, 0) for name, text in given.items()}
        #: Name -> line of what the script sets in a way that cannot be told: under a condition, in a loop.
        self.unsure: dict[str, int] = {}
        self.kept_back: dict[str, int] = {}  # what the shell outside has set and not exported: name -> line
        self.given = frozenset(given)  # every shell has them
        self.whole: frozenset[str] = frozenset()  # whatever is assigned to them is reckoned: `declare -i`
        self.touched: dict[str, int] = {}  # what has been assigned or forgotten: name -> line
        self.folder: Traced | None = None  # where it is, None: where it began
        self.before_this: Traced | None = None  # where `cd -` goes
        self.left: list[Traced | None] = []  # by `pushd`
        #: What the script, or the function, is called with; None: nobody has said.
        self.arguments: list[Traced] | None = None if arguments is None else [Traced.on(one, 0) for one in arguments]
        self.missing: set[str] = set()  # the arguments of the script that it asks for and nobody has said
        #: Name -> line and text of each command of which nobody can tell whether it sets it over.
        self.unopened: dict[str, frozenset[tuple[int, str]]] = {}
        self.used_behind: dict[tuple[int, str], set[str]] = {}  # such commands, and what is used behind them
        self.references: dict[str, str] = {}  # `declare -n`: name -> what is set by its name
        self.removed: frozenset[str] = frozenset()  # by `unset`
        self.taken_unset: dict[str, None] = {}  # what the caller may have set and the script does not: asked for
        self.exported: dict[str, int] = {}  # name -> line
        self.exports_all = False  # since `set -a`
        self.is_in_function = False
        #: Exports of what the caller has, and more, each with the number of commands that stand before it.
        self.added_to: dict[str, list[tuple[int, Traced]]] = {}
        self.exported_behind: dict[str, int] = {}  # name -> how many commands stand before its last export
        self.own: dict[str, Value | None] = {}  # what `local` hides: name -> what it is outside of the function

    def copy(self) -> Self:
        """The same state, which goes its own way from here."""
        other = type(self)({})
        other.become(self)
        return other

    def become(self, other: State) -> None:
        """Take on the state of `other`; what is missing is kept in mind."""
        self.known, self.unsure, self.whole = dict(other.known), dict(other.unsure), other.whole
        self.touched, self.own = dict(other.touched), dict(other.own)
        self.exports_all = other.exports_all
        self.folder, self.before_this, self.left = other.folder, other.before_this, list(other.left)
        self.arguments = None if other.arguments is None else list(other.arguments)
        self.exported, self.added_to = dict(other.exported), {name: list(one) for name, one in other.added_to.items()}
        self.removed, self.taken_unset = other.removed, other.taken_unset
        self.missing, self.given, self.kept_back = other.missing, other.given, dict(other.kept_back)
        self.is_in_function = other.is_in_function
        self.exported_behind = dict(other.exported_behind)
        self.unopened, self.used_behind = dict(other.unopened), other.used_behind
        self.references = dict(other.references)

    @contextmanager
    def in_a_shell_of_its_own(self) -> Iterator[None]:
        """What is done within is nothing to who comes behind."""
        before = self.copy()
        yield
        self.become(before)

    @contextmanager
    def for_one_command(self, names: Sequence[str]) -> Iterator[None]:
        """`names` are the command's own, set in front of it: behind it they are again what they were."""
        before = self.copy()
        yield
        theirs: tuple[dict[str, Any], ...] = before._of_names()
        mine = self._of_names()
        for name in names:
            for now, then in zip(mine, theirs, strict=True):
                _put_back(now, then, name)
        self.removed = (self.removed - frozenset(names)) | (before.removed & frozenset(names))

    def _of_names(self) -> tuple[dict[str, Any], ...]:
        return (
            self.known,
            self.unsure,
            self.kept_back,
            self.exported,
            self.added_to,
            self.unopened,
            self.exported_behind,
        )

    def become_a_new_shell(self) -> None:
        """Keep, as a shell that is started with `-c` has it, nothing but what is exported."""
        for name in self.known.keys() - self.exported.keys() - self.given:
            value = self.known.pop(name)
            first = value if isinstance(value, Traced) else value[0] if value else Traced()
            self.kept_back[name] = first.line

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """What is set within holds within; behind, nobody can tell it, as nobody can tell whether it was done."""
        before = self.copy()
        self.touched = {}
        yield
        after = self.copy()
        self.become(before)
        for name, line in after.touched.items():
            if name in after.unsure or _texts(after.known.get(name)) != _texts(before.known.get(name)):
                self.forget(name, line)
        self.touched |= after.touched
        self.unopened = {name: one for name, one in after.unopened.items() if name in self.known}
        self.references |= after.references
        self.exported = after.exported | self.exported
        self.exported_behind = after.exported_behind | self.exported_behind
        if _texts(after.folder) != _texts(before.folder) or len(after.left) != len(before.left):
            self.folder = nowhere(after.folder.line if after.folder else 0)
        if after.arguments != before.arguments:
            self.arguments = None

    def assign(self, name: str, value: Value, append: bool = False, line: int = 0) -> None:
        """`NAME=value`, or `NAME+=value`."""
        if append and name in self.unsure:
            self.forget(name, line)  # what it is added to is not known
            return
        if name in self.references:
            self.forget(self.references[name], line)
            self.forget(name, line)
            return
        self.touched[name] = line
        self.unopened.pop(name, None)
        if self.exports_all:
            self.exported[name] = line
        self.unsure.pop(name, None)
        self.kept_back.pop(name, None)
        self.removed -= {name}
        before = self.known.get(name)
        if (append and _length(before) + _length(value) > _LONGEST) or _length(value) > _LONGEST:
            self.forget(name, line)
            return
        if append and isinstance(value, list):
            value = [*(before if isinstance(before, list) else [before] if before else []), *value]
        elif append and isinstance(before, Traced) and isinstance(value, Traced):
            value = before + value
        elif append and isinstance(before, list) and isinstance(value, Traced):
            value = [(before[0] if before else Traced()) + value, *before[1:]]
        self.known[name] = value

    def assign_element(self, name: str, index: str, value: Traced, append: bool, line: int) -> None:
        """`NAME[index]=value`, `NAME[index]+=value`; an array of which nobody knows all is forgotten."""
        place = self.number(index)
        before = self.known.get(name)
        elements = list(before) if isinstance(before, list) else [] if before is None else [before]
        if place is None or not 0 <= place <= len(elements) or name in self.unsure:
            self.forget(name, line)
            return
        elements[place : place + 1] = [elements[place] + value if append and place < len(elements) else value]
        self.assign(name, elements, line=line)

    def remove(self, name: str, line: int) -> None:
        """`unset NAME`."""
        self.assign(name, Traced(), line=line)
        self.exported.pop(name, None)
        self.removed |= {name}

    @property
    def cuts_at_blanks(self) -> bool:
        """Whether words are cut, and arrays joined, at blanks: no IFS of the script's own says otherwise."""
        value = self.known.get("IFS")
        is_usual = isinstance(value, Traced) and ("IFS" in self.removed or value.text in (" ", " \t\n"))
        return not self.is_set("IFS") or is_usual

    def is_cut_otherwise(self, text: str) -> bool:
        """Whether an unquoted value may make other words than its blanks make of it."""
        value = self.known.get("IFS")
        marks = value.text if isinstance(value, Traced) else "$"
        return not self.cuts_at_blanks and ("$" in marks or any(one in marks or one.isspace() for one in text))

    def forget(self, name: str, line: int) -> None:
        """From here on nobody can tell what `name` is."""
        self.touched[name] = line
        self.unopened.pop(name, None)
        self.known.pop(name, None)
        self.unsure[name] = line

    def may_be_set_over(self, line: int, by: str) -> None:
        """From here on nobody can tell of any variable whether it is still what it was."""
        for name in self.known.keys() - self.given:
            self.unopened[name] = self.unopened.get(name, frozenset()) | {(line, by)}

    def used(self, name: str) -> Value | None:
        """What a variable is, put down as used where it may have been set over."""
        for one in self.unopened.get(name, ()):
            self.used_behind.setdefault(one, set()).add(name)
        return self.known.get(name)

    def refer(self, name: str, target: str, line: int) -> None:
        """`declare -n NAME=target`: what is assigned to one is assigned to the other."""
        for one in (target,) if target.isidentifier() else self.known.keys() - self.given:
            self.forget(one, line)
        self.forget(name, line)
        self.references[name] = target

    def export(self, name: str, line: int, behind: int | None = None) -> None:
        """Export it. behind: how many commands stand before; None where that is of no matter."""
        self.exported[name] = line
        self.exported_behind.pop(name, None)
        if behind is not None:
            self.exported_behind[name] = behind

    def hide(self, name: str) -> None:
        """`local NAME`: it is another one up to the function's end."""
        self.own.setdefault(name, self.known.get(name))

    def leave_function(self, outside: State) -> None:
        """What the function has hidden is again what it was `outside`, and so are the arguments."""
        for name in self.own:
            self.known.pop(name, None)
            self.unsure.pop(name, None)
            if name in outside.known:
                self.known[name] = outside.known[name]
            if name in outside.unsure:
                self.unsure[name] = outside.unsure[name]
        self.is_in_function = outside.is_in_function
        self.own, self.references = dict(outside.own), dict(outside.references)
        self.arguments = None if outside.arguments is None else list(outside.arguments)

    def reckon(self, text: str, line: int) -> int | None:
        """`((text))`: one assignment is followed; of more, what is set is forgotten. Returns its value, as known."""
        found = numbers_set(text)
        number = self.number(found.value if found.value is not None else text)
        if not found.names:
            return number
        for name in found.names:
            self.forget(name, line)
        if number is not None and found.value is not None:
            self.assign(found.names[0], Traced.on(str(number), line), line=line)
        return None

    def number(self, text: str) -> int | None:
        """Arithmetic without assignments; None where nobody can tell."""

        def digits(name: str) -> str | None:
            value = self.used(name)
            known = value.text.strip() if isinstance(value, Traced) else ""
            return known if re.fullmatch(r"-?(?:0|[1-9]\d*)", known) else None

        return reckoned(self._with_its_arguments(text), digits)

    def _with_its_arguments(self, text: str) -> str:
        """An arithmetic text with `$1` and `$#` put in, as far as they are known."""

        def put_in(match: re.Match[str]) -> str:
            name = match["braced"] or match["bare"]
            return match[0] if not is_argument(name) else self.argument(name, Traced(match[0])).text

        return VARIABLE.sub(put_in, text)

    def is_set(self, name: str) -> bool:
        """Whether the script has set it, or Slurm does, to something that is known or not."""
        return name in self.known or name in self.unsure or name in self.kept_back

    def is_taken_to_be_unset(self, name: str) -> bool:
        """Whether it counts as unset where a script asks for it; what every job has may be anything."""
        is_so = not self.is_set(name) and not is_every_jobs(name)
        if is_so and not is_argument(name):
            self.taken_unset[name] = None
        return is_so

    def is_known(self, name: str) -> bool:
        """Whether the script has set it to something that is told."""
        return name in self.known

    def why_unknown(self, name: str) -> str:
        """Of a variable whose value nobody can tell, why."""
        if is_argument(name):
            given = "" if self.arguments is None else f"; given are {len(self.arguments)}"
            return f"${name} is what the script is called with{given}"
        if name in self.kept_back and name not in self.unsure:
            return (
                f"{name} is set in line {self.kept_back[name]} and not exported, so the shell within does not have it"
            )
        if name in self.unsure:
            where = "in a loop or under a condition that is not known, or not followed"
            return f"{name} is set in line {self.unsure[name]}, {where}"
        if name in self.known:
            return f"{name} is cut into words at what the script has set IFS to"
        return f"the script does not set {name}"

    def argument(self, name: str, written: Traced) -> Traced:
        """`$1`, `$#`, `$@`; what nobody has said is missing, and so is what is behind the last one."""
        if name == "0":
            return in_braces(written)
        if self.arguments is None or (name.isdigit() and int(name) > len(self.arguments)):
            self.missing.add(name)
            return in_braces(written)
        if name == "#":
            return Traced.on(str(len(self.arguments)), written.line)
        return joined(self.arguments, " ") if name in "@*" else self.arguments[int(name) - 1]


def is_argument(name: str) -> bool:
    """Whether it is one of those that a script, or a function, is called with."""
    return name.isdigit() or name in ("@", "*", "#")


def names_in(text: str) -> list[str]:
    """The variables that are left in a value because nobody knows them."""
    return [match["braced"] or match["bare"] for match in VARIABLE.finditer(text)]


def in_braces(written: Traced) -> Traced:
    """`${NAME}` for `$NAME`, so that what follows it cannot become part of the name."""
    match = VARIABLE.fullmatch(written.text)
    return written if match is None else Traced.on("${" + (match["braced"] or match["bare"]) + "}", written.line)


def nowhere(line: int) -> Traced:
    """A folder that nobody knows since `line`."""
    return Traced.on("$(pwd)", line)


def _length(value: Value | None) -> int:
    return sum(len(one) for one in value) if isinstance(value, list) else len(value or Traced())


def _put_back(now: dict[str, Any], then: dict[str, Any], name: str) -> None:
    """Make `name` what it was `then`."""
    now.pop(name, None)
    if name in then:
        now[name] = then[name]


def _texts(value: Value | None) -> list[str] | str | None:
    if isinstance(value, list):
        return [one.text for one in value]
    return None if value is None else value.text
