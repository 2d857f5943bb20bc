"""The shell's arithmetic, `$((...))` and `((...))`, in whole numbers. Pure."""

from __future__ import annotations

import ast
import operator as of
import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER_SET = re.compile(
    r"(?:\+\+|--)\s*(?P<stepped>[A-Za-z_]\w*)"
    r"|(?P<name>[A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:(?P<step>\+\+|--)|(?P<by>\*|/|%|\+|-|<<|>>|&|\||\^)?=(?!=))"
)
_MOST_DIGITS = 18  # of a number that is reckoned with
_LEAST_THAT_WRAPS = 2**63  # what the shell reckons in
#: What Python reads otherwise than the shell: `126_953`, `2#101`, `!a == b`.
_OTHERWISE = re.compile(r"\d_|#|!(?!=)")
_COMPARING: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    **{ast.Eq: of.eq, ast.NotEq: of.ne, ast.Lt: of.lt},
    **{ast.LtE: of.le, ast.Gt: of.gt, ast.GtE: of.ge},
}


@dataclass(frozen=True)
class NumberSet:
    """What an arithmetic text sets: each name, and, where it is one assignment and no more, the text of its value."""

    names: tuple[str, ...]
    value: str | None


def numbers_set(text: str) -> NumberSet:
    """Of `A = B + 1`, `A += 2`, `A++`: the name and `(A + 1)`; of more than one, the names alone."""
    found = list(_NUMBER_SET.finditer(text))
    names = tuple(match["stepped"] or match["name"] for match in found)
    value = None
    if len(found) == 1 and not text[: found[0].start()].strip():
        match, right = found[0], text[found[0].end() :].strip()
        if match["stepped"] or match["step"]:
            value = None if right else f"{names[0]} {match[0].strip(names[0] + ' ')[0]} 1"
        elif "[" not in match[0]:
            value = f"{names[0]} {match['by']} ({right})" if match["by"] else right
    return NumberSet(names, value)


def reckoned(text: str, number_of: Callable[[str], str | None]) -> int | None:
    """The text's value; None where a name in it is not known, or it is more than is reckoned here.

    number_of: a variable's digits, None where nobody knows them or they are none. A number with `_` in it, which
    the trainer reads and no shell does, is none.
    """

    def number(match: re.Match[str]) -> str:
        known = number_of(match["name"])
        return f"({known})" if known is not None else "?"

    replaced = re.sub(r"\$?\{?(?<![\w])(?P<name>[A-Za-z_]\w*)\}?", number, text)
    if _OTHERWISE.search(replaced):
        return None
    replaced = replaced.replace("&&", " and ").replace("||", " or ")
    try:
        return _whole(ast.parse(replaced.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _whole(node: ast.expr) -> int:
    """As the shell reckons: division cuts towards zero. Raises ValueError for anything but numbers."""
    if isinstance(node, ast.Constant) and type(node.value) is int and len(str(node.value)) <= _MOST_DIGITS:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not _is_power(node.operand):
        return -_whole(node.operand)
    if isinstance(node, ast.BoolOp):
        values = [bool(_whole(one)) for one in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARING:
        return int(_COMPARING[type(node.ops[0])](_whole(node.left), _whole(node.comparators[0])))
    if isinstance(node, ast.BinOp):
        number = _joined(node.op, _whole(node.left), _whole(node.right))
        if abs(number) < _LEAST_THAT_WRAPS:
            return number
    raise ValueError("no arithmetic of whole numbers")


def _is_power(node: ast.expr) -> bool:
    """Of -2**2, which is 4 to a shell and -4 here, where it cannot be told from -(2**2)."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)


def _joined(operator: ast.operator, left: int, right: int) -> int:
    if isinstance(operator, ast.Div):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    if isinstance(operator, ast.Mod):
        return left - right * _joined(ast.Div(), left, right)
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Pow) and 0 <= right <= 64:
        return int(left**right)
    raise ValueError("no arithmetic of whole numbers")
