"""What a script's variables are worth at one place of it, as far as the script alone tells.

What it does not tell stays as it is written, `${HOME}` or `$(date)`: a value with a `$` left in it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.run.init.shell_patterns import Piece, braces, cut, pattern_of, replaced
from opsctl.run.init.shell_state import VARIABLE, State, in_braces, is_argument
from opsctl.run.init.shell_tokens import Part, Word
from opsctl.run.init.shell_words import fields_of, inside_of
from opsctl.run.init.traced_text import Traced, joined

_WITH_OPERATOR = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*|\d+)(?P<operator>:?[-=+?])(?P<word>.*)\}", re.DOTALL)
_ELEMENTS = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)\[(?P<index>[@*]|\d+)\]\}")
_ARITHMETIC = re.compile(r"\$\(\((?P<text>.*)\)\)", re.DOTALL)
_FOLDER = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?")
_PATTERN = re.compile(r"[*?]|\[[^]]+\]")
_LENGTH = re.compile(r"\$\{#(?P<name>[A-Za-z_]\w*)(?P<all>\[[@*]\])?\}")
_CHANGED = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*|\d+)(?P<operator>##?|%%?|//?|\^\^|,,)(?P<word>.*)\}", re.DOTALL)


class Values(State):
    """The state, and what words are worth in it."""

    def text_of(self, name: str) -> Traced | None:
        """A variable's value, an array's with blanks between; None where nobody can tell it."""
        value = self.used(name)
        return joined(value, " ") if isinstance(value, list) else value

    def text(self, parts: Iterable[Part]) -> Traced:
        """The parts of a word as one text, as an assignment or double quotes make it."""
        return joined(self._of(part) for part in parts)

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """The parts of a word as a pattern has them."""
        return [(self._of(part).text, part.is_quoted) for part in parts]

    def fields(self, words: Iterable[Word], finds_files: bool = True) -> list[Traced]:
        """The words as a command gets them: what an unquoted expansion brings is cut at its blanks.

        finds_files: an unquoted pattern stands for files that nobody knows, so it becomes `$(ls -d PATTERN)`.
        """
        found: list[Traced] = []
        for word in words:
            fields = self._fields_of(word)
            may_be_one = finds_files and any(map(_may_have_a_pattern, word.parts))
            found += [_files_of(one) for one in fields] if may_be_one else fields
        return found

    def _fields_of(self, word: Word) -> list[Traced]:
        elements = self._elements(word.parts)
        if elements is not None:
            return elements
        if len(word.parts) == 1 and not (part := word.parts[0]).is_quoted and not part.is_expansion:
            found = braces(part.traced.text)
            if not found:
                return [Traced.on(f"$(echo {part.traced.text})", word.line)]  # not known
            return [part.traced] if len(found) < 2 else [Traced.on(one, word.line) for one in found]
        done: list[Traced] = []
        current, open_word = Traced(), False
        for part in word.parts:
            value = self._of(part)
            if part.is_quoted or not part.is_expansion:
                current, open_word = current + value, True
                continue
            if value.text == in_braces(part.traced).text or self.is_cut_otherwise(value.text):
                # Not known, so nobody knows its blanks; nor where it is cut at something else.
                current, open_word = current + in_braces(part.traced), True
                continue
            cut = [joined(one.traced for one in each.parts) for each in fields_of(value)]
            starts_anew, ends = value.text[:1].isspace(), value.text[-1:].isspace()
            if cut and (starts_anew or not open_word):
                done += [current] if open_word else []
                current, open_word = cut.pop(0), True
            elif cut:
                current = current + cut.pop(0)
            for one in cut:
                done.append(current)
                current = one
            if ends and open_word:
                done.append(current)
                current, open_word = Traced(), False
        return [*done, current] if open_word else done

    def _elements(self, parts: list[Part]) -> list[Traced] | None:
        """Those of an array, where that is all that the word is."""
        said = [part for part in parts if part.traced.text or part.is_expansion]
        if len(said) == 1 and said[0].is_expansion and said[0].traced.text in ("$@", "${@}", "$*", "${*}"):
            is_one = said[0].is_quoted and "*" in said[0].traced.text
            is_cut = not (said[0].is_quoted or self.cuts_at_blanks)
            return None if self.arguments is None or is_one or is_cut else list(self.arguments)
        match = _ELEMENTS.fullmatch(said[0].traced.text) if len(said) == 1 else None
        if match is None or match["index"] not in "@*" or (said[0].is_quoted and match["index"] == "*"):
            return None
        if not (said[0].is_quoted or self.cuts_at_blanks):
            return None
        value = self.used(match["name"])
        if not isinstance(value, list):
            return None if value is None else [value]
        return list(value)

    def _of(self, part: Part) -> Traced:
        if not part.is_expansion:
            return part.traced
        written = part.traced
        if match := _FOLDER.fullmatch(written.text):
            return Traced.on(self.folder.text, written.line) if self.folder else written
        if match := VARIABLE.fullmatch(written.text):
            return self._variable(match["braced"] or match["bare"], written)
        if match := _ELEMENTS.fullmatch(written.text):
            return self._element(match["name"], match["index"], written)
        if match := _WITH_OPERATOR.fullmatch(written.text):
            return self._with_operator(match, written)
        if match := _ARITHMETIC.fullmatch(written.text):
            number = self.reckon(match["text"], written.line)
            return written if number is None else Traced.on(str(number), written.line)
        if match := _LENGTH.fullmatch(written.text):
            return self._length(match, written)
        if match := _CHANGED.fullmatch(written.text):
            return self._changed(match, written)
        return written

    def _variable(self, name: str, written: Traced) -> Traced:
        if is_argument(name):
            return written if name == "*" and not self.cuts_at_blanks else self.argument(name, written)
        value = self.used(name)
        if value is None:
            return in_braces(written)
        if isinstance(value, list):
            return value[0] if value else Traced()
        return value

    def _length(self, match: re.Match[str], written: Traced) -> Traced:
        value = self.used(match["name"])
        if value is None:
            return written
        elements = value if isinstance(value, list) else [value]
        length = len(elements) if match["all"] else len(elements[0]) if elements else 0
        return Traced.on(str(length), written.line)

    def _changed(self, match: re.Match[str], written: Traced) -> Traced:
        """`${X%.*}` and its kin."""
        value, operator = self.used(match["name"]), match["operator"]
        if not isinstance(value, Traced) or is_open(value.text):
            return written
        parts = inside_of(written[match.start("word") : match.end("word")]).parts
        found = None
        if operator in ("^^", ",,"):
            found = None if parts else value.text.upper() if operator == "^^" else value.text.lower()
        elif operator in ("/", "//"):
            found = self._replaced(value.text, parts, operator == "//")
        elif pattern := self._pattern(parts):
            found = cut(value.text, operator, pattern)
        return written if found is None else Traced.on(found, written.line)

    def _pattern(self, parts: Iterable[Part]) -> re.Pattern[str] | None:
        pieces = self.pieces(parts)
        return None if any(is_open(text) for text, _ in pieces) else pattern_of(pieces)

    def _replaced(self, text: str, parts: list[Part], all_of_them: bool) -> str | None:
        """`${X/pattern/by}`: the first `/` that is in no quotes and no expansion parts the two."""
        split = (n for n, one in enumerate(parts) if "/" in one.traced.text and not (one.is_quoted or one.is_expansion))
        place = next(split, len(parts))
        before, behind = list(parts[:place]), list(parts[place + 1 :])
        if place < len(parts):
            written = parts[place].traced
            slash = written.text.index("/")
            before, behind = [*before, Part(written[:slash])], [Part(written[slash + 1 :]), *behind]
        pattern, by = self._pattern(before), self.text(behind).text
        is_anchored = bool(before) and before[0].traced.text[:1] in ("#", "%")
        return None if pattern is None or is_anchored or is_open(by) else replaced(text, pattern, by, all_of_them)

    def _element(self, name: str, index: str, written: Traced) -> Traced:
        value = self.used(name)
        if not isinstance(value, list):
            return written if value is None else value
        if index in "@*":
            return joined(value, " ") if self.cuts_at_blanks or index == "@" else written
        return value[int(index)] if int(index) < len(value) else Traced()

    def _with_operator(self, match: re.Match[str], written: Traced) -> Traced:
        """`${NAME:-word}` and its kin. What the caller's environment may have counts less than what the script says."""
        name, operator = match["name"], match["operator"]
        value = self.used(name)
        known = value[0] if isinstance(value, list) and value else value if isinstance(value, Traced) else None
        if name.isdigit() and self.arguments is not None and 0 < int(name) <= len(self.arguments):
            known = self.arguments[int(name) - 1]
        is_some = known is not None and (not is_open(known.text) or has_text(known.text))
        if name in self.unsure or (known is not None and not is_some and ":" in operator):
            return written
        has_one = known is not None and name not in self.removed and (bool(known.text) or ":" not in operator)
        if operator[-1] == "?":
            return known if known is not None and has_one else in_braces(Traced.on("${" + name + "}", written.line))
        if known is None and not self.is_taken_to_be_unset(name) and name not in (*self.kept_back, *self.known):
            return written
        if has_one == (operator[-1] == "+"):
            chosen = self.text(inside_of(written[match.start("word") : match.end("word")]).parts)
        else:
            chosen = known or Traced()
        if operator[-1] == "=" and not has_one:
            self.assign(name, chosen, line=written.line)
        return chosen


