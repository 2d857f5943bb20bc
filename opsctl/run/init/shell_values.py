"""Evaluate words, arithmetic and tests of a shell script, as far as the script alone decides them. Pure.

What the script does not decide stays as written, `${HOME}` or `$(date)`: a value that has a `$` left is not known.
"""

from __future__ import annotations

import ast
import operator as op
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from opsctl.run.init.shell_syntax import Operator, Part, Token, Traced, Word, joined, parsed, quoted_parts

VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*|\d+|[@*#])\}|(?P<bare>[A-Za-z_]\w*|[\d@*#]))")
_EXPANSION = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?:\[(?P<index>[@*]|\d+)\])?(?:(?P<operator>:?[-=+?])(?P<word>.*))?", re.DOTALL
)
_FOLDER = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?")
_ECHO = re.compile(r"\$\((?P<command>\s*echo\s.*)\)", re.DOTALL)
_ARITHMETIC = re.compile(r"\$\(\((?P<text>.*)\)\)", re.DOTALL)
#: A value's words where the shell splits it at blanks. An expansion that is not known stays in one piece.
_FIELD = re.compile(r"(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{[^}]*\}|`[^`]*`|\S)+")
_FILES = re.compile(r"[*?]|\[[^]]+\]")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
#: Slurm, the login or the shell may set these, to unknown values.
_SET_FOR_EVERY_JOB = re.compile(
    r"(?:SLURM|SLURMD|SRUN|SBATCH|CUDA|GPU|ROCR|HIP|NVIDIA|PMIX?|MODULE|LMOD|CONDA|XDG|LC|SSH|BASH)_?\w*"
    r"|HOME|USER|LOGNAME|PATH|MANPATH|LD_LIBRARY_PATH|HOST|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|PWD|OLDPWD|SHELL|SHLVL"
    r"|TMPDIR|TMP|TEMP|LANG|TERM|MAIL|EDITOR|UID|EUID|GROUPS|PPID|RANDOM|SECONDS|LINENO|OPTIND|FUNCNAME|_"
)
_NUMBER_SET = re.compile(
    r"(?:\+\+|--)\s*(?P<stepped>[A-Za-z_]\w*)"
    r"|(?P<name>[A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?:\*|/|%|\+|-|<<|>>|&|\||\^)?=(?!=))"
)
#: Python parses these differently from the shell: `126_953`, `2#101`, `!a == b`, `-2**2`.
_OTHERWISE = re.compile(r"\d_|#|!(?!=)|-\s*\(?\w+\)?\s*\*\*")
_LONGEST = 1 << 17  # characters of a value: Linux hands a program no longer word
_UNDECIDED = "in a way that is not evaluated: a loop, a function, or a branch that the script does not decide"

Value = Traced | tuple[Traced, ...]  # a tuple: an array


@dataclass(frozen=True)
class Variable:
    """A variable that the script, or Slurm, sets. `value` None: not known, and `why` is the reason."""

    value: Value | None
    line: int
    is_exported: bool = False
    sources: int = 0  # commands before its assignment that may set variables again
    why: str = ""

    @property
    def first(self) -> Traced | None:
        """The value as `$NAME` gives it."""
        return (self.value[0] if self.value else Traced()) if isinstance(self.value, tuple) else self.value


@dataclass
class Asked:
    """Facts about the whole script: variables that it uses and does not set."""

    arguments: set[str] = field(default_factory=set)  # asked for, and not given
    taken_unset: dict[str, None] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)  # of `declare -n`
    #: Commands that may have set variables again, with the variables that are used behind them.
    used_behind: dict[tuple[int, str], set[str]] = field(default_factory=dict)


