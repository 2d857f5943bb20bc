"""A shell script's words and operators, with their lines: as much of bash as launch scripts are written in. Pure.

Nothing is run or looked up here. Quotes are taken off; an expansion stays as it is written, for `shell_values`.
"""

from __future__ import annotations

import re

from opsctl.run.init.shell_tokens import REDIRECTIONS, Operator, Part, Token, Unreadable, Word
from opsctl.run.init.traced_text import Traced

_OPERATORS = (
    *("<<<", "<<-", "&>>", "<<", ">>", "<&", ">&", ">|", "<>", "&>", "&&", "||", "|&", ";;"),
    *(";", "&", "|", "(", ")", "<", ">"),
)
_BLANK = " \t\r"
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_CLOSING = {"(": ")", "{": "}"}
_CASE = re.compile(r"(?<![\w$-])(?:case\s+(?:\"[^\"\n]*\"|[^\s;]+)\s+in(?=\s)|esac(?!\w))")
#: Where a stretch of plain text may end.
_SPECIAL, _SPECIAL_IN_VALUES = re.compile(r"[\s\\'\"$`|&;()<>]"), re.compile(r"[\s$`]")
_SPECIAL_INSIDE = re.compile(r"[\\'\"$`]")


def tokens_of(source: Traced) -> list[Token]:
    """A script's tokens, comments left out. Raises Unreadable for a quote or a bracket without its end."""
    return _Reader(source).tokens()


def fields_of(value: Traced) -> list[Word]:
    """A value's words where the shell puts it in unquoted: quotes and operators are text there.

    What of it is an expansion that is not known stays in one piece.
    """
    return _Reader(value, is_value=True).words()


def inside_of(written: Traced) -> Word:
    """What stands behind the operator of `${X:-...}` and `${X%...}`: blanks and operators are text there."""
    found, reader = Word(written.line), _Reader(written)
    reader.special = _SPECIAL_INSIDE
    while reader.at < len(reader.text):
        reader.part(found)
    return found


