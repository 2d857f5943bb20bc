"""`if`, `case` and tests in a walk through a script: which branch is gone through, where the script tells. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsctl.run.init.shell_commands import Done
from opsctl.run.init.shell_patterns import Piece, pattern_of
from opsctl.run.init.shell_tests import truth_of
from opsctl.run.init.shell_tokens import REDIRECTIONS, Operator, Token, Word
from opsctl.run.init.shell_values import is_open

if TYPE_CHECKING:
    from opsctl.run.init.shell_script import Walk


def condition_of_if(walk: Walk) -> None:
    """Go through `if ... fi`."""
    before = walk.done_here
    taken: bool | None = False  # whether one branch has been gone through
    word: str | None = "if"
    while word in ("if", "elif"):
        walk.at += word == "if"
        walk.done_here = Done.NO if before is Done.NO or taken is True else before
        truth = truth_until(walk, "then")
        word = _branch(walk, before, taken, truth, frozenset(("elif", "else", "fi")))
        taken = True if truth is True and taken is False else (None if truth is None and not taken else taken)
    if word == "else":
        _branch(walk, before, taken, True, frozenset(("fi",)))
    walk.done_here = before


def _branch(walk: Walk, before: Done, taken: bool | None, truth: bool | None, ends: frozenset[str]) -> str | None:
    """Go through one of several branches, as far as it is; returns what ends it."""
    follows = _follows(taken, truth)
    walk.done_here = both(before, follows)
    with walk.scope(follows):
        return walk.block(ends)


def truth_until(walk: Walk, end: str) -> bool | None:
    """Whether what stands before the word `end` succeeds; None where the script does not tell."""
    truth: bool | None = None
    while walk.peek() is not None and walk.plain() != end:
        if isinstance(walk.peek(), Operator) and not walk.is_operator("(", "((", *REDIRECTIONS):
            walk.at += 1
        else:
            truth = walk.chain()
    walk.at += 1
    return truth


def test(walk: Walk) -> bool | None:
    """`[[ ... ]]`, `[ ... ]` and `test ...`, stepped over."""
    opening = walk.plain()
    closing = {"[[": "]]", "[": "]"}.get(opening or "")
    walk.at += 1
    inside: list[Token] = []
    while (token := walk.peek()) is not None and (walk.plain() != closing or closing is None):
        if closing is None and isinstance(token, Operator):
            break
        if not (isinstance(token, Operator) and token.text == "\n"):
            inside.append(token)
        walk.at += 1
    walk.at += closing is not None
    walk.redirections()
    return None if walk.done is Done.NO else truth_of(inside, walk.values, opening == "[[")


def case(walk: Walk) -> None:
    """Go through `case ... esac`."""
    before = walk.done_here
    walk.at += 1
    subject = walk.peek()
    is_read = isinstance(subject, Word) and walk.done is not Done.NO
    text = walk.values.text(subject.parts).text if isinstance(subject, Word) and is_read else "$"
    walk.at += 1
    taken: bool | None = False
    while walk.peek() is not None and walk.plain() != "esac":
        patterns: list[list[Piece]] = []
        if walk.plain() == "in" or (isinstance(walk.peek(), Operator) and not walk.is_operator("(")):
            walk.at += 1
            continue
        walk.step_over("(")
        depth, is_followed = 0, True
        while (token := walk.peek()) is not None and (depth or not walk.is_operator(")")):
            patterns += [walk.values.pieces(token.parts)] if isinstance(token, Word) else []
            depth += walk.is_operator("(") - walk.is_operator(")")
            is_followed = is_followed and not depth  # else `@(a|b)`
            walk.at += 1
        walk.at += 1
        truth = _is_one_of(text, patterns) if is_followed else None
        ended = _branch(walk, before, taken, truth, frozenset((";;", "esac")))
        taken = True if truth is True and taken is False else (None if truth is None and not taken else taken)
        walk.done_here = before
        if ended == "esac":
            return
    walk.at += 1
    walk.done_here = before


def _is_one_of(text: str, patterns: list[list[Piece]]) -> bool | None:
    if [("*", False)] in patterns:
        return True  # whatever it is
    read = [None if any(is_open(one) for one, _ in pieces) else pattern_of(pieces) for pieces in patterns]
    if not is_open(text) and any(one.fullmatch(text) for one in read if one is not None):
        return True
    return None if is_open(text) or None in read else False


def arithmetic(walk: Walk) -> bool | None:
    """`((...))`, stepped over."""
    token = walk.peek()
    walk.at += 1
    if not isinstance(token, Operator) or token.body is None or walk.done is Done.NO:
        return None
    number = walk.values.reckon(token.body.parts[0].traced.text, token.line)
    return None if number is None else number != 0


def both(one: Done, other: Done) -> Done:
    """What is gone through where it hangs on two things."""
    if Done.NO in (one, other):
        return Done.NO
    return Done.UNSURE if Done.UNSURE in (one, other) else Done.YES


def _follows(taken: bool | None, truth: bool | None) -> Done:
    """Whether a branch is gone through, after branches of which one was `taken`, when its condition is `truth`."""
    if taken is True or truth is False:
        return Done.NO
    return Done.YES if taken is False and truth is True else Done.UNSURE
