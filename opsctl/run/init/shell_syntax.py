"""Parse a shell script into words and commands, with the line of each character. Pure; nothing is run or opened.

Quotes are removed. An expansion such as `${X:-y}` or `$(date)` stays as written, for `shell_values`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


class Unreadable(ValueError):
    """A script that no shell could read, or that is too complicated; the text names the line."""


@dataclass(frozen=True)
class Traced:
    """Text with the script line of each character. Lines count from 1; 0 is outside of the script."""

    text: str = ""
    lines: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> Traced:
        """Return a whole script with numbered lines."""
        lines = [number for number, line in enumerate(text.splitlines(keepends=True), 1) for _ in line]
        return cls(text, tuple(lines))

    @classmethod
    def on(cls, text: str, line: int) -> Traced:
        """Put all of the text on one line."""
        return cls(text, (line,) * len(text))

    @property
    def line(self) -> int:
        """Return the first character's line; 0 without any."""
        return self.lines[0] if self.lines else 0

    def __add__(self, other: Traced) -> Traced:
        return Traced(self.text + other.text, self.lines + other.lines)

    def __getitem__(self, part: slice) -> Traced:
        return Traced(self.text[part], self.lines[part])


def joined(parts: Iterable[Traced], separator: str = "") -> Traced:
    """Join the parts; a separator gets the line of the part that follows it."""
    text, lines = [], list[int]()
    for number, part in enumerate(parts):
        before = separator if number else ""
        text += [before, part.text]
        lines += [part.line] * len(before) + list(part.lines)
    return Traced("".join(text), tuple(lines))


@dataclass(frozen=True)
class Part:
    """A stretch of a word: text without its quotes, or an expansion as written."""

    traced: Traced
    is_expansion: bool = False
    is_quoted: bool = False


@dataclass
class Word:
    """A word of a command; `elements` are those of an array assignment, `NAME=( ... )`."""

    line: int
    parts: list[Part] = field(default_factory=list)
    elements: list[Word] | None = None

    @property
    def plain(self) -> str | None:
        """The text if nothing of it is quoted or expanded: only such a word can be a keyword."""
        if any(part.is_quoted or part.is_expansion for part in self.parts):
            return None
        return "".join(part.traced.text for part in self.parts)


@dataclass
class Operator:
    """An operator or a line end. `body`: the lines of a here-document, or the text of `(( ... ))`."""

    text: str
    line: int
    body: Word | None = None


Token = Word | Operator


@dataclass
class Node:
    """A command, or commands that belong together.

    kind: simple, list, &&, ||, |, !, &, (, ((, [[, if, case, for, while, until, select, function.
    """

    kind: str
    line: int
    bodies: list[Node] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirections: list[tuple[Operator, Word]] = field(default_factory=list)
    inside: list[Token] = field(default_factory=list)  # of `[[ ... ]]` and `for (( ... ))`
    patterns: list[list[Word]] = field(default_factory=list)  # of each body of `case`


REDIRECTIONS = frozenset(("<<<", "<<-", "&>>", "<<", ">>", "<&", ">&", ">|", "<>", "&>", "<", ">"))
_OPERATOR = re.compile(r"<<<|<<-|&>>|<<|>>|<&|>&|>\||<>|&>|&&|\|\||\|&|;;&|;;|;&|[;&|()<>]")
_BLANK = " \t\r"
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_PLAIN_END = re.compile(r"[\s\\'\"$`|&;()<>]")
_ENDS_OF_CASE = (";;", ";&", ";;&")


def quoted_parts(source: Traced, escaped: str) -> list[Part]:
    """Split the inside of double quotes, or of a here-document, into text and expansions.

    escaped: characters before which a backslash is removed.
    """
    lexer, parts, start = _Lexer(source), [Part(Traced(), is_quoted=True)], 0

    def text_up_to(end: int) -> None:
        if end > start:
            parts.append(Part(source[start:end], is_quoted=True))

    while lexer.at < len(source.text):
        is_escape = source.text[lexer.at] == "\\" and source.text[lexer.at + 1 : lexer.at + 2] in tuple(escaped)
        if is_escape:
            text_up_to(lexer.at)
            start = lexer.at + 1 + (source.text[lexer.at + 1] == "\n")
            lexer.at += 2
        elif end := lexer.expansion_end(lexer.at):
            text_up_to(lexer.at)
            parts.append(Part(source[lexer.at : end], is_expansion=True, is_quoted=True))
            lexer.at = start = end
        else:
            lexer.at += 1
    text_up_to(len(source.text))
    return parts


