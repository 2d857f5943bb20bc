"""What a script's variables are worth at one place of it, as far as the script alone tells.

What it does not tell stays as it is written, `${HOME}` or `$(date)`: a value with a `$` left in it is not known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from opsctl.beginning.shell_words import Part, Word, fields_of, tokens_of
from opsctl.beginning.traced import Traced, joined

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*|\d+)\}|(?P<bare>[A-Za-z_]\w*|\d))")
_WITH_OPERATOR = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*|\d+)(?P<operator>:?[-=+?])(?P<word>.*)\}", re.DOTALL)
_ELEMENTS = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)\[(?P<index>[@*]|\d+)\]\}")
_ARITHMETIC = re.compile(r"\$\(\((?P<text>.*)\)\)", re.DOTALL)
_NUMBER_SET = re.compile(
    r"(?:\+\+|--)\s*(?P<stepped>[A-Za-z_]\w*)"
    r"|(?P<name>[A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?P<by>\*|/|%|\+|-|<<|>>|&|\||\^)?=(?!=))"
)
_FOLDER = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?")
_MOST_DIGITS = 30  # of a number that is reckoned with

Value = Traced | list[Traced]  # a list: an array


class Values:
    """The variables of one run through a script."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._known: dict[str, Value] = {name: Traced.on(text, 0) for name, text in given.items()}
        #: Name -> line of what the script sets in a way that cannot be told: under a condition, in a loop.
        self.unsure: dict[str, int] = {}
        self.whole: set[str] = set()  # whatever is assigned to them is reckoned: `declare -i`
        self.touched: set[str] = set()  # what has been assigned or forgotten
        self.folder: Traced | None = None  # the last `cd`

    def assign(self, name: str, value: Value, append: bool = False) -> None:
        """`NAME=value`, or `NAME+=value`."""
        self.touched.add(name)
        self.unsure.pop(name, None)
        before = self._known.get(name)
        if append and isinstance(value, list):
            value = [*(before if isinstance(before, list) else [before] if before else []), *value]
        elif append and isinstance(before, Traced) and isinstance(value, Traced):
            value = before + value
        self._known[name] = value

    def forget(self, name: str, line: int) -> None:
        """From here on nobody can tell what `name` is."""
        self.touched.add(name)
        self._known.pop(name, None)
        self.unsure[name] = line

    def reckon(self, text: str, line: int, is_sure: bool) -> None:
        """`((text))`: one assignment is followed; of more, and where nobody can tell, what is set is forgotten."""
        found = list(_NUMBER_SET.finditer(text))
        names = [match["stepped"] or match["name"] for match in found]
        number = None
        if len(found) == 1 and is_sure and found[0].start() == len(text) - len(text.lstrip()):
            match, right = found[0], text[found[0].end() :]
            if match[0].endswith("=") and "[" not in match[0]:
                number = self._reckoned(f"{names[0]} {match['by']} ({right})" if match["by"] else right)
        for name in names:
            self.forget(name, line)
        if number is not None:
            self.assign(names[0], Traced.on(str(number), line))

    def is_set(self, name: str) -> bool:
        """Whether the script has set it, or Slurm does, to something that is known or not."""
        return name in self._known or name in self.unsure

    def why_unknown(self, name: str) -> str:
        """Of a variable whose value nobody can tell, why."""
        if name.isdigit():
            return f"${name} is what the script is called with"
        if name in self.unsure:
            where = "in a loop or under a condition that is not known, or not followed"
            return f"{name} is set in line {self.unsure[name]}, {where}"
        return f"the script does not set {name}"

    def text_of(self, name: str) -> Traced | None:
        """A variable's value, an array's with blanks between; None where nobody can tell it."""
        value = self._known.get(name)
        return joined(value, " ") if isinstance(value, list) else value

    def text(self, parts: Iterable[Part]) -> Traced:
        """The parts of a word as one text, as an assignment or double quotes make it."""
        return joined(self._of(part) for part in parts)

    def fields(self, words: Iterable[Word]) -> list[Traced]:
        """The words as a command gets them: what an unquoted expansion brings is cut at its blanks."""
        found: list[Traced] = []
        for word in words:
            found += self._fields_of(word)
        return found

    def _fields_of(self, word: Word) -> list[Traced]:
        elements = self._elements(word.parts)
        if elements is not None:
            return elements
        done: list[Traced] = []
        current, open_word = Traced(), False
        for part in word.parts:
            value = self._of(part)
            if part.is_quoted or not part.is_expansion:
                current, open_word = current + value, True
                continue
            if value.text == in_braces(part.traced).text:
                current, open_word = current + value, True  # not known, so nobody knows its blanks
                continue
            cut = [joined(one.traced for one in each.parts) for each in fields_of(value)]
            starts_anew, ends = value.text[:1].isspace(), value.text[-1:].isspace()
            if cut and (starts_anew or not open_word):
                done += [current] if open_word else []
                current, open_word = cut.pop(0), True
            elif cut:
                current = current + cut.pop(0)
            for one in cut:
                done.append(current)
                current = one
            if ends and open_word:
                done.append(current)
                current, open_word = Traced(), False
        return [*done, current] if open_word else done

    def _elements(self, parts: list[Part]) -> list[Traced] | None:
        """Those of an array, where that is all that the word is."""
        said = [part for part in parts if part.traced.text or part.is_expansion]
        match = _ELEMENTS.fullmatch(said[0].traced.text) if len(said) == 1 else None
        if match is None or match["index"] not in "@*":
            return None
        value = self._known.get(match["name"])
        if not isinstance(value, list):
            return None if value is None else [value]
        return list(value)

    def _of(self, part: Part) -> Traced:
        if not part.is_expansion:
            return part.traced
        written = part.traced
        if match := _FOLDER.fullmatch(written.text):
            return self.folder or written
        if match := _VARIABLE.fullmatch(written.text):
            return self._variable(match["braced"] or match["bare"], written)
        if match := _ELEMENTS.fullmatch(written.text):
            return self._element(match["name"], match["index"], written)
        if match := _WITH_OPERATOR.fullmatch(written.text):
            return self._with_operator(match, written)
        if match := _ARITHMETIC.fullmatch(written.text):
            number = self._reckoned(match["text"])
            if number is None:
                self.reckon(match["text"], written.line, False)
            return written if number is None else Traced.on(str(number), written.line)
        return written

    def _variable(self, name: str, written: Traced) -> Traced:
        value = self._known.get(name)
        if value is None:
            return in_braces(written)
        if isinstance(value, list):
            return value[0] if value else Traced()
        return value

    def _element(self, name: str, index: str, written: Traced) -> Traced:
        value = self._known.get(name)
        if not isinstance(value, list):
            return written if value is None else value
        if index in "@*":
            return joined(value, " ")
        return value[int(index)] if int(index) < len(value) else Traced()

    def _with_operator(self, match: re.Match[str], written: Traced) -> Traced:
        """`${NAME:-word}` and its kin. What the caller's environment may have counts less than what the script says."""
        name, operator = match["name"], match["operator"]
        value = self._known.get(name)
        known = value if isinstance(value, Traced) else None
        if name in self.unsure:
            return written
        has_one = known is not None and (bool(known.text) or ":" not in operator)
        if operator[-1] == "?":
            return known if known is not None and has_one else in_braces(Traced.on("${" + name + "}", written.line))
        if has_one == (operator[-1] == "+"):
            word = tokens_of(written[match.start("word") : match.end("word")])
            chosen = self.text(word[0].parts) if word and isinstance(word[0], Word) else Traced()
        else:
            chosen = known or Traced()
        if operator[-1] == "=" and not has_one:
            self.assign(name, chosen)
        return chosen

    def _reckoned(self, text: str) -> int | None:
        """Arithmetic in whole numbers; None where a name in it is not known, or it is more than `+ - * / % **`."""

        def number(match: re.Match[str]) -> str:
            value = self._known.get(match["name"])
            known = value.text.strip() if isinstance(value, Traced) else ""
            return f"({known})" if re.fullmatch(r"-?[\d_]+", known) else "?"

        replaced = re.sub(r"\$?\{?(?P<name>[A-Za-z_]\w*)\}?", number, text)
        try:
            return _whole(ast.parse(replaced.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return None


def names_in(text: str) -> list[str]:
    """The variables that are left in a value because nobody knows them."""
    return [match["braced"] or match["bare"] for match in _VARIABLE.finditer(text)]


def is_known_but_for_variables(text: str) -> bool:
    """Whether nothing but plain variables is left in a value."""
    return "$" not in _VARIABLE.sub("", text) and "`" not in text


def in_braces(written: Traced) -> Traced:
    """`${NAME}` for `$NAME`, so that what follows it cannot become part of the name."""
    match = _VARIABLE.fullmatch(written.text)
    return written if match is None else Traced.on("${" + (match["braced"] or match["bare"]) + "}", written.line)


def _whole(node: ast.expr) -> int:
    """As the shell reckons: division cuts towards zero. Raises ValueError for anything but numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and len(str(node.value)) <= _MOST_DIGITS:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        if isinstance(node.op, ast.Div):
            quotient = abs(left) // abs(right)
            return quotient if (left < 0) == (right < 0) else -quotient
        if isinstance(node.op, ast.Mod):
            return left - right * _whole(ast.BinOp(ast.Constant(left), ast.Div(), ast.Constant(right)))
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Pow) and 0 <= right <= 64:
            return int(left**right)
    raise ValueError("no arithmetic of whole numbers")
