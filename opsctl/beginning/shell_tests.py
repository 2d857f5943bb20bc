"""What stands within `[[ ... ]]` and `[ ... ]`: whether it holds, where the script itself tells. Pure."""

from __future__ import annotations

import fnmatch
import operator as of
from collections.abc import Sequence

from opsctl.beginning.shell_values import Values, names_in
from opsctl.beginning.shell_words import Token, Word

_COMPARING = {"-eq": of.eq, "-ne": of.ne, "-lt": of.lt, "-le": of.le, "-gt": of.gt, "-ge": of.ge}


def truth_of(inside: Sequence[Token], values: Values) -> bool | None:
    """Whether the test holds; None where the script does not tell."""
    if inside and isinstance(inside[0], Word) and inside[0].plain == "!":
        truth = truth_of(inside[1:], values)
        return None if truth is None else not truth
    words = [one for one in inside if isinstance(one, Word)]
    if len(words) != len(inside):
        return None
    texts = [values.text(one.parts).text for one in words]
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        names = names_in(texts[1])
        if names and not any(values.is_set(name) for name in names) and "$(" not in texts[1]:
            texts[1] = ""  # what only the caller's environment could say is taken to be left to the script
        return None if "$" in texts[1] or "`" in texts[1] else (not texts[1]) == (texts[0] == "-z")
    if len(texts) != 3 or any("$" in text or "`" in text for text in texts):
        return None
    left, operator, right = texts
    if operator in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) == (operator != "!=")
    if operator in _COMPARING and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        return bool(_COMPARING[operator](int(left), int(right)))
    return None
