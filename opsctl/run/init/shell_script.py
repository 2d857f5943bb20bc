"""Follow a launch script without running any of it. Pure.

Assignments, arrays, here-documents, and branches that the script decides are followed. Loops, functions, `eval`, and
branches that it does not decide are read once for the commands within: what they set is not known afterwards. Commands
are recorded with their words, each character with its line.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from opsctl.run.init.shell_syntax import Node, Operator, Part, Traced, Unreadable, Word, joined, parsed
from opsctl.run.init.shell_values import VARIABLE, Asked, State, Variable, is_open

_MOST_STEPS = 20_000  # commands of a script, each as often as it is read
_DEEPEST = 20  # a function within a function, `bash -c` within `bash -c`
#: The commands that are known to succeed, or to fail.
_TRUTHS = {"true": True, ":": True, "echo": True, "printf": True, "set": True, "export": True, "false": False}
_DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
#: Programs that print what makes an environment, and set no variable of a script.
_PREPARING = re.compile(r"\b(conda|mamba|micromamba|spack|modulecmd|lmod|ssh-agent)\b")
_OUTPUTS = frozenset((">", ">>", ">|", "&>", "&>>", "<>", ">&"))
#: These leave the files that they are given as they are.
_READERS = frozenset(
    (
        *("cat", "echo", "printf", "ls", "head", "tail", "grep", "egrep", "wc", "test", "[", "chmod", "du", "stat"),
        *("diff", "cmp", "source", ".", "mkdir", "cd", "file", "md5sum", "sha256sum", "jq", "less", "export", "tee"),
    )
)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<index>\[.*\])?(?P<append>\+?)=")


@dataclass
class Files:
    """The files that a script writes. `lost`: name -> line of what writes it in a way that is not followed."""

    known: dict[str, Traced] = field(default_factory=dict)  # by path
    lost: dict[str, int] = field(default_factory=dict)  # by name, without the folder

    def copy(self) -> Files:
        """Return an independent copy of the files."""
        return Files(dict(self.known), dict(self.lost))

    def write(self, path: str, text: Traced | None, appends: bool, line: int) -> None:
        """Record the contents of a file from here on; text None: unknown."""
        name = posixpath.basename(path)
        if text is None or (appends and name in self.lost):
            self.known = {one: known for one, known in self.known.items() if posixpath.basename(one) != name}
            self.lost[name] = line
            return
        self.lost.pop(name, None)
        self.known[path] = self.known.get(path, Traced()) + text if appends else text


@dataclass(frozen=True)
class Command:
    """One command with its words. `export NAME=VALUE` is recorded too, and so is an assignment that exports."""

    words: tuple[Traced, ...]
    line: int
    state: State  # of the shell, when the command starts
    files: Files  # written by then
    is_sure: bool  # False: it is in a loop, a function or a branch that is not decided
    shell: tuple[int, ...]  # the shells within shells; empty: the script's own

    @property
    def name(self) -> str:
        """The program's, without its folder."""
        return self.words[0].text.rpartition("/")[2]


@dataclass
class Script:
    """The commands of a script. `notes`: line and text about commands that are not followed."""

    state: State
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, list[Node]] = field(default_factory=dict)  # each body that a function may have
    files: Files = field(default_factory=Files)
    notes: list[tuple[int, str]] = field(default_factory=list)


def read_script(text: str, given: Mapping[str, str], arguments: Sequence[str] | None = None) -> Script:
    """Follow the script from its first line. Raises Unreadable.

    given: variables that Slurm sets. arguments: those of the script; None if they are not known.
    """
    variables = {name: Variable(Traced.on(value, 0), 0, is_exported=True) for name, value in given.items()}
    words = None if arguments is None else [Traced.on(one, 0) for one in arguments]
    reader = _Reader(Script(State(Asked(), variables, words)))
    reader.read(Traced.of(text))
    return reader.script


def placed(folder: Traced | None, path: str) -> str:
    """Return the path from the folder that it starts in; None: the script's own."""
    here = re.match(r"(?:\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?)/", path)
    if here and folder is None:
        path = path[here.end() :]
    if folder is not None and not path.startswith(("/", "~", "$", "`")):
        path = f"{folder.text}/{path}"
    return posixpath.normpath(path)


