"""What a launch script would do, read without running any of it. Pure.

Assignments are followed, conditions decided where the script itself decides them, loops and functions gone through
where it says with what; what is set where nobody can tell whether it is done is not known to who comes behind.
Commands are put down with their words, each with the lines it was written on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from opsctl.run.init.shell_commands import Command, Done, Script, assign_alone, carry_out, name_assigned, split_prefix
from opsctl.run.init.shell_conditions import arithmetic, both, case, condition_of_if, test
from opsctl.run.init.shell_files import write
from opsctl.run.init.shell_loops import NotFollowed, call, follow_for, follow_while
from opsctl.run.init.shell_tokens import REDIRECTIONS, Operator, Part, Token, Unreadable, Word
from opsctl.run.init.shell_values import Values
from opsctl.run.init.shell_within import enter_a_shell, fed_to_a_shell, handed_to_a_shell, not_known_to_eval
from opsctl.run.init.shell_words import tokens_of
from opsctl.run.init.traced_text import Traced

_ENDS_OF_COMMANDS = frozenset(("\n", ";", "&", "|", "|&", "&&", "||", ")", ";;"))
#: A function within a function, a `bash -c` within a `bash -c`, and so on.
_DEEPEST = 20
#: The commands that plainly succeed, or fail; of any other nobody can tell.
_TRUTHS = {"true": True, ":": True, "echo": True, "printf": True, "set": True, "unset": True, "false": False}


def read_script(source: Traced, given: Mapping[str, str], arguments: Sequence[str] | None = None) -> Script:
    """Follow the script from its first line. given: variables that Slurm sets. Raises Unreadable.

    arguments: what the script is called with; None where nobody says.
    """
    script = Script(Values(given, arguments))
    Walk(script, tokens_of(source), Done.YES).block(frozenset())
    return script


class Walk:
    """One walk over the tokens of a script, of a function, or of what a shell is handed with `-c`."""

    def __init__(
        self, script: Script, tokens: list[Token], done: Done, depth: int = 0, shell: tuple[int, ...] = ()
    ) -> None:
        self.script, self.tokens, self.at = script, tokens, 0
        self.done_here, self.depth, self.shell = done, depth, shell
        self.calling: tuple[str, ...] = ()  # the functions that this is gone through for
        self.values = script.values
        self.leaving: str | None = None  # the command that was gone through: `exit`, `return`, `break`, `continue`
        self.loops = 0  # that are followed around this place
        self.loops_left = 0  # by a `break 2`
        self.is_called = False  # it is a function's body
        self.follows_loops = False  # else `break`, `continue` and `return` are passed over
        self.truth: bool | None = True  # whether the last list of commands succeeds, None where nobody can tell
        self.returned: bool | None = None  # what `return` says of the function that is read here
        self.called: bool | None = None  # whether the last function that was called succeeds

    @property
    def done(self) -> Done:
        """Whether what is read now is gone through."""
        return Done.NO if self.leaving else self.done_here

    def within(self, tokens: list[Token], shell: tuple[int, ...] | None = None) -> Walk:
        """A walk that begins here over other tokens. Raises Unreadable where it leads too deep."""
        if self.depth == _DEEPEST:
            line = tokens[0].line if tokens else 0
            raise Unreadable(f"line {line}: what is called here is called within itself, over and over")
        inner = Walk(self.script, tokens, self.done, self.depth + 1, self.shell if shell is None else shell)
        inner.calling = self.calling
        return inner

    def new_shell(self) -> tuple[int, ...]:
        """The name of a shell within this one."""
        self.script.shells += 1
        return (*self.shell, self.script.shells)

    # Looking ahead

    def peek(self) -> Token | None:
        """The next token; None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def plain(self) -> str | None:
        """The next token, where it is a plain word."""
        token = self.peek()
        return token.plain if isinstance(token, Word) and token.elements is None else None

    def is_operator(self, *texts: str) -> bool:
        """Whether it is one of those operators."""
        token = self.peek()
        return isinstance(token, Operator) and token.text in texts

    def step_over(self, *texts: str) -> None:
        """Go on behind all such operators that come next."""
        while self.is_operator(*texts):
            self.at += 1

    # Lists of commands

    def block(self, ends: frozenset[str]) -> str | None:
        """Commands up to one of the plain words `ends`, which is stepped over and returned; None at the end."""
        while (token := self.peek()) is not None:
            if isinstance(token, Operator) and token.text not in ("(", "((", *REDIRECTIONS):
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

    def chain(self) -> bool | None:
        """Commands joined by `&&` and `||`. Returns whether the last one succeeds; None where that is not known."""
        before, state, leaving = self.done_here, self.values.copy(), self.leaving
        truth = self.pipe()
        while self.is_operator("&&", "||"):
            wanted = self.is_operator("&&")
            self.at += 1
            self.step_over("\n")
            follows = Done.UNSURE if truth is None else Done.YES if truth == wanted else Done.NO
            self.done_here = both(before, follows)
            with self.scope(follows):
                next_truth = self.pipe()
            truth = truth if follows is Done.NO else next_truth if follows is Done.YES else None
        self.done_here = before
        if self.is_operator("&"):  # the whole list is in a shell of its own
            self.values.become(state)
            self.leaving = leaving
        self.truth = truth
        return truth

    def scope(self, follows: Done) -> AbstractContextManager[None]:
        """For what is gone through, or not, where nobody can tell which."""
        return self.script.perhaps() if follows is Done.UNSURE else nullcontext()

    def pipe(self) -> bool | None:
        """Statements joined by `|`, each in a shell of its own."""
        before, leaving = self.values.copy(), self.leaving
        is_negated = self.plain() == "!"
        self.at += is_negated
        truth = self.statement()
        while self.is_operator("|", "|&"):
            self.values.become(before)
            self.at += 1
            self.step_over("\n")
            truth = self.statement()
            self.values.become(before)
            self.leaving = leaving
        return truth if truth is None or not is_negated else not truth

    def statement(self) -> bool | None:
        """One command, simple or not. Returns whether it succeeds; None where that is not known."""
        self.script.step(token.line if (token := self.peek()) else 0)
        word = self.plain()
        if word in ("if", "case", "for", "while", "until", "select", "{") or self.is_operator("(", "(("):
            truth = self.compound(word)
            behind = self.at
            self.redirections()
            if self.done is not Done.NO and behind < self.at:
                write(self.script.files, self.values, self.tokens[behind : self.at], [], self.tokens[behind].line)
            return truth
        if word == "function":
            self.function(2)
        elif self.is_function():
            self.function(1)
        elif word in ("[[", "[", "test"):
            return test(self)
        else:
            return self.simple()
        return True

    def compound(self, word: str | None) -> bool | None:
        """A statement of several lines, as it begins with `word`, or with a bracket."""
        if word == "if":
            condition_of_if(self)
        elif word == "case":
            case(self)
        elif word in ("for", "select"):
            follow_for(self)
        elif word in ("while", "until"):
            follow_while(self)
        elif word == "{":
            self.at += 1
            self.block(frozenset("}"))
            return self.truth
        elif self.is_operator("("):
            self.brackets()
            return self.truth
        else:
            return arithmetic(self)
        return None

    def brackets(self) -> None:
        """`( ... )`: a shell of its own, with its own end."""
        self.at += 1
        shell, leaving = self.shell, self.leaving
        self.shell = self.new_shell()
        with self.values.in_a_shell_of_its_own():
            self.block(frozenset(")"))
        self.shell, self.leaving = shell, leaving

    def is_function(self) -> bool:
        """Whether a function's name, and so its body, comes next."""
        following = self.tokens[self.at + 1 : self.at + 3]
        return [one.text if isinstance(one, Operator) else "" for one in following] == ["(", ")"]

    def function(self, words: int) -> None:
        """Keep its body for who calls it."""
        before, name = self.done_here, self.tokens[self.at + words - 1] if self.at + words <= len(self.tokens) else None
        self.at += words
        self.step_over("(", ")", "\n")
        start, self.done_here = self.at, Done.NO
        self.statement()
        self.done_here = before
        if isinstance(name, Word) and name.plain and self.done is not Done.NO:
            self.script.functions[name.plain] = [self.tokens[start : self.at]]

    # Simple commands

    def simple(self) -> bool | None:
        """Assignments, words and redirections up to what ends the command."""
        begun, line = self.at, token.line if (token := self.peek()) else 0
        words: list[Word] = []
        while (token := self.peek()) is not None and not (
            isinstance(token, Operator) and (token.text in _ENDS_OF_COMMANDS or token.text in ("(", "(("))
        ):
            if isinstance(token, Word):
                words.append(token)
                self.at += 1
            else:
                self.redirections()
        if self.is_operator("(") and words:
            self.refuse(f"( behind {''.join(part.traced.text for part in words[-1].parts)}")
        if self.at == begun and self.at < len(self.tokens):
            self.at += 1  # an operator where none can be, or the bracket of `( ... )`
        if self.done is Done.NO:
            return True
        return self.carry_out(words, line, self.tokens[begun : self.at])

    def refuse(self, what: str) -> None:
        """Put down what no shell reads; reading goes on."""
        token = self.peek() or self.tokens[-1]
        if not self.depth:
            self.script.refused.append((token.line, what))

    def redirections(self) -> None:
        """Step over those that come next, each with its word."""
        while self.is_operator(*REDIRECTIONS):
            operator = self.tokens[self.at]
            self.at += 1
            if isinstance(self.peek(), Word):
                self.at += 1
            elif isinstance(operator, Operator):
                self.at -= 1
                self.refuse(f"{operator.text} with no file behind it")
                self.at += 1

    def carry_out(self, words: list[Word], line: int, found: list[Token]) -> bool | None:
        """Do the command and what comes of it. Returns whether it succeeds. found: its tokens, `words` among them."""
        prefix, rest = split_prefix(words)
        redirections = [one for one in found if isinstance(one, Operator)]
        if not rest:
            assign_alone(self.script, prefix, self.done)
            write(self.script.files, self.values, found, [], line)
            return None if any(_runs(one) for word in prefix for one in word.parts) else True
        while len(rest) > 1 and rest[0].plain in ("command", "builtin") and (rest[1].plain or "")[:1] != "-":
            rest = rest[1:]
        names = [name for word in prefix if (name := name_assigned(word))]
        with self.values.for_one_command(names):
            command = carry_out(self.script, rest, line, self.done, self.shell, prefix)
            if command is not None:
                self.follow(command, redirections)
        is_function = command is not None and command.words[0].text in self.script.functions
        write(self.script.files, self.values, found, () if command is None or is_function else command.words, line)
        if command is None:
            for name in names:
                self.values.forget(name, line)  # of one that declares, whether it lasts hangs on what is declared
            return True
        return self.called if command.words[0].text in self.script.functions else _TRUTHS.get(command.name)

    def follow(self, command: Command, redirections: list[Operator]) -> None:
        """What comes of a command for what stands behind it: a script within it, a function, the end."""
        name = command.words[0].text
        if name in self.script.functions:
            call(self, command, self.script.functions[name])
        elif name in ("exit", "return", "break", "continue"):
            said = command.words[1].text if len(command.words) > 1 else None
            self.returned = self.truth if said is None else said == "0" if said.isdecimal() else None
            self.leave(name, int(said) if said and said.isdecimal() else 1)
        handed = handed_to_a_shell(command.words)
        within, arguments = (handed.text, handed.arguments) if handed else (None, ())
        fed = next((one.body for one in redirections if one.body is not None), None)
        if within is None and fed is not None and fed_to_a_shell(command.words):
            within = self.values.text(fed.parts)
        if within is None:
            return
        if name == "eval":
            if (what := not_known_to_eval(within.text)) is not None:
                self.values.may_be_set_over(command.line, f"eval of {what}: what it does is not known")
            walk = self.within(tokens_of(within))
            walk.block(frozenset())
            self.leaving = self.leaving or walk.leaving
            return
        with self.values.in_a_shell_of_its_own():
            enter_a_shell(self.values, command.words, arguments)
            self.within(tokens_of(within), self.new_shell()).block(frozenset())

    def leave(self, name: str, loops: int) -> None:
        """`exit` and its kin. Raises NotFollowed where nobody can tell whether a loop or a function goes on."""
        if name == "exit":
            self.leaving = name if self.done is Done.YES else self.leaving
            return
        is_return = name == "return"
        its_own = not (is_return or self.follows_loops)  # of a loop that is read as done any number of times
        left = self.loops + self.is_called if is_return else min(loops - its_own, self.loops)
        if not left or self.done is Done.NO:
            return
        if self.done is Done.UNSURE or not self.follows_loops:
            raise NotFollowed(left)
        self.leaving, self.loops_left = name, left


def _runs(part: Part) -> bool:
    """Whether it is what a command prints: then an assignment succeeds as that command does."""
    text = part.traced.text
    return part.is_expansion and (("$(" in text and not text.startswith("$((")) or "`" in text)
