"""Read a launch script command by command, without running any of it. Pure.

Assignments, arrays, here-documents, `bash -c`, and tests that the script decides are read. In loops, functions, `case`
and branches that it does not decide, the commands are found and the variables that they set become unknown. The notes
list each of these with its line.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from opsctl.run.init.shell_syntax import REDIRECTIONS, Operator, Token, Unreadable, Word, tokens
from opsctl.run.init.shell_values import NAME, SETS, VARIABLE, SetUp, State, Variable, is_open

#: These may read variables, or set them again.
_BRINGING = frozenset(("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "eval"))
_SETTING_UP = _BRINGING | frozenset(("ulimit", "umask", "unset", "shopt"))
_DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
#: These set the variables that they are given the names of.
_SETTING = frozenset(("read", "mapfile", "readarray", "getopts", "printf", "unset", "wait"))
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
#: These start the program that they are given.
_STARTING = frozenset(("srun", "mpirun", "mpiexec", "exec", "time", "nohup", "apptainer", "singularity", "env"))
_SUCCEEDING = frozenset(("true", ":", "echo", "set", "export", "cd"))
#: These leave the files that they are given as they are.
_READERS = frozenset(("cat", "echo", "ls", "head", "grep", "test", "[", "export"))
_OUTPUTS = frozenset((">", ">>", ">|", "&>", "&>>", "<>", ">&"))
#: Left as it is wherever the shell's folder is needed.
_UNKNOWN_FOLDER = "$(pwd -P)"
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<index>\[.*\])?(?P<append>\+?)=")

_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_BEFORE_COMMANDS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "{", "!"))
_ENDS_OF_CASE = (";;", ";&", ";;&")
#: What is not a command behind a keyword, up to one of these marks.
_NOT_COMMANDS = {
    **dict.fromkeys(("for", "select"), ("\n", ";", "do", "((")),
    **dict.fromkeys(_ENDS_OF_CASE, (")", "esac")),
    **{"case": (")", "esac"), "[[": ("]]",), "function": ("\n", "(", "{")},
}


@dataclass(frozen=True)
class Command:
    """One command with its words."""

    words: tuple[str, ...]
    line: int
    state: State  # of the shell, when the command starts
    files: Files  # written by then
    is_sure: bool  # False: it is in a loop, a function or a branch that is not decided
    around: tuple[str, ...] = ()  # the words that start the inner shell which it is in

    @property
    def name(self) -> str:
        """The program's, without its folder."""
        return self.words[0].rpartition("/")[2]


@dataclass
class Files:
    """The files that a script writes. `lost`: name -> line of what writes it in a way that is not read."""

    known: dict[str, tuple[str, int]] = field(default_factory=dict)  # text and line by path
    lost: dict[str, int] = field(default_factory=dict)  # by name, without the folder

    def write(self, path: str, text: str | None, line: int) -> None:
        """Record the contents of a file from here on; text None: unknown."""
        name = posixpath.basename(path)
        if text is None:
            self.known = {one: found for one, found in self.known.items() if posixpath.basename(one) != name}
            self.lost[name] = line
        else:
            self.lost.pop(name, None)
            self.known[path] = text, line


@dataclass
class Script:
    """The commands of a script. `notes`: line and text about commands that are not read."""

    state: State
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, list[list[Token]]] = field(default_factory=dict)  # each body that a function may have
    files: Files = field(default_factory=Files)
    notes: list[tuple[int, str]] = field(default_factory=list)


def read_script(text: str, given: Mapping[str, str], arguments: Sequence[str] | None = None) -> Script:
    """Read the script from its first line. Raises Unreadable.

    given: variables that Slurm sets. arguments: those of the script; None if they are not known.
    """
    variables = {name: Variable(value, 0, is_exported=True) for name, value in given.items()}
    if arguments is not None:
        variables["@"] = Variable(tuple(arguments), 0)
    reader = _Reader(Script(State(variables)))
    reader.read(tokens(text))
    return reader.script