@dataclass
class State:
    """A shell's state at one place of a script."""

    asked: Asked
    variables: dict[str, Variable]
    arguments: Sequence[Traced] | None = None  # None: not given
    folder: Traced | None = None  # None: where the script started
    exports_all: bool = False  # since `set -a`
    sources: tuple[tuple[int, str], ...] = ()  # commands that may have set any variable
    touched: dict[str, int] = field(default_factory=dict)  # variables that were set or forgotten -> line

    def copy(self) -> State:
        """Return an independent copy of the state."""
        return replace(self, variables=dict(self.variables), touched=dict(self.touched))

    # Variables

    def assign(self, name: str, value: Value, append: bool = False, line: int = 0) -> None:
        """Assign `NAME=value` or `NAME+=value`."""
        if name in self.asked.references:
            return self.refer(name, line)
        before = self.variables.get(name)
        if append and before is not None:
            if before.value is None:
                return self.forget(name, line)
            if isinstance(value, tuple) or isinstance(before.value, tuple):
                old = before.value if isinstance(before.value, tuple) else (before.value,)
                if isinstance(value, tuple):
                    value = (*old, *value)
                else:
                    value = ((old[0] if old else Traced()) + value, *old[1:])
            else:
                value = before.value + value
        if len(value.text if isinstance(value, Traced) else joined(value).text) > _LONGEST:
            return self.forget(name, line)
        is_exported = self.exports_all or (before is not None and before.is_exported)
        self.touched[name] = line
        self.variables[name] = Variable(value, line, is_exported, len(self.sources))
        return None

    def forget(self, name: str, line: int, why: str = "") -> None:
        """Mark the value of `name` as unknown from here on."""
        before = self.variables.get(name)
        self.touched[name] = line
        why = why or f"{name} is set in line {line}, {_UNDECIDED}"
        self.variables[name] = Variable(None, line, self.exports_all or bool(before and before.is_exported), why=why)

    def refer(self, name: str, line: int) -> None:
        """Record `declare -n NAME`, or an assignment to it: it may set any variable."""
        self.asked.references.add(name)
        for one in [*self.variables]:
            self.forget(one, line)

    def export(self, name: str, is_exported: bool = True) -> None:
        """Export a variable if it is set, or no longer."""
        if name in self.variables:
            self.variables[name] = replace(self.variables[name], is_exported=is_exported)

    def used(self, name: str) -> Variable | None:
        """Return a variable; record it as used behind commands that may have set it again."""
        found = self.variables.get(name)
        if found is not None and found.value is not None and found.line:
            for one in self.sources[found.sources :]:
                self.asked.used_behind.setdefault(one, set()).add(name)
        return found

    def is_taken_unset(self, name: str) -> bool:
        """Return whether it counts as unset where the script asks: the script does not set it, nor does a job."""
        is_so = name not in self.variables and not _SET_FOR_EVERY_JOB.fullmatch(name)
        if is_so and not is_argument(name):
            self.asked.taken_unset[name] = None
        return is_so

    def why_unknown(self, name: str) -> str:
        """Explain why the value of `name` is not known."""
        if is_argument(name):
            given = "" if self.arguments is None else f"; arguments given: {len(self.arguments)}"
            return f"${name} is an argument of the script or function{given}"
        found = self.variables.get(name)
        if found is None:
            return f"the script does not set {name}"
        return found.why or f"{name} is split by the script's own IFS"

    def argument(self, name: str, is_needed: bool = True) -> Traced | None:
        """Return `$1`, `$#` or `$@`; None if it is not given. is_needed: it is then missing."""
        if self.arguments is None or (name.isdigit() and not 0 < int(name) <= len(self.arguments)):
            self.asked.arguments |= {name} - {"0"} if is_needed else set()
            return None
        if name == "#":
            return Traced.on(str(len(self.arguments)), 0)
        return joined(self.arguments, " ") if name in "@*" else self.arguments[int(name) - 1]

    # Words

    def text(self, parts: Iterable[Part]) -> Traced:
        """Expand the parts of a word into one text, as an assignment or double quotes do."""
        return joined(self.expanded(part) for part in parts)

    def fields(self, words: Iterable[Word]) -> list[Traced]:
        """Expand words as a command gets them. A pattern of files or braces is not known: `$(echo PATTERN)`."""
        return [field for word in words for field in self._fields(word)]

    def _fields(self, word: Word) -> list[Traced]:
        elements = self._elements(word.parts)
        if elements is not None:
            return elements
        found: list[Traced] = []
        current, is_open_word, may_match = Traced(), False, False
        for part in word.parts:
            value = self.expanded(part)
            if not part.is_expansion or part.is_quoted or value.text == in_braces(part.traced).text:
                may_match = may_match or (not part.is_quoted and self._may_match(part, value))
                current, is_open_word = current + value, True
                continue
            if "IFS" in self.variables:
                current, is_open_word = current + in_braces(part.traced), True
                continue
            may_match = may_match or self._may_match(part, value)
            if value.text[:1].isspace() and is_open_word:
                found.append(current)
                current, is_open_word = Traced(), False
            for number, match in enumerate(_FIELD.finditer(value.text)):
                if number:
                    found.append(current)
                    current = Traced()
                current, is_open_word = current + value[match.start() : match.end()], True
            if value.text[-1:].isspace() and is_open_word:
                found.append(current)
                current, is_open_word = Traced(), False
        found += [current] if is_open_word else []
        return [self._not_a_pattern(one) for one in found] if may_match else found

    @staticmethod
    def _may_match(part: Part, value: Traced) -> bool:
        return bool(_FILES.search(value.text) or (not part.is_expansion and _BRACES.search(value.text)))

    @staticmethod
    def _not_a_pattern(found: Traced) -> Traced:
        rest = VARIABLE.sub("", found.text)
        is_pattern = not is_open(rest) and (_FILES.search(rest) or _BRACES.search(rest))
        return Traced.on(f"$(echo {found.text})", found.line) if is_pattern else found

    def _elements(self, parts: list[Part]) -> list[Traced] | None:
        """Return the elements of an array if that is all of the word; None otherwise."""
        parts = [part for part in parts if part.traced.text]
        match = _EXPANSION.fullmatch(_inside(parts[0].traced.text)) if len(parts) == 1 else None
        if match is None or not parts[0].is_expansion or match["operator"]:
            return None
        mark = match["index"] if match["name"] not in ("@", "*") else match["name"]
        if mark not in ("@", "*") or (parts[0].is_quoted and mark == "*"):
            return None
        found = self.arguments if match["name"] in ("@", "*") else self._array(match["name"])
        if found is None or parts[0].is_quoted:
            return None if found is None else list(found)
        if "IFS" in self.variables:
            return None
        return [one[match.start() : match.end()] for one in found for match in _FIELD.finditer(one.text)]

    def _array(self, name: str) -> tuple[Traced, ...] | None:
        variable = self.used(name)
        value = variable.value if variable else None
        return (value,) if isinstance(value, Traced) else value

    def expanded(self, part: Part) -> Traced:
        """Expand one part. Unknown parts stay as written, plain variables as `${NAME}`."""
        written = part.traced
        if not part.is_expansion:
            return written
        if _FOLDER.fullmatch(written.text):
            return Traced.on(self.folder.text, written.line) if self.folder else in_braces(written)
        if match := _ARITHMETIC.fullmatch(written.text):
            number = self.calculate(match["text"], written.line)
            return written if number is None else Traced.on(str(number), written.line)
        if match := _ECHO.fullmatch(written.text):
            return self._echoed(written[match.start("command") : match.end("command")]) or written
        match = None if written.text[:2] == "$(" else _EXPANSION.fullmatch(_inside(written.text))
        if match is None or not written.text.startswith("$"):
            return written
        name, index = match["name"], match["index"]
        if is_argument(name):
            value = (
                self.argument(name, not match["operator"]) if (name, "IFS" in self.variables) != ("*", True) else None
            )
        elif index is None:
            variable = self.used(name)
            value = variable.first if variable else None
        else:
            elements = self._array(name)
            if elements is None or (index == "*" and "IFS" in self.variables):
                return written
            chosen = elements if index in "@*" else elements[int(index) : int(index) + 1]
            value = joined(chosen, " ")
        if match["operator"]:
            return self._with_operator(match, written, value)
        return in_braces(written) if value is None else value

    def _echoed(self, source: Traced) -> Traced | None:
        """Return what `$(echo WORDS)` prints; None if it is more than that, or not known."""
        nodes = parsed(source)[0].bodies
        if len(nodes) != 1 or nodes[0].kind != "simple" or nodes[0].redirections:
            return None
        words = self.fields(nodes[0].words)[1:]
        is_known = all("$" not in one.text and not one.text.startswith("-") for one in words)
        return Traced.on(joined(words, " ").text, source.line) if is_known else None

    def _with_operator(self, match: re.Match[str], written: Traced, value: Traced | None) -> Traced:
        """Expand `${NAME:-word}` and similar forms."""
        name, operator, start = match["name"], match["operator"], 2 + match.start("word")
        if value is None and (name in self.variables or not self.is_taken_unset(name)):
            return in_braces(Traced.on("${" + name + "}", written.line)) if operator[-1] == "?" else written
        if value is not None and is_open(value.text) and not has_text(value.text) and ":" in operator:
            return written
        has_one = value is not None and (bool(value.text) or ":" not in operator)
        word = written[start:-1]
        if len(word.text) > 1 and word.text[0] == word.text[-1] and word.text[0] in "\"'":
            word = word[1:-1]
        if re.search(r"[\"'\\]", word.text):
            return written
        if operator[-1] == "?":
            return value if value is not None and has_one else Traced.on("${" + name + "}", written.line)
        is_word = has_one == (operator[-1] == "+")
        chosen = self.text(quoted_parts(word, "")) if is_word else value or Traced()
        if operator[-1] == "=" and not has_one:
            self.assign(name, chosen, line=written.line)
        return chosen

    # Arithmetic and tests

    def calculate(self, text: str, line: int) -> int | None:
        """Return the value of `$((text))`; None if it is not known. What it sets is forgotten."""
        names = [match["stepped"] or match["name"] for match in _NUMBER_SET.finditer(text)]
        for name in names:
            self.forget(name, line)
        if names:
            return None

        def digits(match: re.Match[str]) -> str:
            name = match["dollar"] or match["bare"]
            value = self.argument(name) if is_argument(name) else (self.used(name) or Variable(None, 0)).first
            known = value.text.strip() if value else ""
            return f"({known})" if re.fullmatch(r"-?(?:0|[1-9]\d*)", known) else "?"

        text = re.sub(r"\$\{?(?P<dollar>\w+|#)\}?|(?<!\w)(?P<bare>[A-Za-z_]\w*)", digits, text)
        if _OTHERWISE.search(text):
            return None
        try:
            return _number(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return None

    def truth(self, inside: Sequence[Token], is_double: bool) -> bool | None:
        """Return whether the test holds; None if the script does not decide. is_double: of `[[ ... ]]`."""
        for joining, deciding in (("||", True), ("&&", False)):
            place = next((n for n, one in enumerate(inside) if isinstance(one, Operator) and one.text == joining), None)
            if place is not None and is_double:
                left = self.truth(inside[:place], is_double)
                if left is deciding:
                    return deciding
                right = self.truth(inside[place + 1 :], is_double)
                return deciding if right is deciding else None if None in (left, right) else not deciding
        words = [one for one in inside if isinstance(one, Word)]
        if not words or len(words) < len(inside):
            return None
        if words[0].plain == "!":
            found = self.truth(words[1:], is_double)
            return None if found is None else not found
        texts = [one.text for one in (map(self._text_of, words) if is_double else self.fields(words))]
        if len(texts) < 2:
            texts = ["-n", *(texts or [""])]
        if len(texts) == 2 and texts[0] in ("-z", "-n"):
            text = VARIABLE.sub(self._without_unset, texts[1])
            return (not text) == (texts[0] == "-z") if has_text(text) or not is_open(text) else None
        if len(texts) != 3 or any(is_open(one) for one in texts):
            return None
        left_text, operator, right_text = texts
        if operator in ("=", "==", "!="):
            pattern = self._pattern(words[2]) if is_double else re.escape(right_text)
            return None if pattern is None else (re.fullmatch(pattern, left_text, re.S) is None) == (operator == "!=")
        if operator in _TESTS and all(re.fullmatch(r"-?(0|[1-9]\d*)", one) for one in (left_text, right_text)):
            return bool(_TESTS[operator](int(left_text), int(right_text)))
        return None

    def matches(self, text: str, patterns: Iterable[Word]) -> bool | None:
        """Return whether `text` is of one of the patterns of a `case`; None if that is not known."""
        found = [self._pattern(one) for one in patterns]
        if ".*" in found:
            return True
        if is_open(text) or None in found:
            return None
        return any(re.fullmatch(one, text, re.DOTALL) for one in found if one is not None)

    def _text_of(self, word: Word) -> Traced:
        return self.text(word.parts)

    def _without_unset(self, match: re.Match[str]) -> str:
        return "" if self.is_taken_unset(match["braced"] or match["bare"]) else match[0]

    def _pattern(self, word: Word) -> str | None:
        """Return a pattern with `*` and `?` as a regular expression; None for any other pattern."""
        found = ""
        for part in word.parts:
            text = self.expanded(part).text
            if is_open(text) or (not part.is_quoted and re.search(r"[\[\\]|[?*+@!]\(", text)):
                return None
            escaped = re.escape(text)
            found += escaped if part.is_quoted else escaped.replace(r"\*", ".*").replace(r"\?", ".")
        return found


_TESTS = {"-eq": op.eq, "-ne": op.ne, "-lt": op.lt, "-le": op.le, "-gt": op.gt, "-ge": op.ge}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    **{ast.Eq: op.eq, ast.NotEq: op.ne, ast.Lt: op.lt},
    **{ast.LtE: op.le, ast.Gt: op.gt, ast.GtE: op.ge},
}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {ast.Add: op.add, ast.Sub: op.sub, ast.Mult: op.mul}


