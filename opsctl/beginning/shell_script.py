"""What a launch script would do, read without running any of it. Pure.

Assignments are followed, conditions decided where the script itself decides them; what is set where nobody can tell
whether it is done counts as not known. Commands are put down with their words, each with the lines it was written on.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from opsctl.beginning.shell_commands import Command, Done, Script, carry_out, handed_to_a_shell
from opsctl.beginning.shell_tests import truth_of
from opsctl.beginning.shell_values import Values
from opsctl.beginning.shell_words import REDIRECTIONS, Operator, Token, Word, tokens_of
from opsctl.beginning.traced import Traced

_ENDS_OF_COMMANDS = frozenset(("\n", ";", "&", "|", "|&", "&&", "||", ")", ";;"))
#: A `bash -c` within a `bash -c`, and so on.
_DEEPEST = 5


def read_script(source: Traced, given: Mapping[str, str]) -> Script:
    """Follow the script from its first line. given: variables that Slurm sets. Raises Unreadable."""
    script = Script(Values(given))
    _Run(script, tokens_of(source), Done.YES, 0).block(frozenset())
    return script


class _Run:
    """One walk over the tokens of a script, or of what a shell is handed with `-c`."""

    def __init__(self, script: Script, tokens: list[Token], done: Done, depth: int) -> None:
        self.script, self.tokens, self.at = script, tokens, 0
        self._done, self.depth = done, depth
        self.values = script.values
        self.has_left = False  # an `exit` has been gone through

    @property
    def done(self) -> Done:
        """Whether what is read now is gone through."""
        return Done.NO if self.has_left else self._done

    @done.setter
    def done(self, done: Done) -> None:
        self._done = done

    # Looking ahead

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def plain(self) -> str | None:
        """The next token, where it is a plain word."""
        token = self.peek()
        return token.plain if isinstance(token, Word) and token.elements is None else None

    def is_operator(self, *texts: str) -> bool:
        token = self.peek()
        return isinstance(token, Operator) and token.text in texts

    # Lists of commands

    def block(self, ends: frozenset[str]) -> str | None:
        """Commands up to one of the plain words `ends`, which is stepped over and returned; None at the end."""
        while (token := self.peek()) is not None:
            if isinstance(token, Operator) and token.text not in ("(", "(("):
                self.at += 1
                if token.text in ends:
                    return token.text
                continue
            word = self.plain()
            if word in ends:
                self.at += 1
                return word
            self.chain()
        return None

    def chain(self) -> None:
        """Commands joined by `&&` and `||`: a command counts as having worked, unless it is a test that fails."""
        before = self.done
        truth = self.statement()
        while self.is_operator("&&", "||"):
            wanted = self.is_operator("&&")
            self.at += 1
            while self.is_operator("\n"):
                self.at += 1
            follows = Done.UNSURE if truth is None else Done.YES if truth == wanted else Done.NO
            self.done = _both(before, follows)
            next_truth = self.statement()
            truth = truth if follows is Done.NO else next_truth
        self.done = before

    def statement(self) -> bool | None:
        """One command, simple or not. Returns whether it succeeds; None where that is not known."""
        word = self.plain()
        if word == "if":
            self.condition_of_if()
        elif word == "case":
            self.case()
        elif word in ("for", "while", "until", "select"):
            self.loop()
        elif word == "{" or self.is_operator("("):
            folder = self.values.folder
            self.at += 1
            self.block(frozenset(("}",) if word else (")",)))
            if not word:
                self.values.folder = folder  # what runs in brackets goes nowhere for who comes behind
        elif word == "function":
            self.function(2)
        elif self.is_function():
            self.function(1)
        elif word in ("[[", "["):
            return self.test()
        elif self.is_operator("(("):
            self.arithmetic()
            return None
        elif word == "!":
            self.at += 1
            truth = self.statement()
            return None if truth is None else not truth
        else:
            self.simple()
        return True

    # Conditions

    def condition_of_if(self) -> None:
        before = self.done
        taken: bool | None = False  # whether one branch has been gone through
        word: str | None = "if"
        while word in ("if", "elif"):
            self.at += word == "if"
            self.done = Done.NO if before is Done.NO or taken is True else before
            truth = self.truth_until_then()
            self.done = _branch(before, taken, truth)
            taken = True if truth is True and taken is False else (None if truth is None and not taken else taken)
            word = self.block(frozenset(("elif", "else", "fi")))
        if word == "else":
            self.done = _branch(before, taken, True)
            self.block(frozenset(("fi",)))
        self.done = before

    def truth_until_then(self) -> bool | None:
        """Whether what stands between `if` and `then` holds; None where the script does not tell."""
        start, truth, tests = self.at, None, 0
        while self.peek() is not None and self.plain() != "then":
            if self.is_operator("(("):
                self.arithmetic()
                tests += 2
            elif isinstance(self.peek(), Operator):
                self.at += 1
            elif self.plain() in ("[[", "[", "!"):
                truth = self.statement()
                tests += 1
            else:
                self.simple()
                tests += 2
        between = {one.text for one in self.tokens[start : self.at] if isinstance(one, Operator)}
        self.at += 1
        return truth if tests == 1 and not between & {"&&", "||", "|"} else None

    def test(self) -> bool | None:
        """`[[ ... ]]` and `[ ... ]`, stepped over."""
        closing = "]]" if self.plain() == "[[" else "]"
        self.at += 1
        inside: list[Token] = []
        while (token := self.peek()) is not None and self.plain() != closing:
            inside.append(token)
            self.at += 1
        self.at += 1
        return truth_of(inside, self.values)

    def case(self) -> None:
        before = self.done
        self.at += 1
        subject = self.peek()
        text = self.values.text(subject.parts).text if isinstance(subject, Word) else "$"
        self.at += 1
        taken: bool | None = False
        while self.peek() is not None and self.plain() != "esac":
            patterns = []
            if isinstance(self.peek(), Operator) and not self.is_operator("("):
                self.at += 1
                continue
            if self.plain() == "in":
                self.at += 1
                continue
            while (token := self.peek()) is not None and not self.is_operator(")"):
                patterns += [self.values.text(token.parts).text] if isinstance(token, Word) else []
                self.at += 1
            self.at += 1
            truth = None if "$" in text else any(fnmatch.fnmatchcase(text, one) for one in patterns)
            self.done = _branch(before, taken, truth)
            taken = True if truth is True and taken is False else (None if truth is None and not taken else taken)
            ended = self.block(frozenset((";;", "esac")))
            self.done = before
            if ended == "esac":
                self.done = before
                return
        self.at += 1
        self.done = before

    def loop(self) -> None:
        """How often, and with what, is not followed."""
        before, word = self.done, self.plain()
        self.at += 1
        name = self.peek() if word in ("for", "select") else None
        self.done = _both(before, Done.UNSURE)
        if name is None:
            self.block(frozenset(("do",)))
        else:
            while self.peek() is not None and self.plain() != "do":
                if self.is_operator("(("):
                    self.arithmetic()
                else:
                    self.at += 1
            self.at += 1
        if isinstance(name, Word) and name.plain and self.done is not Done.NO:
            self.values.forget(name.plain, name.line)
        self.block(frozenset(("done",)))
        self.done = before

    def arithmetic(self) -> None:
        """`((...))`, stepped over."""
        token = self.peek()
        self.at += 1
        if isinstance(token, Operator) and token.body is not None and self.done is not Done.NO:
            self.values.reckon(token.body.parts[0].traced.text, token.line, self.done is Done.YES)

    def is_function(self) -> bool:
        following = self.tokens[self.at + 1 : self.at + 3]
        return [one.text if isinstance(one, Operator) else "" for one in following] == ["(", ")"]

    def function(self, words: int) -> None:
        """Its body is read where it is written: of a call, only what it may change is known."""
        before, touched, commands = self.done, self.values.touched, len(self.script.commands)
        name = self.tokens[self.at + words - 1]
        self.at += words
        self.values.touched = set()
        while self.is_operator("(", ")", "\n"):
            self.at += 1
        self.done = _both(before, Done.UNSURE)
        self.statement()
        if isinstance(name, Word) and name.plain and self.done is not Done.NO:
            called = frozenset(one.name for one in self.script.commands[commands:])
            self.script.functions[name.plain] = (frozenset(self.values.touched), called)
        self.values.touched |= touched
        self.done = before

    # Simple commands

    def simple(self) -> None:
        """Assignments, words and redirections up to what ends the command."""
        line = token.line if (token := self.peek()) else 0
        words: list[Word] = []
        to: Word | None = None
        body: Word | None = None
        while (token := self.peek()) is not None:
            if isinstance(token, Operator):
                if token.text in _ENDS_OF_COMMANDS or token.text in ("(", "(("):
                    break
                self.at += 1
                following = self.peek()
                if token.text in REDIRECTIONS and isinstance(following, Word):
                    to = following if token.text in (">", ">>", ">|", "&>") else to
                    body = token.body or body
                    self.at += 1
                continue
            words.append(token)
            self.at += 1
        if self.at < len(self.tokens) and not words and to is None:
            self.at += 1  # an operator where none can be, or the bracket of `( ... )`
        if self.done is Done.NO:
            return
        command = carry_out(self.script, words, line, self.done)
        if command is not None:
            self.follow(command)
        if body is not None and to is not None:
            self.script.files[self.values.text(to.parts).text] = self.values.text(body.parts)

    def follow(self, command: Command) -> None:
        """What comes of a command for what stands behind it: a script within it, or the end."""
        if command.name == "exit" and command.is_sure and not self.depth:
            self.has_left = True
        within = handed_to_a_shell(command.words)
        if within is not None and self.depth < _DEEPEST:
            _Run(self.script, tokens_of(within), self.done, self.depth + 1).block(frozenset())


def _both(one: Done, other: Done) -> Done:
    if Done.NO in (one, other):
        return Done.NO
    return Done.UNSURE if Done.UNSURE in (one, other) else Done.YES


def _branch(before: Done, taken: bool | None, truth: bool | None) -> Done:
    """Whether a branch is gone through, after branches of which one was `taken`, when its condition is `truth`."""
    if taken is True or truth is False:
        return Done.NO
    return _both(before, Done.YES if taken is False and truth is True else Done.UNSURE)