def placed(folder: str | None, path: str) -> str:
    """Return the path from the folder that it starts in; None: the script's own."""
    here = re.match(r"(?:\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?)/", path)
    if here and folder is None:
        path = path[here.end() :]
    if folder is not None and not path.startswith(("/", "~", "$", "`")):
        path = f"{folder}/{path}"
    return posixpath.normpath(path)


def _split(found: Sequence[Token], stops: Container[str]) -> list[tuple[list[Token], str]]:
    """Split at operators and keywords that are in no bracket or compound command; each piece with its stop."""
    pieces: list[tuple[list[Token], str]] = []
    start, is_command, before = 0, True, ""
    opened: list[tuple[str, int]] = []  # the closing mark, and the line of the opening one
    for place, token in enumerate(found):
        mark, is_operator = token.plain or "", isinstance(token, Operator)
        closes = bool(opened) and mark == opened[-1][0] and (is_operator or is_command or mark == "]]")
        if not opened and mark in stops and (is_operator or is_command):
            pieces.append((list(found[start:place]), mark))
            start = place + 1
        elif closes:
            opened.pop()
        elif opened and opened[-1][0] == "]]":
            continue
        elif mark == "(" and is_operator:
            opened.append((")", token.line))
        elif is_command and mark == "[[":
            opened.append(("]]", token.line))
        elif is_command and mark in _OPENING:
            opened.append((_OPENING[mark], token.line))
        begins = is_operator and mark not in REDIRECTIONS
        is_command = begins or (is_command and mark in _BEFORE_COMMANDS) or before == "function"
        before = mark
    if opened:
        closing, line = opened[-1]
        raise Unreadable(f"line {line}: the command that begins here lacks its {closing}")
    return [*pieces, (list(found[start:]), "")]