class _Reader:
    """Walks over the characters once."""

    def __init__(self, source: Traced, is_value: bool = False) -> None:
        self.text, self.source, self.at = source.text, source, 0
        self.is_value = is_value
        self.special = _SPECIAL_IN_VALUES if is_value else _SPECIAL
        self.pending: list[int] = []  # tokens that open here-documents, whose lines follow the line's end

    @property
    def line(self) -> int:
        return self.source.lines[min(self.at, len(self.text) - 1)] if self.text else 1

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self.skip_blanks():
            character = self.text[self.at]
            if character == "#":
                self.at = self.end_of_line()
            elif character == "\n":
                self.at += 1
                self.read_pending(found)
                found.append(Operator("\n", self.source.lines[self.at - 1]))
            elif self.text.startswith("((", self.at) and (end := self.arithmetic_end()):
                inside = Word(self.line, [Part(self.source[self.at + 2 : end - 2], is_quoted=True)])
                found.append(Operator("((", self.line, inside))
                self.at = end
            elif not self.is_process() and (operator := self.operator_here()):
                found.append(self.operator(operator, found))
            else:
                found.append(self.word())
        return found

    def arithmetic_end(self) -> int | None:
        """Where the `(( ... ))` that begins here ends; None where it is a bracket within a bracket."""
        end = self.closing(self.at + 1)
        return end + 1 if self.text.startswith(")", end) else None

    def words(self) -> list[Word]:
        found = []
        while self.skip_blanks("\n"):
            found.append(self.word())
        return found

    def skip_blanks(self, more: str = "") -> bool:
        """Go to the next token; whether there is one."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at) and not self.is_value:
                self.at += 2
            elif self.text[self.at] in _BLANK + more:
                self.at += 1
            else:
                return True
        return False

    def end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def operator_here(self) -> str | None:
        if self.is_value:
            return None
        return next((one for one in _OPERATORS if self.text.startswith(one, self.at)), None)

    def is_process(self) -> bool:
        """Whether a command stands here for a file: `<(command)`, `>(command)`."""
        return not self.is_value and self.text.startswith(("<(", ">("), self.at)

    def operator(self, text: str, before: list[Token]) -> Operator:
        """Step over it. The number of `2>` was read as a word and is taken back."""
        last = before[-1] if before else None
        is_number = isinstance(last, Word) and (last.plain or "").isdigit() and self.text[self.at - 1].isdigit()
        if text in REDIRECTIONS and is_number:
            before.pop()
        found = Operator(text, self.line)
        self.at += len(text)
        if text in ("<<", "<<-"):
            self.pending.append(len(before))
        return found

    def word(self) -> Word:
        found = Word(self.line)
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in _BLANK + "\n":
                break
            if character == "(" and not self.is_value and _ARRAY.fullmatch(found.plain or ""):
                found.elements = self.array()
                break
            if not self.is_value and character in "|&;()<>" and not self.is_process():
                break
            self.part(found)
        return found

    def part(self, word: Word) -> None:
        """One more stretch of `word`, up to where its kind changes."""
        character, start = self.text[self.at], self.at
        if not self.is_value and character == "\\":
            self.at += 2
            escaped = self.source[start + 1 : start + 2]
            if escaped.text != "\n":
                word.parts.append(Part(escaped, is_quoted=True))
        elif not self.is_value and (character == "'" or self.text.startswith("$'", self.at)):
            self.single_quoted(word, start + (character == "$"))
        elif not self.is_value and (character == '"' or self.text.startswith('$"', self.at)):
            self.at += 1 + (character == "$")
            self.double_quoted(word, start)
        elif (closed := self.closing(start + 1) if self.is_process() else self.expansion_end()) is not None:
            self.at = closed
            word.parts.append(Part(self.source[start:closed], is_expansion=True))
        else:
            self.plain_text(word)

    def single_quoted(self, word: Word, opened: int) -> None:
        begun = self.at
        end = self.text.find("'", opened + 1)
        while opened > begun and end > 0 and self.text[end - 1] == "\\" and self.text[end - 2] != "\\":
            end = self.text.find("'", end + 1)
        if end < 0:
            raise Unreadable(f"line {self.line}: the quote that is opened here has no end")
        self.at = end + 1
        inside = self.source[opened + 1 : end]
        # What `$'...\t...'` stands for is not followed, so that the whole stays as it is written.
        is_open = opened > begun and "\\" in inside.text
        word.parts.append(Part(self.source[begun : self.at] if is_open else inside, is_open, is_quoted=True))

    def plain_text(self, word: Word) -> None:
        """Up to the next character that may be more than text."""
        start = self.at
        found = self.special.search(self.text, start + 1)
        self.at = found.start() if found else len(self.text)
        word.parts.append(Part(self.source[start : self.at]))

    def double_quoted(self, word: Word, opened: int) -> None:
        word.parts.append(Part(Traced(), is_quoted=True))  # "" is a word too
        begun = self.at
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                word.parts.append(Part(self.source[begun : self.at], is_quoted=True))
                self.at += 1
                return
            end = None if character == "\\" else self.expansion_end()
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                word.parts.append(Part(self.source[begun : self.at], is_quoted=True))
                if self.text[self.at + 1] == "\n":
                    word.parts.append(Part(self.source[self.at + 2 : self.at + 2], is_quoted=True))
                else:
                    word.parts.append(Part(self.source[self.at + 1 : self.at + 2], is_quoted=True))
                self.at += 2
                begun = self.at
            elif end:
                word.parts.append(Part(self.source[begun : self.at], is_quoted=True))
                word.parts.append(Part(self.source[self.at : end], is_expansion=True, is_quoted=True))
                self.at = begun = end
            else:
                self.at += 1
        self.at = opened
        raise Unreadable(f"line {self.line}: the quote that is opened here has no end")

    def expansion_end(self) -> int | None:
        """Where the expansion that begins here ends; None where none begins."""
        if self.text[self.at] == "`":
            end = self.at + 1
            while end < len(self.text) and self.text[end] != "`":
                end += 2 if self.text[end] == "\\" else 1
            if end >= len(self.text):
                raise Unreadable(f"line {self.line}: the ` that is opened here has no end")
            return end + 1
        if self.text[self.at] != "$":
            return None
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("(", "{"):
            return self.closing(self.at + 1)
        if name := _NAME.match(self.text, self.at + 1):
            return name.end()
        return self.at + 2 if following and following in "0123456789@*#?$!" else None

    def closing(self, opened: int) -> int:
        """Behind the bracket that closes the one at `opened`; those within quotes count for nothing."""
        depth, at = 0, opened
        cases: list[int] = []  # how deep each `case` stands, of which a pattern's end closes nothing
        opening, closing = self.text[opened], _CLOSING[self.text[opened]]
        while at < len(self.text):
            character = self.text[at]
            if character == "\\":
                at += 1
            elif character in "'\"" and (end := _quote_end(self.text, at)):
                at = end
            elif character == opening:
                depth += 1
            elif opening == "(" and character in "ce" and (word := _CASE.match(self.text, at)):
                cases = cases[:-1] if character == "e" else [*cases, depth]
                at = word.end() - 1
            elif character == closing and depth not in cases[-1:]:
                depth -= 1
                if not depth:
                    return at + 1
            at += 1
        raise Unreadable(f"line {self.line}: the {opening} that is opened here has no end")

    def array(self) -> list[Word]:
        """The elements between the brackets, over any number of lines."""
        begun = self.line
        self.at += 1
        found: list[Word] = []
        while self.skip_blanks("\n"):
            if self.text[self.at] == ")":
                self.at += 1
                return found
            if self.text[self.at] == "#":
                self.at = self.end_of_line()
            elif self.operator_here() and not self.is_process():
                break
            else:
                found.append(self.word())
        raise Unreadable(f"line {begun}: the ( that is opened here has no end")

    def read_pending(self, found: list[Token]) -> None:
        """The lines of the here-documents that the line before has opened; the word after `<<` ends them."""
        for place in self.pending:
            operator, delimiter = found[place], found[place + 1] if place + 1 < len(found) else None
            assert isinstance(operator, Operator)
            if not isinstance(delimiter, Word):
                raise Unreadable(f"line {operator.line}: {operator.text} without the word that ends the lines after it")
            ends_with = "".join(part.traced.text for part in delimiter.parts)
            begun, body_end = self.at, len(self.text)
            while self.at < len(self.text):
                start, end = self.at, self.end_of_line()
                self.at = min(end + 1, len(self.text))
                line = self.text[start:end]
                if (line.lstrip("\t") if operator.text == "<<-" else line) == ends_with:
                    body_end = start
                    break
            body = self.source[begun:body_end]
            operator.body = _expanding(body) if delimiter.plain else Word(body.line, [Part(body, is_quoted=True)])
        self.pending = []


def _quote_end(text: str, opened: int) -> int | None:
    """Where the quote opened there ends; None where it does not, as an apostrophe."""
    at = opened + 1
    while at < len(text) and text[at] != text[opened]:
        at += 2 if text[at] == "\\" and text[opened] == '"' else 1
    return at if at < len(text) else None


def _expanding(body: Traced) -> Word:
    """A here-document as the inside of double quotes is read, but with `"` as text."""
    word, reader, begun = Word(body.line), _Reader(body), 0
    while reader.at < len(reader.text):
        end = reader.expansion_end()
        if end:
            word.parts.append(Part(body[begun : reader.at], is_quoted=True))
            word.parts.append(Part(body[reader.at : end], is_expansion=True, is_quoted=True))
            reader.at = begun = end
        elif reader.text[reader.at] == "\\" and reader.text[reader.at + 1 : reader.at + 2] in ("$", "`", "\\", "\n"):
            word.parts.append(Part(body[begun : reader.at], is_quoted=True))
            begun = reader.at + 1 + (reader.text[reader.at + 1] == "\n")
            reader.at += 2
        else:
            reader.at += 1
    word.parts.append(Part(body[begun:], is_quoted=True))
    return word
