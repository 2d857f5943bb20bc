"""Loops and calls of functions in a walk through a script: turn by turn where the script says with what. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opsctl.run.init.shell_commands import Command, Done
from opsctl.run.init.shell_conditions import truth_until
from opsctl.run.init.shell_tokens import Operator, Token, Word
from opsctl.run.init.traced_text import Traced

if TYPE_CHECKING:
    from opsctl.run.init.shell_script import Walk

_ENDS = frozenset(("done", "}"))


class NotFollowed(Exception):
    """Nobody can tell whether a loop, or a function, goes on: it is read as what may be done or not.

    loops: so many of them, the inner ones first.
    """

    def __init__(self, loops: int = 1) -> None:
        super().__init__()
        self.loops = loops

    def of_others(self) -> None:
        """Raise it anew where it is not for this loop alone."""
        if self.loops > 1:
            raise NotFollowed(self.loops - 1)


def follow_for(walk: Walk) -> None:
    """`for NAME in WORDS; do ... done`, and `select`: of the latter, and of `for ((...))`, no turn is known."""
    is_for = walk.plain() == "for"
    walk.at += 1
    name = walk.plain()
    words: list[Word] | None = None
    while (token := walk.peek()) is not None and walk.plain() not in ("do", "{"):
        walk.at += 1
        if isinstance(token, Word) and words is not None:
            words.append(token)
        elif isinstance(token, Word) and token.plain == "in":
            words = []
        elif isinstance(token, Operator) and token.text == "((":
            name = None
            if token.body is not None and walk.done is not Done.NO:
                walk.values.reckon(token.body.parts[0].traced.text, token.line)
    walk.at += 1
    turns = _turns(walk, words) if is_for and name and walk.done is not Done.NO else None
    if walk.done is Done.NO or turns == []:
        _skip(walk)
    elif turns is None or not _all_turns(walk, name or "", turns):
        _perhaps(walk, name)


def _turns(walk: Walk, words: list[Word] | None) -> list[Traced] | None:
    """What the loop's variable is, turn by turn; None where nobody can tell."""
    found = walk.values.arguments if words is None else walk.values.fields(words)
    if found is None or len(found) > walk.script.turns_left or any(set(one.text) & set("$`*?[") for one in found):
        return None
    walk.script.turns_left -= len(found)
    return found


def _all_turns(walk: Walk, name: str, turns: list[Traced]) -> bool:
    """Go through each turn; whether that could be done. Else nothing has been."""
    before = _Before(walk)
    try:
        with _followed(walk, True):
            for turn in turns:
                walk.at = before.at
                walk.values.assign(name, turn, line=turn.line)
                walk.block(_ENDS)
                if _was_the_last(walk):
                    break
    except NotFollowed as error:
        before.again(walk)
        error.of_others()
        return False
    return True


def follow_while(walk: Walk) -> None:
    """`while CONDITION; do ... done`, and `until`."""
    wanted = walk.plain() == "while"
    walk.at += 1
    before = _Before(walk)
    if walk.plain() not in ("true", ":", "false") and _while(walk, wanted, before.at):
        return
    before.again(walk)
    if walk.done is Done.NO:
        truth_until(walk, "do")
        _skip(walk)
    else:
        _perhaps(walk, None, has_condition=True)


def _while(walk: Walk, wanted: bool, start: int) -> bool:
    """Go through each turn; whether that could be done up to the last."""
    try:
        with _followed(walk, True):
            while walk.done is not Done.NO and walk.script.turns_left > 0:
                walk.script.turns_left -= 1
                walk.at = start
                truth = truth_until(walk, "do")
                if truth is None:
                    return False
                if truth != wanted:
                    _skip(walk)
                    return True
                walk.block(_ENDS)
                if _was_the_last(walk):
                    return True
    except NotFollowed as error:
        error.of_others()
    return False


