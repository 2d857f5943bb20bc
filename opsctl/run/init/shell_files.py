"""The files that a script writes, as far as the script alone tells what is in them. Pure; none is opened."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from opsctl.run.init.shell_tokens import Operator, Token, Word
from opsctl.run.init.shell_values import Values
from opsctl.run.init.traced_text import Traced, joined

_OUTPUTS = frozenset((">", ">>", ">|", "&>", "&>>", "<>", ">&"))
_HERE = re.compile(r"(?:\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{?PWD\}?)/")
#: They leave the files that they are handed as they are.
_READERS = frozenset(
    (
        *("cat", "echo", "printf", "ls", "head", "tail", "grep", "egrep", "wc", "test", "[", "chmod", "du", "stat"),
        *("diff", "cmp", "source", ".", "mkdir", "cd", "file", "md5sum", "sha256sum", "jq", "less", "export"),
    )
)
#: They write what they are handed last, or into it.
_COPYING = frozenset(("cp", "mv", "install", "ln", "rsync", "scp"))
_WRITING = frozenset(("tee", "sed", "rm", "mv", "truncate", "touch", "perl"))


@dataclass
class Files:
    """What is in the files, by their paths; and of whom nobody can tell it, the line of the command that wrote it."""

    known: dict[str, Traced] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Files:
        """The same files, which go their own way from here."""
        return Files(dict(self.known), dict(self.lost))

    def write(self, path: str, text: Traced | None, appends: bool, line: int) -> None:
        """Put down what is in a file from here on; text None: nobody can tell."""
        if text is None or (appends and path in self.lost):
            self.known.pop(path, None)
            self.lost[path] = line
            return
        self.lost.pop(path, None)
        self.known[path] = self.known.get(path, Traced()) + text if appends else text

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Behind what may be done or not, nobody can tell what it has written."""
        before = self.copy()
        yield
        for path, text in list(self.known.items()):
            if path not in before.known or before.known[path].text != text.text:
                self.write(path, None, False, text.line)


def placed(folder: Traced | None, path: str) -> str:
    """The path, from the folder that it starts in; None: where the script itself started."""
    here = _HERE.match(path)
    if here and folder is None:
        path = path[here.end() :]
    if folder is not None and not path.startswith(("/", "~", "$", "`")):
        path = f"{folder.text}/{path}"
    return posixpath.normpath(path)


def write(files: Files, values: Values, found: Sequence[Token], words: Sequence[Traced], line: int) -> None:
    """Put down what a command writes. found: its tokens; words: as it gets them, none of one of several lines."""
    pairs = [
        (one, following)
        for one, following in pairwise(found)
        if isinstance(one, Operator) and isinstance(following, Word)
    ]
    texts = [values.text(one.body.parts) for one, _ in pairs if one.body is not None and one.text in ("<<", "<<-")]
    texts += [values.text(word.parts) + Traced.on("\n", line) for one, word in pairs if one.text == "<<<"]
    name = words[0].text.rpartition("/")[2] if words else ""
    text = texts[0] if len(texts) == 1 else None
    if name == "echo" and not (len(words) > 1 and words[1].text.startswith("-")):
        text = joined(words[1:], " ") + Traced.on("\n", line)
    elif name not in ("cat", "tee") or (name == "cat" and any(one.text != "-" for one in words[1:])):
        text = None
    to = [(placed(values.folder, values.text(word.parts).text), one) for one, word in pairs if one.text in _OUTPUTS]
    to = [(path, one) for path, one in to if not path.startswith("/dev/") and not path.isdigit() and path != "-"]
    for path, one in to:  # of several, one may be for what goes wrong
        files.write(path, text if len(to) == 1 else None, one.text in (">>", "&>>"), line)
    operands = [(before, one.text) for before, one in pairwise(words) if one.text[:1] != "-"]
    if name == "tee":
        for _, path in operands:
            files.write(placed(values.folder, path), text, any(one.text == "-a" for one in words), line)
    elif name not in _READERS:
        for path in _handed(files, values, name, operands):
            files.write(path, None, False, line)


def _handed(files: Files, values: Values, name: str, operands: list[tuple[Traced, str]]) -> Iterator[str]:
    """The files that a command may have written because it is handed them."""
    paths = [
        placed(values.folder, text)
        for before, text in operands
        if before.text.replace("_", "-") != "--deepspeed-config" and text
    ]
    if name in _COPYING and len(paths) > 1:
        yield paths[-1]
        yield from (posixpath.normpath(f"{paths[-1]}/{posixpath.basename(one)}") for one in paths[:-1])
    for path in paths:
        if name in _WRITING or (name not in _COPYING and (path in files.known or path.endswith(".json"))):
            yield path