def _number(node: ast.expr) -> int:
    """Evaluate as the shell does: division truncates towards zero. Raises ValueError for all but whole numbers."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = -_number(node.operand)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        found = int(_COMPARISONS[type(node.ops[0])](_number(node.left), _number(node.comparators[0])))
    elif isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if type(node.op) in _OPERATIONS:
            found = _OPERATIONS[type(node.op)](left, right)
        elif isinstance(node.op, ast.Pow) and 0 <= right <= 64:
            found = int(left**right)
        elif isinstance(node.op, (ast.Div, ast.Mod)):
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            found = quotient if isinstance(node.op, ast.Div) else left - right * quotient
        else:
            raise ValueError("not arithmetic of whole numbers")
    else:
        raise ValueError("not arithmetic of whole numbers")
    if abs(found) >= 2**63:
        raise ValueError("more than the shell calculates with")
    return found


def _inside(written: str) -> str:
    return written[2:-1] if written.startswith("${") else written[1:]


def is_argument(name: str) -> bool:
    """Return whether it is a variable that a script is called with."""
    return name.isdigit() or name in ("@", "*", "#")


def names_in(text: str) -> list[str]:
    """Return the variables that are left in a value because they are not known."""
    return [match["braced"] or match["bare"] for match in VARIABLE.finditer(text)]


def in_braces(written: Traced) -> Traced:
    """Return `${NAME}` for `$NAME`, so that what follows it cannot become part of the name."""
    match = VARIABLE.fullmatch(written.text)
    return Traced.on("${" + (match["braced"] or match["bare"]) + "}", written.line) if match else written


def is_open(text: str) -> bool:
    """Return whether something is left in a value that is not known."""
    return "$" in text or "`" in text


def has_text(text: str) -> bool:
    """Return whether a value is not empty, whatever its variables are."""
    rest = VARIABLE.sub("", text)
    return rest != "" and not is_open(rest)


def is_known_but_for_variables(text: str) -> bool:
    """Return whether only plain variables are left in a value."""
    return not is_open(VARIABLE.sub("", text))


def why_open(text: str) -> str:
    """Explain why a value with more than variables left in it is not known."""
    if "$((" in text:
        return "this arithmetic is not evaluated, or no shell does: a number with _ in it is none to a shell"
    if "$(echo " in text:
        return "it is a pattern of files or words, which is not expanded"
    if re.search(r"\$\{[^}]*[^}\w]", text):
        return "this expansion is not evaluated"
    return "it is the output of a command"
