"""What the shell does to a text by a pattern: `${X%.json}`, `${X//a/b}`, `{1..4}`. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

_MOST = 4096  # words of one range
#: A stretch of a pattern, and whether it stands in quotes, where every character is itself.
Piece = tuple[str, bool]
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\}")


def pattern_of(pieces: Sequence[Piece]) -> re.Pattern[str] | None:
    """A shell's pattern; None for one that is not followed: `[[:digit:]]`, `+(a|b)`, a bracket without its end."""
    characters = [(one, is_quoted) for text, is_quoted in pieces for one in text]
    found, at = "", 0
    while at < len(characters):
        character, is_quoted = characters[at]
        following = characters[at + 1] if at + 1 < len(characters) else ("", True)
        at += 1
        if is_quoted:
            found += re.escape(character)
        elif character == "\\":
            found += re.escape(following[0] or character)
            at += 1
        elif character in "?*+@!" and following == ("(", False):
            return None
        elif character == "[":
            inside, at = _one_of(characters, at)
            if not inside:
                return None
            found += inside
        else:
            found += {"*": ".*", "?": "."}.get(character, re.escape(character))
    return re.compile(re.sub(r"(?<!\\)(?:\.\*){2,}", ".*", found), re.DOTALL)


def _one_of(characters: Sequence[tuple[str, bool]], at: int) -> tuple[str, int]:
    """`[a-z]` behind its opening, and where it ends; nothing where it has no end, or names a class."""
    is_not = at < len(characters) and characters[at] in (("!", False), ("^", False))
    begun = at = at + is_not
    inside = ""
    while at < len(characters) and (characters[at] != ("]", False) or at == begun):
        character, is_quoted = characters[at]
        if character in "[\\" and not is_quoted:
            return "", at
        inside += "-" if character == "-" and not is_quoted and at > begun else re.escape(character)
        at += 1
    return (f"[{'^' * is_not}{inside}]" if at < len(characters) and _is_sound(inside) else ""), at + 1


def _is_sound(inside: str) -> bool:
    """Whether it is a set of characters to Python too, and without a range that runs backwards."""
    try:
        re.compile(f"[{inside}]")
    except re.error:
        return False
    return True


def cut(text: str, operator: str, pattern: re.Pattern[str]) -> str:
    """`text` after `${X#pattern}`, `##`, `%` or `%%`: without its shortest or longest beginning or end of that kind."""
    lengths = range(len(text) + 1)
    if operator.startswith("#"):
        ends = lengths if operator == "#" else reversed(lengths)
        return text[next((end for end in ends if pattern.fullmatch(text, 0, end)), 0) :]
    begins = reversed(lengths) if operator == "%" else lengths
    return text[: next((begin for begin in begins if pattern.fullmatch(text, begin)), len(text))]


def replaced(text: str, pattern: re.Pattern[str], by: str, all_of_them: bool) -> str | None:
    """`text` after `${X/pattern/by}`; None where that is not followed: an `&`, a pattern that nothing is of."""
    if "&" in by or not pattern.pattern or pattern.fullmatch(""):
        return None
    return pattern.sub(lambda _: by, text, count=0 if all_of_them else 1)


def braces(text: str) -> list[str]:
    """The words that `x{a,b}` and `x{1..3}` stand for; a text without such braces is the only one.

    None at all of more than anybody means.
    """
    found = list(itertools.islice(_braces(text), _MOST + 1))
    return found if len(found) <= _MOST else []


def _braces(text: str) -> Iterator[str]:
    for opened, character in enumerate(text):
        if character != "{":
            continue
        closed = _closing(text, opened)
        if closed is None:
            continue
        inner = _numbers(text[opened : closed + 1]) or _choices(text[opened + 1 : closed])
        if len(inner) < 2 and _RANGE.fullmatch(text, opened, closed + 1) is None:
            continue
        for one in inner:
            for head in _braces(one):
                for tail in _braces(text[closed + 1 :]):
                    yield text[:opened] + head + tail
        return
    yield text


def _closing(text: str, opened: int) -> int | None:
    depth = 0
    for at in range(opened, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    return None


def _numbers(text: str) -> list[str]:
    """Of `{0..4000..100}`, at most one more than anybody means; none of anything else."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return []
    first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    digits = [one.removeprefix("-") for one in match.group(1, 2)]
    has_zeros = any(len(one) > 1 and one.startswith("0") for one in digits)
    width = max(len(one) for one in match.group(1, 2)) if has_zeros else 0
    return [f"{one:0{width}d}" for one in numbers[: _MOST + 1]]


def _choices(text: str) -> list[str]:
    """What stands between the commas that are in no further braces."""
    found, depth = [""], 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return found
