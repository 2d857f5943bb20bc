"""Split a shell script into words and operators with their lines. Pure; nothing is run or opened.

Quotes are removed. An expansion such as `${X:-y}` or `$(date)` stays as written, for `shell_values`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class Unreadable(ValueError):
    """A script that no shell could read, or that is too complicated; the text names the line."""


@dataclass(frozen=True)
class Part:
    """A stretch of a word: text without its quotes, or an expansion as written."""

    text: str
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
        return "".join(part.text for part in self.parts)


@dataclass
class Operator:
    """An operator or a line end. `body`: the lines of a here-document, or the text of `(( ... ))`."""

    plain: str
    line: int
    body: Word | None = None


Token = Word | Operator

REDIRECTIONS = frozenset(("<<<", "<<-", "&>>", "<<", ">>", "<&", ">&", ">|", "<>", "&>", "<", ">"))
_OPERATOR = re.compile(r"<<<|<<-|&>>|<<|>>|<&|>&|>\||<>|&>|&&|\|\||\|&|;;&|;;|;&|[;&|()<>\n]")
_BETWEEN = re.compile(r"(?:[ \t\r]|\\\n|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_PLAIN = re.compile(r"[^\n][^\s\\'\"$`|&;()<>]*")
_ANSI_QUOTED = re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL)


def tokens(text: str, line: int = 1) -> list[Token]:
    """Return the words and operators of a script that begins on `line`. Raises Unreadable for an unclosed quote."""
    return _Lexer(text, line).tokens()


def quoted_parts(text: str, escaped: str) -> list[Part]:
    """Split the inside of double quotes, or of a here-document, into text and expansions.

    escaped: characters before which a backslash is removed.
    """
    lexer, parts, start = _Lexer(text, 1), [Part("", is_quoted=True)], 0
    while lexer.at < len(text):
        at, following = lexer.at, text[lexer.at + 1 : lexer.at + 2]
        end = lexer.expansion_end(at)
        if text[at] == "\\" and following and following in escaped:
            parts.append(Part(text[start:at], is_quoted=True))
            start, lexer.at = at + 1 + (following == "\n"), at + 2
        elif end:
            parts += [Part(text[start:at], is_quoted=True), Part(text[at:end], is_expansion=True, is_quoted=True)]
            start = lexer.at = end
        else:
            lexer.at += 1
    return [*parts, Part(text[start:], is_quoted=True)]


class _Lexer:
    """One pass over the characters."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text, self.at, self.first_line = text, 0, first_line
        self.pending: list[tuple[Operator, int]] = []  # here-documents whose lines follow the line's end

    def line(self, at: int) -> int:
        return self.first_line + self.text.count("\n", 0, at)

    def unclosed(self, at: int) -> Unreadable:
        return Unreadable(f"line {self.line(at)}: the {self.text[at]} here is not closed")

    def go_to_token(self) -> bool:
        """Go past blanks and comments. Returns False at the end."""
        if match := _BETWEEN.match(self.text, self.at):
            self.at = match.end()
        return self.at < len(self.text)

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self.go_to_token():
            line = self.line(self.at)
            if self.text.startswith("((", self.at) and self.text.startswith(")", end := self.closing(self.at + 1)):
                inside = Word(line, [Part(self.text[self.at + 2 : end - 1], is_quoted=True)])
                found.append(Operator("((", line, inside))
                self.at = end + 1
            elif not self.is_process() and (match := _OPERATOR.match(self.text, self.at)):
                last = found[-1] if found else None
                is_number = isinstance(last, Word) and (last.plain or "").isdigit() and self.text[self.at - 1].isdigit()
                if is_number and match[0] in REDIRECTIONS:
                    found.pop()  # the 2 of `2>`
                operator = Operator(match[0], line)
                self.at = match.end()
                if match[0] in ("<<", "<<-"):
                    self.pending.append((operator, len(found) + 1))
                if match[0] == "\n":
                    self.read_here_documents(found)
                if match[0] != "\n" or not isinstance(last, Operator) or last.plain not in ("&&", "||", "|", "|&"):
                    found.append(operator)
            else:
                found.append(self.word())
        return found

    def is_process(self) -> bool:
        """Return whether a command replaces a file here: `<(command)`."""
        return self.text.startswith(("<(", ">("), self.at)

    def word(self) -> Word:
        text, found = self.text, Word(self.line(self.at))
        while self.at < len(text) and text[self.at] not in " \t\r\n":
            character, start = text[self.at], self.at
            if character == "(" and _ARRAY.fullmatch(found.plain or ""):
                found.elements = self.array()
                break
            if character in "|&;()<>" and not self.is_process():
                break
            if character == "\\":
                self.at += 2
                if text[start + 1 : self.at] == "\n":
                    continue
                part = Part(text[start + 1 : self.at], is_quoted=True)
            elif character == "'":
                self.at = text.find("'", start + 1) + 1
                if not self.at:
                    raise self.unclosed(start)
                part = Part(text[start + 1 : self.at - 1], is_quoted=True)
            elif character == '"':
                self.at = self.quote_end(start) + 1
                found.parts += quoted_parts(text[start + 1 : self.at - 1], '$`"\\\n')
                continue
            elif end := self.closing(start + 1) if self.is_process() else self.expansion_end(start):
                self.at = end
                part = Part(text[start : self.at], is_expansion=True)
            else:  # the escapes of `$'...'` are not read, so its value is unknown
                ansi = _ANSI_QUOTED.match(text, start)
                match = ansi or _PLAIN.match(text, start)
                self.at = match.end() if match else start + 1
                part = Part(text[start : self.at], is_expansion=ansi is not None, is_quoted=ansi is not None)
            found.parts.append(part)
        found.parts = [part for part in found.parts if part.text or part.is_quoted]
        return found

    def quote_end(self, opened: int) -> int:
        """Return the place of the `"` that closes the one at `opened`."""
        at = opened + 1
        while at < len(self.text) and self.text[at] != '"':
            at = at + 2 if self.text[at] == "\\" else self.expansion_end(at) or at + 1
        if at >= len(self.text):
            raise self.unclosed(opened)
        return at

    def expansion_end(self, at: int) -> int:
        """Return the end of the expansion that begins here; 0 if none does."""
        if self.text[at] == "`":
            end = at + 1
            while end < len(self.text) and self.text[end] != "`":
                end += 2 if self.text[end] == "\\" else 1
            if end >= len(self.text):
                raise self.unclosed(at)
            return end + 1
        if self.text[at] != "$":
            return 0
        if self.text[at + 1 : at + 2] in ("(", "{"):
            return self.closing(at + 1)
        name = _NAME.match(self.text, at + 1)
        return name.end() if name else 0

    def closing(self, opened: int) -> int:
        """Return the place behind the bracket that closes the one at `opened`, past those in quotes."""
        depth, at, opening = 0, opened, self.text[opened]
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
        while self.go_to_token():
            start = self.at
            if self.text[start] == ")":
                self.at += 1
                return found
            if self.text[start] == "\n":
                self.at += 1
                continue
            found.append(self.word())
            if self.at == start:
                break
        raise self.unclosed(opened)

    def read_here_documents(self, found: list[Token]) -> None:
        for operator, place in self.pending:
            delimiter = found[place] if place < len(found) else None
            if not isinstance(delimiter, Word):
                raise Unreadable(f"line {operator.line}: {operator.plain} without the word that ends its lines")
            mark = "".join(part.text for part in delimiter.parts)
            tabs = "\t*" if operator.plain == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(mark)}(?:\n|\Z)", re.MULTILINE).search(self.text, self.at)
            body = self.text[self.at : end.start() if end else len(self.text)]
            parts = quoted_parts(body, "$`\\\n") if delimiter.plain else [Part(body, is_quoted=True)]
            operator.body = Word(self.line(self.at), parts)
            self.at = end.end() if end else len(self.text)
        self.pending = []
