"""What stands within `[[ ... ]]` and `[ ... ]`: whether it holds, where the script itself tells. Pure."""

from __future__ import annotations

import operator as of
from collections.abc import Sequence

from opsctl.run.init.shell_patterns import pattern_of
from opsctl.run.init.shell_state import VARIABLE, names_in
from opsctl.run.init.shell_tokens import Operator, Token, Word
from opsctl.run.init.shell_values import Values, has_text, is_open

_COMPARING = {"-eq": of.eq, "-ne": of.ne, "-lt": of.lt, "-le": of.le, "-gt": of.gt, "-ge": of.ge}
#: What joins tests, the weaker one first, and the truth that decides alone.
_JOINING = ((("||", "-o"), True), (("&&", "-a"), False))


def truth_of(inside: Sequence[Token], values: Values, takes_patterns: bool) -> bool | None:
    """Whether the test holds; None where the script does not tell. takes_patterns: as `[[` does and `[` does not."""
    for joining, decides in _JOINING:
        place = _outside_brackets(inside, joining)
        if place is not None:
            left = truth_of(inside[:place], values, takes_patterns)
            if left is decides and takes_patterns:
                return decides  # `[[` leaves off there, `[` has read it all before
            sides = (left, truth_of(inside[place + 1 :], values, takes_patterns))
            return decides if decides in sides else None if None in sides else not decides
    if inside and isinstance(inside[0], Word) and inside[0].plain == "!":
        truth = truth_of(inside[1:], values, takes_patterns)
        return None if truth is None else not truth
    if len(inside) > 2 and _text(inside[0]) == "(" and _text(inside[-1]) == ")":
        return truth_of(inside[1:-1], values, takes_patterns)
    words = [one for one in inside if isinstance(one, Word)]
    if not words or len(words) != len(inside):
        return None
    return _truth(words, values, takes_patterns)


def without_unset(text: str, values: Values) -> str:
    """What only the caller's environment could say is taken to be left to the script."""
    return VARIABLE.sub(lambda one: "" if all(map(values.is_taken_to_be_unset, names_in(one[0]))) else one[0], text)


def _digits(text: str) -> int | None:
    """A number as `[` takes it: `[[` reckons, `[` refuses what is none."""
    return int(text) if text.removeprefix("-").isdecimal() else None


def _outside_brackets(inside: Sequence[Token], wanted: tuple[str, ...]) -> int | None:
    depth = 0
    for place, one in enumerate(inside):
        depth += (_text(one) == "(") - (_text(one) == ")")
        if not depth and place and _text(one) in wanted:
            return place
    return None


def _text(token: Token) -> str | None:
    return token.text if isinstance(token, Operator) else token.plain


def _truth(words: list[Word], values: Values, takes_patterns: bool) -> bool | None:
    """Of a test of one, two or three words; `[` gets them cut at their blanks, as any command does."""
    worth = [values.text(one.parts) for one in words] if takes_patterns else values.fields(words, finds_files=False)
    texts = [one.text for one in worth]
    if not texts:
        return False
    if len(texts) == 1:
        texts = ["-n", *texts]
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        texts[1] = without_unset(texts[1], values)
        is_decided = has_text(texts[1]) or not is_open(texts[1])
        return (not texts[1]) == (texts[0] == "-z") if is_decided else None
    if len(texts) == 2 and texts[0] == "-v":
        return texts[1] not in values.removed if values.is_known(texts[1]) else None
    if len(texts) != 3 or any(is_open(text) for text in texts):
        return None
    left, operator, right = texts
    if operator in ("=", "==", "!="):
        pattern = pattern_of(values.pieces(words[2].parts) if takes_patterns else [(right, True)])
        return None if pattern is None else (pattern.fullmatch(left) is not None) == (operator != "!=")
    if operator in _COMPARING:
        reads = values.number if takes_patterns else _digits
        numbers = [reads(one) for one in (left, right)]
        if numbers[0] is not None and numbers[1] is not None:
            return bool(_COMPARING[operator](numbers[0], numbers[1]))
    return None