def call(walk: Walk, command: Command, bodies: list[list[Token]]) -> None:
    """Go through a function's body with what it is called with; where it calls itself, once more, as what may be.

    bodies: those that it may have, all but one of them by definitions that may have been gone through or not.
    """
    name = command.words[0].text
    calls = walk.calling.count(name)
    if calls == 1:
        walk.script.told.append((command.line, f"{name} calls itself, which is not followed"))
    if calls or len(bodies) > 1:
        walk.called = None
        for body in bodies if calls < 2 else []:
            _call_perhaps(walk, command, body)
        return
    body = bodies[0]
    outside, before = walk.values.copy(), _Before(walk)
    inner = _inner(walk, command, body)
    inner.follows_loops = inner.is_called = True
    try:
        _enter(walk, command)
        truth = inner.statement()
        walk.called = inner.returned if inner.leaving == "return" else truth
        walk.values.leave_function(outside)
        walk.leaving = "exit" if inner.leaving == "exit" else walk.leaving
    except NotFollowed:
        before.again(walk)
        _call_perhaps(walk, command, body)


def _call_perhaps(walk: Walk, command: Command, body: list[Token]) -> None:
    """Go through a function's body as what may be done or not."""
    outside, inner = walk.values.copy(), _inner(walk, command, body)
    inner.done_here = Done.UNSURE
    with walk.script.perhaps():
        _enter(walk, command)
        inner.statement()
        walk.values.leave_function(outside)
    walk.called = None


def _inner(walk: Walk, command: Command, body: list[Token]) -> Walk:
    inner = walk.within(body)
    inner.calling = (*walk.calling, command.words[0].text)
    return inner


def _enter(walk: Walk, command: Command) -> None:
    walk.values.arguments, walk.values.own = list(command.words[1:]), {}
    walk.values.is_in_function = True


def _was_the_last(walk: Walk) -> bool:
    """Behind a turn: whether no other follows."""
    left = walk.leaving
    if left in ("break", "continue"):
        walk.loops_left -= 1
        if walk.loops_left:
            return True  # and that of the loop around it
        walk.leaving = None
    return left is not None and left != "continue"


def _skip(walk: Walk) -> None:
    """Go to the end of a body that is not gone through."""
    before, walk.done_here = walk.done_here, Done.NO
    walk.block(_ENDS)
    walk.done_here = before


@contextmanager
def _followed(walk: Walk, are: bool) -> Iterator[None]:
    before, walk.follows_loops = walk.follows_loops, are
    walk.loops += are
    try:
        yield
    finally:
        walk.follows_loops = before
        walk.loops -= are


def _perhaps(walk: Walk, name: str | None, has_condition: bool = False) -> None:
    """Read a body as what may be done any number of times.

    A turn begins with what the one before has set: so nothing that the body sets is known at its beginning. It is
    read twice, at first only for the names that it sets.
    """
    line = token.line if (token := walk.peek()) else 0
    done = walk.done_here

    def turn() -> None:
        if name is not None:
            walk.values.forget(name, line)
        if has_condition:
            truth_until(walk, "do")
        walk.block(_ENDS)

    with walk.script.perhaps(), _followed(walk, False):
        walk.done_here = Done.UNSURE
        before = _Before(walk)
        turn()
        touched = dict(walk.values.touched)
        before.again(walk)
        for one, where in touched.items():
            walk.values.forget(one, where)
        turn()
    walk.done_here = done


class _Before:
    """Where a walk was, to go back to."""

    def __init__(self, walk: Walk) -> None:
        self.at, self.done, self.leaving = walk.at, walk.done_here, walk.leaving
        self.shell = walk.shell
        self.values = walk.values.copy()
        self.commands, self.files = len(walk.script.commands), walk.script.files.copy()
        self.functions = dict(walk.script.functions)

    def again(self, walk: Walk) -> None:
        """Undo what has been gone through since."""
        walk.at, walk.done_here, walk.leaving = self.at, self.done, self.leaving
        walk.shell = self.shell
        walk.values.become(self.values)
        del walk.script.commands[self.commands :]
        walk.script.files, walk.script.functions = self.files.copy(), dict(self.functions)
