"""The variables of a shell script, and the values of its words, arithmetic and tests. Pure.

A value that the script does not decide stays as written, `${HOME}` or `$(date)`: if a `$` is left, it is not known.
"""

from __future__ import annotations

import ast
import operator as op
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from opsctl.run.init.shell_syntax import Part, Word, quoted_parts

VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*|\d+|[@*#])\}|(?P<bare>[A-Za-z_]\w*|[\d@*#]))")
_EXPANSION = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@#])(?:\[(?P<index>@|\d+)\])?(?:(?P<operator>:?[-=?])(?P<word>[^\"'\\]*|\"[^\"\\\s*?[]*\"))?",
    re.DOTALL,
)
FOLDER = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?")
#: A value's words where the shell splits it at blanks. An expansion that is not known stays in one piece.
_FIELD = re.compile(r"(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{[^}]*\}|`[^`]*`|\S)+")
_PATTERN = re.compile(r"[*?]|\[[^]]+\]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
#: Slurm, the login or the shell may set these, to unknown values.
_SET_FOR_EVERY_JOB = re.compile(
    r"(?:SLURM|SLURMD|SRUN|SBATCH|CUDA|ROCR|HIP|NVIDIA|PMIX?|LMOD|CONDA|XDG|LC|SSH|BASH)_?\w*"
    r"|GPU_DEVICE_\w+|MODULE(?:S?HOME|PATH|_\w+)|HOME|USER|LOGNAME|PATH|MANPATH|LD_LIBRARY_PATH|HOST|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|PWD|OLDPWD|SHELL|SHLVL"
    r"|TMPDIR|TMP|TEMP|LANG|TERM|MAIL|EDITOR|UID|EUID|GROUPS|PPID|RANDOM|SECONDS|LINENO|OPTIND|FUNCNAME|_"
)
#: An expansion or arithmetic that sets a variable: `N++`, `N += 1`, `${N:=1}`.
SETS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
NAME = re.compile(r"[A-Za-z_]\w*")

Value = str | tuple[str, ...]  # a tuple: an array


@dataclass(frozen=True)
class Variable:
    """A variable that the script, or Slurm, sets. `value` None: not known, and `why` is the reason."""

    value: Value | None
    line: int
    is_exported: bool = False
    adds_to_callers: bool = False  # `PATH=more:$PATH`
    why: str = ""


@dataclass(frozen=True)
class SetUp:
    """A command or an export that makes the environment of what follows."""

    words: tuple[str, ...]
    line: int
    is_sure: bool
    exports: str = ""  # the variable
    folder: str | None = None  # in which it is done; None: where the script started


@dataclass
class State:
    """A shell's state at one place of a script. `@` in `variables`: the script's arguments, if they are known."""

    variables: dict[str, Variable]
    taken_unset: dict[str, None] = field(default_factory=dict)  # of the whole script
    folder: str | None = None  # None: where the script started
    has_ended: bool = False  # by `exit`
    set_up: tuple[SetUp, ...] = ()

    def copy(self) -> State:
        """Return an independent copy of the state."""
        return replace(self, variables=dict(self.variables))

    def assign(self, name: str, value: Value, line: int, append: bool = False) -> None:
        """Assign `NAME=value` or `NAME+=value`."""
        before = self.variables.get(name)
        if append and before is not None:
            if before.value is None or (isinstance(before.value, tuple) and isinstance(value, str)):
                return self.forget(name, line)
            value = (*self.elements(name), *value) if isinstance(value, tuple) else f"{before.value}{value}"
        self.variables[name] = Variable(value, line, bool(before and before.is_exported))
        return None

    def forget(self, name: str, line: int) -> None:
        """Mark the value of `name` as unknown from here on."""
        before = self.variables.get(name)
        why = f"{name} is set in line {line}, in a way that is not read or that the script does not decide"
        self.variables[name] = Variable(None, line, bool(before and before.is_exported), why=why)

    def export(self, name: str, is_exported: bool = True) -> None:
        """Export a variable if it is set, or no longer."""
        if name in self.variables:
            self.variables[name] = replace(self.variables[name], is_exported=is_exported)

    def elements(self, name: str) -> tuple[str, ...]:
        """Return the elements of a known variable; one for a plain value."""
        value = self.variables[name].value
        return (value,) if isinstance(value, str) else value or ()

    def why_unknown(self, name: str) -> str:
        """Explain why the value of `name` is not known."""
        if is_argument(name):
            return f"${name} is an argument of the script or function: give the script's arguments after --"
        found = self.variables.get(name)
        if found is None:
            return f"the script does not set {name}"
        return found.why or f"{name} is split by the script's own IFS"

    def is_taken_unset(self, name: str) -> bool:
        """Return whether it counts as unset where the script asks: the script does not set it, nor does a job."""
        if is_argument(name):
            return "@" not in self.variables or self.variables["@"].value is not None
        is_so = name not in self.variables and not _SET_FOR_EVERY_JOB.fullmatch(name)
        self.taken_unset.update({name: None} if is_so else {})
        return is_so

    def known(self, name: str, index: str | None = None) -> str | None:
        """Return the value of `$NAME`, `${NAME[index]}`, `$1` or `$#`; None if it is not known."""
        if is_argument(name):
            name, index = "@", str(int(name) - 1) if name.isdigit() else name
        variable = self.variables.get(name)
        if variable is None or variable.value is None or index in ("-1", "*"):
            return None
        elements = self.elements(name)
        if index in ("@", "#"):
            return " ".join(elements) if index == "@" else str(len(elements))
        place = int(index or 0)
        return elements[place] if place < len(elements) else None if name == "@" else ""

    # Words

    def text(self, parts: Iterable[Part]) -> str:
        """Expand the parts of a word into one text, as an assignment or double quotes do."""
        return "".join(self.expanded(part) for part in parts)

    def fields(self, words: Iterable[Word]) -> list[str]:
        """Expand words as a command gets them. A pattern of files or braces is not known: `$(echo PATTERN)`."""
        return [one for word in words for one in self._fields(word)]

    def _fields(self, word: Word) -> list[str]:
        elements = self._elements(word.parts)
        if elements is not None:
            return elements
        found: list[str] = []
        current: str | None = None  # None: no word is begun
        is_pattern = False
        for part in word.parts:
            value = self.expanded(part)
            is_pattern = is_pattern or (not part.is_quoted and _is_pattern(value))
            is_split = part.is_expansion and not part.is_quoted and value != in_braces(part.text)
            if is_split and "IFS" in self.variables:
                value, is_split = in_braces(part.text), False
            if not is_split:
                current = (current or "") + value
                continue
            pieces = _FIELD.findall(value)
            if current is not None and value[:1].isspace():
                found.append(current)
                current = None
            if pieces:
                found += [(current or "") + pieces[0], *pieces[1:]]
                current = None if value[-1:].isspace() else found.pop()
        found += [] if current is None else [current]
        return [_unmatched(one) for one in found] if is_pattern else found

    def _elements(self, parts: list[Part]) -> list[str] | None:
        """Return the elements of an array if that is all of the word; None otherwise."""
        parts = [part for part in parts if part.text]
        match = _EXPANSION.fullmatch(_inside(parts[0].text)) if len(parts) == 1 else None
        if match is None or not parts[0].is_expansion or match["operator"]:
            return None
        variable = self.variables.get(match["name"])
        if variable is None or variable.value is None or "@" not in (match["name"], match["index"]):
            return None
        if parts[0].is_quoted:
            return list(self.elements(match["name"]))
        if "IFS" in self.variables:
            return None
        return [_unmatched(piece) for one in self.elements(match["name"]) for piece in _FIELD.findall(one)]

    def expanded(self, part: Part) -> str:
        """Expand one part. Unknown parts stay as written, plain variables as `${NAME}`."""
        written = part.text
        if not part.is_expansion:
            return written
        if FOLDER.fullmatch(written):
            return self.folder or in_braces(written)
        if written.startswith("$(("):
            number = self.calculate(written[3:-2], 0)
            return written if number is None else str(number)
        match = _EXPANSION.fullmatch(_inside(written)) if written[0] == "$" else None
        if match is None:
            return written
        name, operator = match["name"], match["operator"]
        value = self.known(name, match["index"])
        if operator is None:
            return in_braces(written) if value is None else value
        if operator[-1] == "?":
            return "${" + name + "}" if value is None else value
        if value is None:
            if not self.is_taken_unset(name):
                return written
        elif value or ":" not in operator:
            return written if is_open(value) and ":" in operator else value
        chosen = self.text(quoted_parts(match["word"].strip('"'), ""))
        if operator[-1] == "=":
            self.assign(name, chosen, 0)
        return chosen

    # Arithmetic and tests

    def calculate(self, text: str, line: int) -> int | None:
        """Return the value of `$((text))`; None if it is not known. A variable that it sets is forgotten."""
        if SETS.search(text):
            for name in NAME.findall(text):
                self.forget(name, line)
            return None

        def digits(match: re.Match[str]) -> str:
            known = (self.known(match[1]) or "").strip()
            return f"({known})" if re.fullmatch(r"-?(?:0|[1-9]\d*)", known) else "?"

        text = re.sub(r"\$?\{?([A-Za-z_]\w*|(?<=[${])\d+)\}?", digits, text)
        if not re.fullmatch(r"[\d\s()+*/%-]*", text) or "**" in text or re.search(r"\b0\d", text):
            return None
        try:
            return _number(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None

    def truth(self, words: Sequence[Word], is_double: bool) -> bool | None:
        """Return whether the test holds; None if the script does not decide. is_double: of `[[ ... ]]`."""
        if words and words[0].plain == "!":
            found = self.truth(words[1:], is_double)
            return None if found is None else not found
        texts = [self.text(one.parts) for one in words] if is_double else self.fields(words)
        if len(texts) < 2:
            texts = ["-n", *(texts or [""])]
        if len(texts) == 2 and texts[0] in ("-z", "-n"):
            names = names_in(texts[1])
            is_unset = bool(VARIABLE.fullmatch(texts[1])) and self.is_taken_unset(names[0])
            return None if is_open(texts[1]) and not is_unset else (is_unset or not texts[1]) == (texts[0] == "-z")
        if len(texts) != 3 or any(is_open(one) for one in texts):
            return None
        left, operator, right = texts
        if operator in ("=", "==", "!="):
            is_pattern = is_double and re.search(r"[*?[\\]|[+@!]\(", right)
            return None if is_pattern else (left == right) == (operator != "!=")
        if operator in _TESTS and all(re.fullmatch(r"-?(0|[1-9]\d*)", one) for one in (left, right)):
            return bool(_TESTS[operator](int(left), int(right)))
        return None


_TESTS = {"-eq": op.eq, "-ne": op.ne, "-lt": op.lt, "-le": op.le, "-gt": op.gt, "-ge": op.ge}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {ast.Add: op.add, ast.Sub: op.sub, ast.Mult: op.mul}


def _number(node: ast.expr) -> int:
    """Evaluate as the shell does: division truncates towards zero. Raises ValueError for all but whole numbers."""
    match node:
        case ast.Constant(value=int(found)):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_number(operand)
        case ast.BinOp(left=a, op=sign, right=b) if type(sign) in _OPERATIONS:
            found = _OPERATIONS[type(sign)](_number(a), _number(b))
        case ast.BinOp(left=a, op=ast.Div() | ast.Mod() as sign, right=b):
            left, right = _number(a), _number(b)
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            found = quotient if isinstance(sign, ast.Div) else left - right * quotient
        case _:
            raise ValueError("not arithmetic of whole numbers")
    if abs(found) >= 2**63:
        raise ValueError("more than the shell calculates with")
    return found


def _is_pattern(text: str) -> bool:
    rest = VARIABLE.sub("", text)
    return not is_open(rest) and bool(_PATTERN.search(rest))


def _unmatched(text: str) -> str:
    return f"$(echo {text})" if _is_pattern(text) else text


def _inside(written: str) -> str:
    return written[2:-1] if written.startswith("${") else written[1:]


def is_argument(name: str) -> bool:
    """Return whether it is a variable that a script is called with."""
    return name.isdigit() or name in ("@", "*", "#")


def names_in(text: str) -> list[str]:
    """Return the variables that are left in a value because they are not known."""
    return [match["braced"] or match["bare"] for match in VARIABLE.finditer(text)]


def in_braces(written: str) -> str:
    """Return `${NAME}` for `$NAME`, so that what follows it cannot become part of the name."""
    match = VARIABLE.fullmatch(written)
    return "${" + (match["braced"] or match["bare"]) + "}" if match else written


def is_open(text: str) -> bool:
    """Return whether something is left in a value that is not known."""
    return "$" in text or "`" in text


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