class _Reader:
    def __init__(self, script: Script) -> None:
        self.script, self.state = script, script.state
        self.is_sure, self.has_ended = True, False
        self.shell: tuple[int, ...] = ()
        self.shells, self.depth, self.steps = 0, 0, 0
        self.added_to: set[str] = set()  # variables of the caller to which the script adds

    def read(self, source: Traced) -> None:
        if self.depth == _DEEPEST:
            raise Unreadable(f"line {source.line}: shells within shells, more than {_DEEPEST} deep")
        node, problems = parsed(source)
        self.script.notes += problems
        self.depth += 1
        self.run(node)
        self.depth -= 1

    def run(self, node: Node) -> bool | None:
        """Follow a command. Returns whether it succeeds; None if the script does not decide."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Unreadable(f"line {node.line}: a launch script has no more than {_MOST_STEPS} commands")
        if self.has_ended:
            return None
        truth: bool | None = None
        match node.kind:
            case "simple":
                return self.simple(node)
            case "list":
                truth = True
                for one in node.bodies:
                    truth = self.run(one)
            case "&&" | "||":
                truth = self.and_or(node)
            case "!":
                truth = self.run(node.bodies[0])
                truth = None if truth is None else not truth
            case "|" | "&" | "(":
                for one in node.bodies:
                    with self.own_shell():
                        truth = self.run(one)
            case "((":
                number = self.state.calculate(node.words[0].parts[0].traced.text, node.line) if node.words else None
                truth = None if number is None else number != 0
            case "[[":
                truth = self.state.truth(node.inside, is_double=True)
            case "if":
                self.branches(node)
            case "case":
                self.case(node)
            case "function":
                name = node.words[0].plain if node.words else None
                self.script.functions[name or ""] = [node.bodies[0]]
            case _:
                self.loop(node)
        for operator, target in node.redirections:
            self.redirect(operator, target, None, node.line)
        return truth

    def and_or(self, node: Node) -> bool | None:
        truth, wanted = self.run(node.bodies[0]), node.kind == "&&"
        if truth is None:
            with self.perhaps(node.line):
                self.run(node.bodies[1])
            return None
        return self.run(node.bodies[1]) if truth == wanted else truth

    def branches(self, node: Node) -> None:
        is_decided, pairs = True, len(node.bodies) // 2
        for place in range(pairs):
            truth = self.run(node.bodies[2 * place])
            if truth is True and is_decided:
                self.run(node.bodies[2 * place + 1])
                return
            if truth is not False:
                is_decided = False
                self.read_undecided(node.bodies[2 * place + 1])
        if len(node.bodies) % 2:
            self.run(node.bodies[-1]) if is_decided else self.read_undecided(node.bodies[-1])

    def case(self, node: Node) -> None:
        text = self.state.text(node.words[0].parts).text if node.words else "$"
        is_decided = True
        for patterns, body in zip(node.patterns, node.bodies, strict=True):
            truth = self.state.matches(text, patterns)
            if truth is True and is_decided:
                self.run(body)
                return
            if truth is not False:
                is_decided = False
                self.read_undecided(body)

    def read_undecided(self, body: Node) -> None:
        with self.perhaps(body.line):
            self.run(body)

    def loop(self, node: Node) -> None:
        """Read a loop once. A turn begins with what another may have set, so nothing that it sets is known in it."""
        self.script.notes.append(
            (node.line, f"{node.kind}: a loop is not evaluated, so the values that it sets are unknown")
        )
        self.read_repeated(node, node.words[0].plain if node.words and node.kind in ("for", "select") else None)

    def read_repeated(self, node: Node, name: str | None = None) -> None:
        commands, notes, before = len(self.script.commands), len(self.script.notes), None
        while before != (before := self.not_known()):
            del self.script.commands[commands:], self.script.notes[notes:]
            with self.perhaps(node.line):
                if name:
                    self.state.forget(name, node.line)
                for token in node.inside:
                    if isinstance(token, Word):
                        self.state.calculate(token.parts[0].traced.text, node.line)
                for body in node.bodies:
                    self.run(body)

    def not_known(self) -> tuple[object, ...]:
        """Return the changes by a body so far, so that its next turn begins without them."""
        names = {name for name, variable in self.state.variables.items() if variable.value is None}
        return names, self.state.arguments, self.state.folder, set(self.script.files.lost)

    @contextmanager
    def perhaps(self, line: int) -> Iterator[None]:
        """Read commands that may not run: the values that they set are unknown afterwards."""
        before, files, was_sure = self.state.copy(), self.script.files.copy(), self.is_sure
        functions = {name: list(bodies) for name, bodies in self.script.functions.items()}
        self.is_sure, self.state.touched = False, {}
        yield
        self.is_sure, self.has_ended = was_sure, False
        after, self.state = self.state, before
        for name, where in after.touched.items():
            self.state.forget(name, where)
        for name, variable in after.variables.items():
            if variable.is_exported:
                self.state.export(name)
        self.state.sources += after.sources[len(before.sources) :]
        if after.folder != before.folder:
            self.state.folder = Traced.on("$(pwd)", line)
        if after.arguments != before.arguments:
            self.state.arguments = None
        for name, bodies in functions.items():
            now = self.script.functions.setdefault(name, [])
            now += [one for one in bodies if not any(one is other for other in now)]
        for path, text in list(self.script.files.known.items()):
            if path not in files.known or files.known[path].text != text.text:
                self.script.files.write(path, None, False, text.line)

    @contextmanager
    def own_shell(self) -> Iterator[None]:
        """Read in a subshell, whose variables and folder are lost at its end."""
        state, shell, has_ended = self.state.copy(), self.shell, self.has_ended
        self.shells += 1
        self.shell = (*shell, self.shells)
        yield
        self.state, self.shell, self.has_ended = state, shell, has_ended

    # Simple commands

    def simple(self, node: Node) -> bool | None:
        words = node.words
        first = next((place for place, word in enumerate(words) if _assigned(word) is None), len(words))
        prefix, words = words[:first], words[first:]
        while len(words) > 1 and words[0].plain in ("command", "builtin") and (words[1].plain or "-")[:1] != "-":
            words = words[1:]
        name = words[0].plain if words else None
        if name in _DECLARING:
            self.declare(name or "", words[1:], node.line)
        if not words or name in _DECLARING:
            for word in prefix:
                self.assign(word, word.line)
                if words and (match := _assigned(word)):  # whether it lasts depends on what is declared
                    self.state.forget(match["name"], word.line)
            for operator, target in node.redirections:
                self.redirect(operator, target, None, node.line)
            return None if any(_runs(part) for word in prefix for part in word.parts) else True
        if name in ("[", "test"):
            end = -1 if name == "[" and words[-1].plain == "]" else None
            return self.state.truth(words[1:end], is_double=False)
        fields = self.state.fields(words)
        if not fields:
            return None
        with self.for_one_command(prefix):
            command = self.record(tuple(fields), node.line)
            self.write_files(command, node.redirections)
            self.follow(command)
        return None if command.words[0].text in self.script.functions else _TRUTHS.get(command.name)

    @contextmanager
    def for_one_command(self, prefix: Sequence[Word]) -> Iterator[None]:
        """Set and export the variables in front of a command, up to its end."""
        if not prefix:
            yield
            return
        shell, before = self.shell, dict(self.state.variables)
        self.shells += 1
        self.shell = (*shell, self.shells)
        names = [match["name"] for word in prefix if (match := _assigned(word))]
        touched = dict(self.state.touched)
        for word in prefix:
            self.assign(word, word.line, exports=True)
        self.state.touched = touched
        inside = dict(self.state.variables)
        yield
        self.shell = shell
        for name in names:
            if self.state.variables.get(name) != inside.get(name):
                continue  # the command itself has set it
            self.state.variables.pop(name, None)
            if name in before:
                self.state.variables[name] = before[name]

    def record(self, words: tuple[Traced, ...], line: int) -> Command:
        state = self.state.copy()
        command = Command(words, line, state, self.script.files.copy(), self.is_sure, self.shell)
        self.script.commands.append(command)
        return command

    def assign(self, word: Word, line: int, exports: bool = False) -> None:
        """Do one assignment, `NAME=value`, `NAME+=value` or `NAME[index]=value`."""
        match, state = _assigned(word), self.state
        if match is None:
            return
        name, head = match["name"], word.parts[0]
        parts = [replace(head, traced=head.traced[match.end() :]), *word.parts[1:]]
        before = state.variables.get(name)
        # `PATH=more:$PATH` adds to the caller's variable, which is exported.
        adds = any(part.is_expansion and re.search(rf"\b{name}\b", part.traced.text) for part in parts)
        is_callers = adds and (before is None or name in self.added_to)
        self.added_to = self.added_to | {name} if is_callers else self.added_to - {name}
        elements = None if word.elements is None else tuple(state.fields(word.elements))
        has_keys = any(one.parts and one.parts[0].traced.text.startswith("[") for one in word.elements or ())
        if match["index"] or has_keys:
            state.forget(name, line)  # `NAME[I]=value`, `NAME=([I]=value)`
        elif elements is not None:
            state.assign(name, elements, match["append"] != "", line)
        else:
            as_written = self.without(name, parts) if is_callers else None
            state.assign(name, state.text(parts), match["append"] != "", line)
            if exports or (is_callers and name.endswith("PATH")):
                state.export(name)
            if state.variables[name].is_exported:
                self.record_export(name, line, as_written)

    def without(self, name: str, parts: Sequence[Part]) -> Traced:
        """Return the text in which the variable `name` itself stays as written."""
        state = self.state.copy()
        state.forget(name, 0)
        return state.text(parts)

    def record_export(self, name: str, line: int, value: Traced | None = None) -> None:
        variable = self.state.variables.get(name)
        value = value or (variable.first if variable else None)
        words = (Traced.on("export", line), Traced.on(f"{name}=", line) + value if value else Traced.on(name, line))
        self.record(words, line)

    def declare(self, how: str, words: Sequence[Word], line: int) -> None:
        """`export`, `declare` and the like. What an option such as `-i` or `-n` changes is not known."""
        flags = "".join(one[1:] for word in words if (one := word.plain or "").startswith("-"))
        exports = how == "export" or "x" in flags
        is_followed = not set(flags) - set("xrg")
        for word in words:
            if match := _assigned(word):
                self.assign(word, word.line, exports and is_followed)
                name = match["name"]
            else:
                text = self.state.text(word.parts)
                name, equals, _ = text.text.partition("=")
                if not name.isidentifier():
                    continue
                if equals:  # of `"NAME=value"`
                    self.state.assign(name, text[len(name) + 1 :], line=line)
                if exports and is_followed:
                    self.state.export(name)
                    self.record_export(name, line)
            if not is_followed and "n" in flags and how == "export":
                self.state.export(name, is_exported=False)
            elif not is_followed:
                self.state.forget(name, line)
                if "n" in flags:
                    self.state.refer(name, line)

    def follow(self, command: Command) -> None:
        """Apply a command to the state: a function, an inner shell, or a built-in command."""
        words, state, line = command.words, self.state, command.line
        name, texts = command.words[0].text, [one.text for one in command.words[1:]]
        match name:
            case _ if name in self.script.functions:
                self.call(name, line)
            case "cd" | "pushd" | "popd":
                into = next((one for one in words[1:] if not one.text.startswith("-") or one.text == "-"), None)
                is_known = name == "cd" and (into is None or into.text != "-")
                home = Traced.on("${HOME}", line)
                state.folder = _gone_to(state.folder, into or home) if is_known else Traced.on("$(pwd)", line)
            case "exit":
                self.has_ended = True
            case "source" | "." if texts:
                state.sources += ((line, f"{texts[0]} is not opened"),)
            case "eval":
                text = joined(words[1:], " ")
                is_printed = "$(" in text.text or "`" in text.text or VARIABLE.fullmatch(text.text.strip())
                if is_printed and not _PREPARING.search(text.text):
                    shown = text.text if len(text.text) < 60 else f"{text.text[:60]}..."
                    state.sources += ((line, f"eval of {shown}: it is not evaluated"),)
                self.read(text)
            case "set" if "allexport" in texts or (texts and re.fullmatch(r"[-+]\w*a\w*", texts[0])):
                state.exports_all = texts[0].startswith("-")
            case "set" if texts[:1] == ["--"]:
                state.arguments = words[2:]
            case "shift":
                state.arguments = None if texts or state.arguments is None else state.arguments[1:]
            case "let":
                for one in texts:
                    state.calculate(one, line)
            case "unset" if "-f" in texts:
                for one in texts:
                    self.script.functions.pop(one, None)
            case "read" | "mapfile" | "readarray" | "getopts" | "printf" | "unset":
                if name != "printf" or any(one.startswith("-v") for one in texts):
                    self.forget_named(name, texts, line)
            case _:
                self.enter_a_shell(command)

    def forget_named(self, name: str, texts: Sequence[str], line: int) -> None:
        """Forget the variables that a command is given the names of."""
        for text in texts:
            match = re.match(r"(?:-v|\$\(echo )?([A-Za-z_]\w*)", text)
            if match:
                self.state.forget(match[1], line)
                if name == "unset":
                    self.state.export(match[1], is_exported=False)

    def call(self, name: str, line: int) -> None:
        """Read a function's body as what may be done or not, any number of times."""
        note = (line, f"{name}: a function is not evaluated, so the values that it sets are unknown")
        if note not in self.script.notes:
            self.script.notes.append(note)
        bodies, arguments, asked = self.script.functions[name], self.state.arguments, set(self.state.asked.arguments)
        self.script.functions[name] = []  # where it calls itself
        self.state.arguments = None
        for body in bodies:
            self.read_repeated(Node("function", line, [body]))
        self.script.functions[name], self.state.arguments, self.state.asked.arguments = bodies, arguments, asked

    def enter_a_shell(self, command: Command) -> None:
        """Read the script of `bash -c TEXT NAME ARGUMENTS...`: only exported variables are set there."""
        words = command.words
        place = next((n for n, word in enumerate(words) if word.text.rpartition("/")[2] in _SHELLS), len(words))
        flag = next((n for n in (place + 1, place + 2) if n < len(words) and _takes_text(words[n].text)), None)
        if flag is None or flag + 1 >= len(words):
            return
        with self.own_shell():
            state, before = self.state, [one.text for one in words[:place]]
            is_emptied = any(one == "-i" or (one.startswith("--export=") and "ALL" not in one) for one in before)
            for name, variable in list(state.variables.items()):
                set_by_launcher = any(re.search(rf"\b{name}=", one) for one in before)
                if variable.value is not None and (is_emptied or set_by_launcher or not variable.is_exported):
                    why = f"{name} is set in line {variable.line} and not exported to the shell within"
                    if is_emptied or set_by_launcher:
                        why = f"{name} is set, or left out, by {words[0].text} in line {command.line}"
                    state.variables[name] = Variable(None, variable.line, why=why)
            state.arguments = words[flag + 3 :]
            self.read(words[flag + 1])

    # Files

    def redirect(self, operator: Operator, target: Word, text: Traced | None, line: int) -> None:
        path = self.state.text(target.parts).text
        if operator.text in _OUTPUTS and not path.startswith("/dev/") and not path.isdigit() and path != "-":
            appends = operator.text in (">>", "&>>")
            self.script.files.write(placed(self.state.folder, path), text, appends, line)

    def write_files(self, command: Command, redirections: Sequence[tuple[Operator, Word]]) -> None:
        """Record the output of a command to files. Only `cat`, `tee` and `echo` are followed."""
        words, name = command.words[1:], command.name
        bodies = [operator.body for operator, _ in redirections if operator.body is not None]
        text = None
        if name == "echo" and not (words and words[0].text.startswith("-")):
            text = joined(words, " ") + Traced.on("\n", command.line)
        elif len(bodies) == 1 and (name == "tee" or (name == "cat" and all(one.text == "-" for one in words))):
            text = self.state.text(bodies[0].parts)
        is_alone = sum(operator.text in _OUTPUTS for operator, _ in redirections) == 1
        for operator, target in redirections:
            self.redirect(operator, target, text if is_alone else None, command.line)
        for place, word in enumerate(words):
            before = words[place - 1].text.replace("_", "-") if place else ""
            if name == "tee" and not word.text.startswith("-"):
                appends = any(one.text == "-a" for one in words)
                self.script.files.write(placed(self.state.folder, word.text), text, appends, command.line)
            elif name not in _READERS and before != "--deepspeed-config" and ".json" in word.text:
                self.script.files.write(word.text.rpartition("=")[2], None, False, command.line)


def _assigned(word: Word) -> re.Match[str] | None:
    if not word.parts or word.parts[0].is_expansion or word.parts[0].is_quoted:
        return None
    return _ASSIGNMENT.match("".join(part.traced.text for part in word.parts))


def _runs(part: Part) -> bool:
    """Return whether it is the output of a command: an assignment then has that command's result."""
    text = part.traced.text
    return part.is_expansion and (("$(" in text and not text.startswith("$((")) or "`" in text)


def _takes_text(option: str) -> bool:
    return option.startswith("-") and not option.startswith("--") and option.endswith("c")


def _gone_to(here: Traced | None, into: Traced) -> Traced:
    if here is None or into.text.startswith(("/", "~", "$")):
        return into
    text = f"{here.text}/{into.text}"
    return Traced.on(text if is_open(text) or "~" in text else posixpath.normpath(text), into.line)