class _Reader:
    def __init__(self, script: Script) -> None:
        self.script, self.state = script, script.state
        self.is_sure = True
        self.called: set[str] = set()  # functions
        self.around: tuple[str, ...] = ()

    def note(self, line: int, text: str) -> None:
        self.script.notes.append((line, text))

    # Lists and compound commands: each returns whether it succeeds; None if the script does not decide.

    def read(self, found: Sequence[Token]) -> bool | None:
        truth: bool | None = None
        for piece, stop in _split(found, ("\n", ";", "&")):
            before = self.state.copy()
            if piece:
                truth = self.and_or(piece)
            if stop == "&":
                self.state = before
        return truth

    def and_or(self, found: Sequence[Token]) -> bool | None:
        truth: bool | None = True
        operator = "&&"
        for piece, stop in _split(found, ("&&", "||")):
            if truth is None:
                self.find_commands(piece)
            elif truth == (operator == "&&"):
                truth = self.pipe(piece)
            operator = stop
        return truth

    def pipe(self, found: Sequence[Token]) -> bool | None:
        if found and found[0].plain == "!":
            truth = self.pipe(found[1:])
            return None if truth is None else not truth
        pieces = _split(found, ("|", "|&"))
        if len(pieces) == 1:
            return self.command(found)
        before = self.state
        for piece, _ in pieces:
            self.state = before.copy()
            self.command(piece)
        self.state = before
        return None

    def command(self, found: Sequence[Token]) -> bool | None:
        if not found or self.state.has_ended:
            return None
        first, mark = found[0], found[0].plain or ""
        is_operator = isinstance(first, Operator)
        if mark == "function" or (not is_operator and [one.plain for one in found[1:3]] == ["(", ")"]):
            has_keyword = mark == "function"
            body = list(found[1 + has_keyword :])
            while body and body[0].plain in ("(", ")", "\n"):
                body.pop(0)
            name = found[has_keyword].plain or ""
            self.script.functions[name] = [body] if self.is_sure else [*self.script.functions.get(name, ()), body]
            return None
        if mark in ("for", "select", "while", "until", "case"):
            self.note(first.line, f"{mark}: it is not evaluated, so the values that it sets are unknown")
            self.find_commands(found)
        elif mark == "if":
            self.branches(found)
        elif mark == "[[":
            end = next((n for n, one in enumerate(found) if one.plain == "]]"), len(found))
            words = [one for one in found[1:end] if isinstance(one, Word)]
            return self.state.truth(words, is_double=True) if len(words) == end - 1 else None
        elif mark in ("{", "("):
            (body, _), *rest = _split(found[1:], ("}" if mark == "{" else ")",))
            before = self.state.copy()
            truth = self.read(body)
            if mark == "(":
                self.state = before
            self.simple(rest[0][0])  # its redirections
            return truth
        elif isinstance(first, Operator) and mark == "((" and first.body:
            self.state.calculate(first.body.parts[0].text, first.line)
        else:
            return self.simple(found)
        return None

    def branches(self, found: Sequence[Token]) -> None:
        pieces = _split(found[1:], ("then", "elif", "else", "fi"))
        truth: bool | None = True
        for place, (piece, stop) in enumerate(pieces):
            if stop == "then":
                truth = self.read(piece)
            elif truth:
                self.read(piece)
                break
            else:
                truth = True  # of `else`
            if truth is None:
                self.note(found[0].line, "if: its test is not decided, so the values that it sets are unknown")
                for one, _ in pieces[place + 1 :]:
                    self.find_commands(one)
                break
        self.simple(pieces[-1][0])

    def find_commands(self, found: Sequence[Token]) -> None:
        """Find the commands in what may be done or not, any number of times. The values that it sets are unknown."""
        was_sure, self.is_sure = self.is_sure, False
        self.forget_set(found)
        piece: list[Token] = []
        drops_up_to: Sequence[str] = ()
        for token in [*found, Operator("\n", 0)]:
            mark = token.plain or ""
            if drops_up_to:
                drops_up_to = () if mark in drops_up_to else drops_up_to
            elif isinstance(token, Operator) and mark not in REDIRECTIONS:
                if token.plain != "(":  # of `name()`
                    self.simple(piece)
                if token.body:
                    self.state.calculate(token.body.parts[0].text, token.line)
                piece, drops_up_to = [], _NOT_COMMANDS.get(mark, ())
            elif not piece and mark in _NOT_COMMANDS:
                drops_up_to = _NOT_COMMANDS[mark]
            elif piece or (mark not in _BEFORE_COMMANDS and mark not in _OPENING.values()):
                piece.append(token)
        self.is_sure = was_sure

    def forget_set(self, found: Sequence[Token]) -> None:
        """Forget the variables that commands may set, and some more: every name that is in a word without `$`."""
        names, functions = set[str](), set[str]()
        bodies = [found]
        while bodies:
            for token in bodies.pop():
                parts = token.parts if isinstance(token, Word) else token.body.parts if token.body else []
                for part in parts:
                    if part.is_expansion or token.plain == "((":
                        names.update(NAME.findall(part.text) if SETS.search(part.text) else ())
                    elif match := NAME.match(part.text):
                        names.add(match[0])
                if token.plain in self.script.functions and token.plain not in functions:
                    functions.add(token.plain)
                    bodies += self.script.functions[token.plain]
                if token.plain == "eval":
                    names.update(self.state.variables)
        for name in names & self.state.variables.keys():
            self.state.forget(name, found[0].line)

    # Simple commands

    def simple(self, found: Sequence[Token]) -> bool | None:
        words, redirections = list[Word](), list[tuple[Operator, Word]]()
        following = iter(found)
        for token in following:
            target = next(following, None) if token.plain in REDIRECTIONS and isinstance(token, Operator) else None
            if isinstance(token, Word):
                words.append(token)
            elif isinstance(target, Word):
                redirections.append((token, target))
            else:
                wrong = target or token
                text = (wrong.plain or "a word").replace("\n", "the end of the line")
                self.note(wrong.line, f"{text}: a syntax error for every shell: fix it and read the script again")
        if not found or self.state.has_ended:
            return None
        first = next((place for place, word in enumerate(words) if _assigned(word) is None), len(words))
        prefix, words = words[:first], words[first:]
        while len(words) > 1 and words[0].plain in ("command", "builtin") and (words[1].plain or "-")[:1] != "-":
            words = words[1:]
        name = words[0].plain if words else None
        truth: bool | None = None
        if not words or name in _DECLARING:
            for word in prefix:
                self.assign(word)
                if words:  # whether it lasts depends on what is declared
                    self.state.forget(_name(word), word.line)
            if words:
                self.declare(name or "", words[1:], words[0].line)
            truth = None if any(_runs(word) for word in prefix) else True
        elif name in ("[", "test"):
            end = -1 if name == "[" and words[-1].plain == "]" else None
            truth = self.state.truth(words[1:end], is_double=False)
        elif fields := self.state.fields(words):
            return self.run(prefix, tuple(fields), redirections, words[0].line)
        self.redirect(redirections, None)
        return truth

    def run(
        self, prefix: Sequence[Word], words: tuple[str, ...], redirections: Sequence[tuple[Operator, Word]], line: int
    ) -> bool | None:
        """Record a command and what it changes. prefix: assignments in front of it, which hold until its end."""
        before, set_up = dict(self.state.variables), self.state.set_up
        for word in prefix:
            self.assign(word, exports=True)
        inside, files = dict(self.state.variables), self.script.files
        files = replace(files, known=dict(files.known), lost=dict(files.lost))
        command = Command(words, line, self.state.copy(), files, self.is_sure, self.around)
        self.script.commands.append(command)
        bodies = [operator.body for operator, _ in redirections if operator.body is not None]
        self.redirect(redirections, bodies[0] if command.name == "cat" and len(bodies) == 1 else None)
        for option, value in pairwise(words):
            is_engine = option.replace("_", "-") == "--deepspeed-config"
            if command.name not in _READERS and not is_engine and ".json" in value:
                self.script.files.write(value.rpartition("=")[2], None, line)
        if prefix:
            self.state.set_up = set_up
        self.follow(command)
        if command.name == "read" and len(bodies) == 1 and ("-d", "") in pairwise(words):  # all of a here-document
            self.set_value(words[-1], self.state.text(bodies[0].parts).strip(" \t\n"), bodies[0].line)
        for name in {_name(word) for word in prefix}:
            if self.state.variables.get(name) == inside.get(name):  # the command itself has not set it
                self.state.variables.pop(name, None)
                self.state.variables.update({name: before[name]} if name in before else {})
        if words[0] in self.script.functions:
            return None
        return False if command.name == "false" else command.name in _SUCCEEDING or None

    def redirect(self, redirections: Sequence[tuple[Operator, Word]], body: Word | None) -> None:
        """Record the files that a command writes. body: what `cat <<END` writes; of others only the names are known."""
        for operator, target in redirections:
            path = self.state.text(target.parts)
            if operator.plain in _OUTPUTS and not path.startswith("/dev/") and not path.isdigit():
                text = self.state.text(body.parts) if body and self.is_sure and operator.plain == ">" else None
                self.script.files.write(placed(self.state.folder, path), text, body.line if body else target.line)

    def set_value(self, name: str, value: str | tuple[str, ...], line: int, append: bool = False) -> None:
        """Assign; the value is unknown where that may not be done."""
        if self.is_sure:
            self.state.assign(name, value, line, append)
        else:
            self.state.forget(name, line)

    def assign(self, word: Word, exports: bool = False) -> None:
        """Do one assignment, `NAME=value`, `NAME+=value` or `NAME[index]=value`."""
        match, state, line = _assigned(word), self.state, word.line
        if match is None:
            return
        name, head = match["name"], word.parts[0]
        parts = [replace(head, text=head.text[match.end() :]), *word.parts[1:]]
        before = state.variables.get(name)
        has_keys = any(one.parts and one.parts[0].text.startswith("[") for one in word.elements or ())
        if match["index"] or has_keys:
            state.forget(name, line)  # `NAME[I]=value`, `NAME=([I]=value)`
            return
        if word.elements is not None:
            self.set_value(name, tuple(state.fields(word.elements)), line, match["append"] != "")
            return
        refers = any(part.is_expansion and re.search(rf"\b{name}\b", part.text) for part in parts)
        is_callers = refers and (before is None or before.adds_to_callers)
        outside = state.copy()
        outside.forget(name, 0)
        self.set_value(name, state.text(parts), line, match["append"] != "")
        variable = state.variables[name] = replace(state.variables[name], adds_to_callers=is_callers)
        if exports or (is_callers and name.endswith("PATH")):
            state.export(name)
        if state.variables[name].is_exported:  # what the caller has set stays as written
            self.record_export(name, outside.text(parts) if is_callers else variable.value or "", line)

    def record_export(self, name: str, value: str | tuple[str, ...], line: int) -> None:
        if isinstance(value, str):
            self.state.set_up += (SetUp(("export", f"{name}={value}"), line, self.is_sure, exports=name),)

    def declare(self, how: str, words: Sequence[Word], line: int) -> None:
        """`export`, `declare` and the like. What an option such as `-i` changes is not known."""
        flags = "".join(one[1:] for word in words if (one := word.plain or "").startswith("-"))
        exports, unexports = how == "export" or "x" in flags, how == "export" and "n" in flags
        if "n" in flags and how != "export":
            raise Unreadable(f"line {line}: {how} -n is not read")
        for word in words:
            if match := _assigned(word):
                name = match["name"]
                self.assign(word, exports and not unexports)
            else:
                text = self.state.text(word.parts)
                name, equals, value = text.partition("=")
                if equals and is_open(name):
                    raise Unreadable(f"line {line}: {text}: the name of the variable is not known")
                if not name.isidentifier():
                    continue
                if equals:  # of `"NAME=value"`
                    self.set_value(name, value, word.line)
                if exports and name in self.state.variables and not unexports:
                    self.state.export(name)
                    self.record_export(name, self.state.variables[name].value or "", word.line)
            if unexports:
                self.state.export(name, is_exported=False)
            if set(flags) - set("xrgan"):
                self.state.forget(name, line)

    def follow(self, command: Command) -> None:
        """Apply a command to the state: a function, an inner shell, or a built-in command."""
        words, state, line = command.words, self.state, command.line
        name, texts = words[0], words[1:]
        if name in self.script.functions:
            self.call(name, line)
        elif name in ("cd", "pushd", "popd"):
            into = next((one for one in texts if not one.startswith("-") or one == "-"), "${HOME}")
            is_known = self.is_sure and name == "cd" and into != "-"
            state.folder = _gone_to(state.folder, into) if is_known else _UNKNOWN_FOLDER
        elif name == "exit":
            state.has_ended = self.is_sure
        elif name in ("source", ".") and texts:
            self.note(line, f"{name} {texts[0]}: it is not opened; it may change variables that are set before it")
        elif name == "eval":
            text = " ".join(texts)
            if "$(" in text or "`" in text or VARIABLE.fullmatch(text.strip()):
                shown = text if len(text) < 60 else f"{text[:60]}..."
                self.note(line, f"eval {shown}: it is not evaluated; it may change variables that are set before it")
            else:
                self.read_text(text, line)
        elif name == "set" and ("allexport" in texts or (texts and re.fullmatch(r"-\w*a\w*", texts[0]))):
            self.note(line, f"set {texts[0]}: it is not followed: variables behind it are not taken as exported")
        elif name == "shift" or (name == "set" and texts[:1] == ("--",)):
            state.forget("@", line)
        elif name == "let":
            for one in texts:
                state.calculate(one, line)
        elif name == "unset" and "-f" in texts:
            for one in texts if self.is_sure else ():
                self.script.functions.pop(one, None)
        elif name in _SETTING:
            for text in texts:  # of `printf`, only the variable behind -v
                match = re.match(r"(?:-v|\$\(echo )?([A-Za-z_]\w*)", text)
                if match and (name != "printf" or any(one.startswith("-v") for one in texts)):
                    state.forget(match[1], line)
                    state.export(match[1], is_exported=name != "unset" and state.variables[match[1]].is_exported)
        else:
            self.enter_a_shell(command)
        if name in _SETTING_UP and (any(is_open(one) and "(" in one for one in texts) if name == "eval" else texts):
            state.set_up += (SetUp(words, line, self.is_sure, folder=state.folder),)

    def read_text(self, text: str, line: int) -> None:
        found = tokens(text, line)
        self.read(found) if self.is_sure else self.find_commands(found)

    def call(self, name: str, line: int) -> None:
        """Find the commands of a function that is called for the first time, and forget what it sets."""
        arguments = self.state.variables.get("@")
        self.state.forget("@", line)
        for body in self.script.functions[name]:
            self.forget_set(body)
            if name not in self.called:
                self.note(line, f"{name}: a function is not evaluated, so the values that it sets are unknown")
                self.called.add(name)
                self.find_commands(body)
        self.state.variables.pop("@")
        self.state.variables.update({"@": arguments} if arguments else {})

    def enter_a_shell(self, command: Command) -> None:
        """Read `bash -c TEXT NAME ARGUMENTS...`, or `bash FILE ARGUMENTS...` of a file that the script has written.

        Only exported variables are set there.
        """
        words = command.words
        place = next((n for n, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), len(words))
        flag = next((n for n in (place + 1, place + 2) if n < len(words) and re.match(r"-\w*c$", words[n])), None)
        if flag is not None and flag + 1 < len(words):
            text, line, rest = words[flag + 1], command.line, words[flag + 3 :]
        elif (found := self.written_script(words)) is not None:
            at, (text, line) = found
            place, rest = min(place, at), words[at + 1 :]
        else:
            return
        before, around = self.state.copy(), self.around
        sets = any(re.match(r"--export|(?:\S*/)?env$", one) for one in words[:place])
        for name, variable in before.variables.items():
            if sets or not variable.is_exported:
                why = f"{name} is set in line {variable.line} and not exported to the shell within"
                if sets:
                    why = f"{name} may be set, or left out, by {words[0]} in line {command.line}"
                self.state.variables[name] = Variable(None, variable.line, why=variable.why or why)
        self.state.variables["@"] = Variable(rest, command.line)
        self.around = (*around, *words[:place])
        self.read_text(text, line)
        self.state, self.around = before, around

    def written_script(self, words: Sequence[str]) -> tuple[int, tuple[str, int]] | None:
        """Return which word is a shell script that this one has written, and its text with the line of its begin."""
        known = self.script.files.known
        runs = words[0].rpartition("/")[2] in (*_SHELLS, *_STARTING)
        for place, word in enumerate(words if runs else words[:1]):
            path = placed(self.state.folder, word)
            if path in known and (known[path][0].startswith("#!") or word.endswith(".sh")) and len(self.around) < 99:
                return place, known[path]
        return None


def _assigned(word: Word) -> re.Match[str] | None:
    if not word.parts or word.parts[0].is_expansion or word.parts[0].is_quoted:
        return None
    return _ASSIGNMENT.match("".join(part.text for part in word.parts))


def _name(word: Word) -> str:
    return str(NAME.findall(word.parts[0].text)[0])


def _runs(word: Word) -> bool:
    """Return whether it has the output of a command: an assignment then has that command's result."""
    return any(part.is_expansion and re.search(r"\$\((?!\()|`", part.text) for part in word.parts)


def _gone_to(here: str | None, into: str) -> str:
    if here is None or into.startswith(("/", "~", "$")):
        return into
    text = f"{here}/{into}"
    return text if is_open(text) or "~" in text else posixpath.normpath(text)