class _Lexer:
    """One pass over the characters."""

    def __init__(self, source: Traced) -> None:
        self.source, self.text, self.at = source, source.text, 0
        self.pending: list[tuple[Operator, int]] = []  # here-documents whose lines follow the line's end

    def line(self, at: int) -> int:
        return self.source.lines[min(at, len(self.text) - 1)] if self.text else 1

    def unclosed(self, at: int) -> Unreadable:
        return Unreadable(f"line {self.line(at)}: the {self.text[at]} here is not closed")

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self.skip_blanks(_BLANK):
            line = self.line(self.at)
            if self.text[self.at] == "\n":
                self.at += 1
                self.read_here_documents(found)
                found.append(Operator("\n", line))
            elif self.text.startswith("((", self.at) and (end := self.arithmetic_end()):
                inside = Word(line, [Part(self.source[self.at + 2 : end - 2], is_quoted=True)])
                found.append(Operator("((", line, inside))
                self.at = end
            elif not self.is_process() and (match := _OPERATOR.match(self.text, self.at)):
                last = found[-1] if found else None
                is_number = isinstance(last, Word) and (last.plain or "").isdigit() and self.text[self.at - 1].isdigit()
                if is_number and match[0] in REDIRECTIONS:
                    found.pop()  # the 2 of `2>`
                operator = Operator(match[0], line)
                self.at = match.end()
                if match[0] in ("<<", "<<-"):
                    self.pending.append((operator, len(found) + 1))
                found.append(operator)
            else:
                found.append(self.word())
        return found

    def skip_blanks(self, blanks: str) -> bool:
        """Go to the next token, past comments. Returns False at the end."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in blanks:
                self.at += 1
            elif self.text[self.at] == "#":
                self.at = self.end_of_line()
            else:
                return True
        return False

    def end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def arithmetic_end(self) -> int | None:
        """Return the end of the `(( ... ))` here; None if it is a bracket within a bracket."""
        end = self.closing(self.at + 1)
        return end + 1 if self.text.startswith(")", end) else None

    def is_process(self) -> bool:
        """Return whether a command takes the place of a file here: `<(command)`."""
        return self.text.startswith(("<(", ">("), self.at)

    def word(self) -> Word:
        found = Word(self.line(self.at))
        while self.at < len(self.text) and self.text[self.at] not in _BLANK + "\n":
            character, start = self.text[self.at], self.at
            if character == "(" and _ARRAY.fullmatch(found.plain or ""):
                found.elements = self.array()
                break
            if character in "|&;()<>" and not self.is_process():
                break
            if character == "\\":
                self.at += 2
                if self.text[start + 1 : self.at] != "\n":
                    found.parts.append(Part(self.source[start + 1 : self.at], is_quoted=True))
            elif character == "'" or self.text.startswith("$'", start):
                self.single_quoted(found, start + (character == "$"))
            elif character == '"' or self.text.startswith('$"', start):
                opened = start + (character == "$")
                end = self.quote_end(opened)
                found.parts += quoted_parts(self.source[opened + 1 : end], '$`"\\\n')
                self.at = end + 1
            elif end := self.closing(start + 1) if self.is_process() else self.expansion_end(start) or 0:
                found.parts.append(Part(self.source[start:end], is_expansion=True))
                self.at = end
            else:
                match = _PLAIN_END.search(self.text, start + 1)
                self.at = match.start() if match else len(self.text)
                found.parts.append(Part(self.source[start : self.at]))
        return found

    def single_quoted(self, word: Word, opened: int) -> None:
        end = self.text.find("'", opened + 1)
        while opened > self.at and end > 0 and self.text[end - 1] == "\\":
            end = self.text.find("'", end + 1)
        if end < 0:
            raise self.unclosed(opened)
        inside = self.source[opened + 1 : end]
        # `$'a\tb'` is not interpreted: it stays as written, so its value is not known.
        is_open = opened > self.at and "\\" in inside.text
        word.parts.append(Part(self.source[self.at : end + 1] if is_open else inside, is_open, is_quoted=True))
        self.at = end + 1

    def quote_end(self, opened: int) -> int:
        """Return the place of the `"` that closes the one at `opened`."""
        at = opened + 1
        while at < len(self.text) and self.text[at] != '"':
            at = at + 2 if self.text[at] == "\\" else self.expansion_end(at) or at + 1
        if at >= len(self.text):
            raise self.unclosed(opened)
        return at

    def expansion_end(self, at: int) -> int | None:
        """Return the end of the expansion that begins here; None if none does."""
        if self.text[at] == "`":
            end = at + 1
            while end < len(self.text) and self.text[end] != "`":
                end += 2 if self.text[end] == "\\" else 1
            if end >= len(self.text):
                raise self.unclosed(at)
            return end + 1
        if self.text[at] != "$":
            return None
        if self.text[at + 1 : at + 2] in ("(", "{"):
            return self.closing(at + 1)
        name = _NAME.match(self.text, at + 1)
        return name.end() if name else None

    def closing(self, opened: int) -> int:
        """Return the place behind the bracket that closes the one at `opened`, past those in quotes."""
        depth, at = 0, opened
        opening = self.text[opened]
        closing = ")" if opening == "(" else "}"
        while at < len(self.text):
            character = self.text[at]
            if character == "\\":
                at += 1
            elif character == "'" and (end := self.text.find("'", at + 1)) > 0:
                at = end
            elif character == '"':
                at = self.quote_end(at)
            else:
                depth += (character == opening) - (character == closing)
                if not depth:
                    return at + 1
            at += 1
        raise self.unclosed(opened)

    def array(self) -> list[Word]:
        opened = self.at
        self.at += 1
        found: list[Word] = []
        while self.skip_blanks(_BLANK + "\n"):
            if self.text[self.at] == ")":
                self.at += 1
                return found
            start = self.at
            found.append(self.word())
            if self.at == start:
                break
        raise self.unclosed(opened)

    def read_here_documents(self, found: list[Token]) -> None:
        for operator, place in self.pending:
            delimiter = found[place] if place < len(found) else None
            if not isinstance(delimiter, Word):
                raise Unreadable(f"line {operator.line}: {operator.text} without the word that ends its lines")
            mark = "".join(part.traced.text for part in delimiter.parts)
            start = body_end = self.at
            while self.at < len(self.text):
                end = self.end_of_line()
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if operator.text == "<<-" else line) == mark:
                    break
                body_end = self.at
            body = self.source[start:body_end]
            parts = quoted_parts(body, "$`\\\n") if delimiter.plain else [Part(body, is_quoted=True)]
            operator.body = Word(body.line, parts)
        self.pending = []


def parsed(source: Traced) -> tuple[Node, list[tuple[int, str]]]:
    """Parse a script. Returns also line and text of syntax errors. Raises Unreadable for an unclosed quote."""
    parser = _Parser(source)
    return parser.list_up_to(), parser.problems


class _Parser:
    """One pass over the tokens."""

    def __init__(self, source: Traced) -> None:
        self.tokens, self.at = _Lexer(source).tokens(), 0
        self.problems: list[tuple[int, str]] = []

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def mark(self) -> str | None:
        """Return the next token's text if it is an operator or a plain word."""
        token = self.peek()
        return token.text if isinstance(token, Operator) else token.plain if token and token.elements is None else None

    def line(self) -> int:
        token = self.peek() or (self.tokens[-1] if self.tokens else None)
        return token.line if token else 0

    def problem(self) -> None:
        text = (self.mark() or "a word").replace("\n", "the end of the line")
        self.problems.append((self.line(), f"{text}: a syntax error for every shell: fix it and read the script again"))

    def skip(self, *marks: str) -> bool:
        """Skip all such tokens. Returns whether there was one."""
        start = self.at
        while self.peek() is not None and self.mark() in marks:
            self.at += 1
        return self.at > start

    def list_up_to(self, *ends: str) -> Node:
        """Parse commands up to one of `ends`, which is left; without `ends` up to the last token."""
        found = Node("list", self.line())
        while self.peek() is not None and self.mark() not in ends:
            start = self.at
            if self.skip("\n", ";"):
                continue
            node = self.and_or()
            if self.mark() == "&":
                self.at += 1
                node = Node("&", node.line, [node])
            if self.at == start:
                self.problem()
                self.at += 1
            else:
                found.bodies.append(node)
        if ends and self.peek() is None:
            raise Unreadable(f"line {found.line}: the command that begins here lacks its {' or '.join(ends)}")
        return found

    def block(self, *ends: str) -> Node:
        """Parse commands up to one of `ends`, and skip that."""
        found = self.list_up_to(*ends)
        self.at += 1
        return found

    def and_or(self) -> Node:
        node = self.pipe()
        while (kind := self.mark()) in ("&&", "||") and isinstance(self.peek(), Operator):
            self.at += 1
            self.skip("\n")
            node = Node(kind or "", node.line, [node, self.pipe()])
        return node

    def pipe(self) -> Node:
        line, negations = self.line(), 0
        while self.mark() == "!":
            self.at += 1
            negations += 1
        bodies = [self.command()]
        while self.mark() in ("|", "|&") and isinstance(self.peek(), Operator):
            self.at += 1
            self.skip("\n")
            bodies.append(self.command())
        node = bodies[0] if len(bodies) == 1 else Node("|", line, bodies)
        return Node("!", line, [node]) if negations % 2 else node

    def command(self) -> Node:
        line, mark = self.line(), self.mark()
        following = self.tokens[self.at + 1 : self.at + 3]
        is_definition = [one.text if isinstance(one, Operator) else "" for one in following] == ["(", ")"]
        if mark == "function" or (isinstance(self.peek(), Word) and is_definition):
            self.at += mark == "function"
            name = self.peek()
            self.at += 1
            self.skip("(", ")", "\n")
            return Node("function", line, [self.command()], [name] if isinstance(name, Word) else [])
        node = self.compound(mark, line)
        if node is None:
            return self.simple(line)
        while self.mark() in REDIRECTIONS and isinstance(self.peek(), Operator):
            self.redirection(node)
        return node

    def compound(self, mark: str | None, line: int) -> Node | None:
        """Parse a compound command; None if the next one is a simple command."""
        if mark not in ("if", "case", "for", "select", "while", "until", "{", "(", "((", "[["):
            return None
        operator = self.peek()
        self.at += 1
        match mark:
            case "{" | "(":
                return Node("list" if mark == "{" else "(", line, [self.block("}" if mark == "{" else ")")])
            case "((":
                body = operator.body if isinstance(operator, Operator) else None
                return Node("((", line, words=[body] if body else [])
            case "[[":
                node = Node("[[", line)
                while (token := self.peek()) is not None and self.mark() != "]]":
                    self.at += 1
                    if not (isinstance(token, Operator) and token.text == "\n"):
                        node.inside.append(token)
                self.at += 1
                return node
            case "if":
                return self.branches(line)
            case "case":
                return self.case(line)
            case "while" | "until":
                return Node(mark, line, [self.block("do"), self.block("done")])
        node = Node(mark, line)
        while self.peek() is not None and self.mark() not in ("do", "{"):
            token = self.peek()
            if isinstance(token, Word):
                node.words.append(token)
            elif isinstance(token, Operator) and token.body:
                node.inside.append(token.body)
            self.at += 1
        end = "}" if self.mark() == "{" else "done"
        self.at += 1
        node.bodies = [self.block(end)]
        return node

    def branches(self, line: int) -> Node:
        """Parse behind `if`: its bodies are conditions and branches in turn, then that of `else`."""
        node, end = Node("if", line), "elif"
        while end == "elif":
            node.bodies.append(self.block("then"))
            node.bodies.append(self.list_up_to("elif", "else", "fi"))
            end = self.mark() or ""
            self.at += 1
        if end == "else":
            node.bodies.append(self.block("fi"))
        return node

    def case(self, line: int) -> Node:
        node = Node("case", line)
        if isinstance(subject := self.peek(), Word):
            node.words.append(subject)
            self.at += 1
        self.skip("\n")
        self.skip("in")
        while not self.skip("esac"):
            if self.peek() is None:
                raise Unreadable(f"line {line}: the case here has no esac")
            if self.skip("\n", "(", *_ENDS_OF_CASE):
                continue
            patterns, depth = list[Word](), 0
            while (token := self.peek()) is not None and (depth or self.mark() != ")"):
                depth += (self.mark() == "(") - (self.mark() == ")")
                if depth:  # `@(a|b)` is not followed: its value is not known
                    token = Word(token.line, [Part(Traced.on("$()", token.line), is_expansion=True)])
                if isinstance(token, Word):
                    patterns.append(token)
                self.at += 1
            self.at += 1
            node.patterns.append(patterns)
            node.bodies.append(self.list_up_to("esac", *_ENDS_OF_CASE))
        return node

    def redirection(self, node: Node) -> None:
        operator, target = self.tokens[self.at], self.tokens[self.at + 1 : self.at + 2]
        if target and isinstance(target[0], Word) and isinstance(operator, Operator):
            node.redirections.append((operator, target[0]))
            self.at += 2
        else:
            self.problem()
            self.at += 1

    def simple(self, line: int) -> Node:
        node = Node("simple", line)
        while (token := self.peek()) is not None:
            if isinstance(token, Word):
                node.words.append(token)
                self.at += 1
            elif token.text in REDIRECTIONS:
                self.redirection(node)
            elif token.text in ("(", "((") and node.words:
                self.problem()
                self.at += 1
            else:
                break
        return node