def _may_have_a_pattern(part: Part) -> bool:
    return not part.is_quoted and (part.is_expansion or re.search(r"[*?[]", part.traced.text) is not None)


def _files_of(field: Traced) -> Traced:
    without_expansions = re.sub(r"\$\{[^}]*\}", "", field.text)
    is_one = not is_open(without_expansions) and _PATTERN.search(without_expansions)
    return Traced.on(f"$(ls -d {field.text})", field.line) if is_one else field


def is_open(text: str) -> bool:
    """Whether something is left in a value that nobody knows."""
    return "$" in text or "`" in text


def has_text(text: str) -> bool:
    """Whether a value is not empty, whatever the variables are that are left in it."""
    rest = VARIABLE.sub("", text)
    return rest != "" and not is_open(rest)


def is_known_but_for_variables(text: str) -> bool:
    """Whether nothing but plain variables is left in a value."""
    return "$" not in VARIABLE.sub("", text) and "`" not in text


def why_open(text: str) -> str:
    """Of a value with more than variables left in it, why nobody knows it."""
    if "$((" in text:
        return "it is arithmetic that is not followed, or that no shell does: a number with _ in it is none to a shell"
    if "$(ls -d " in text:
        return "it is the files that are there when it is started"
    if re.search(r"\$\{[^}]*[^}\w]", text):
        return "it is an expansion that is not followed"
    return "it is what a command prints"
