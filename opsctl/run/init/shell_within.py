"""The shells that a script's commands start, `bash -c TEXT` and `eval TEXT`: what they are handed and have. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.init.shell_state import VARIABLE
from opsctl.run.init.shell_values import Values
from opsctl.run.init.traced_text import Traced

_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
#: Programs that print what makes an environment, and touch no variable of a script.
_PREPARING = re.compile(r"\b(conda|mamba|micromamba|spack|modulecmd|lmod|ssh-agent)\b")


@dataclass(frozen=True)
class Handed:
    """A script that a command hands to a shell, and what it is called with."""

    text: Traced
    arguments: tuple[Traced, ...]


def handed_to_a_shell(words: Sequence[Traced]) -> Handed | None:
    """The script of `bash -c TEXT NAME ARGUMENTS...` and `eval TEXT`; None of any other command."""
    arguments: Sequence[Traced] = ()
    if words[0].text == "eval":
        inner = [Traced.on(" ", one.line) + one for one in words[1:]]
    else:
        inner = []
        for place, word in enumerate(words):
            after = words[place + 1 : place + 3]
            flag = next((number for number, one in enumerate(after) if _runs_text(one.text)), None)
            if word.text.rpartition("/")[2] in _SHELLS and flag is not None:
                inner = list(words[place + flag + 2 : place + flag + 3])
                arguments = words[place + flag + 4 :]
                break
    if not inner:
        return None
    text = Traced("".join(one.text for one in inner), tuple(line for one in inner for line in one.lines))
    return Handed(text, tuple(arguments))


def enter_a_shell(values: Values, words: Sequence[Traced], arguments: Sequence[Traced]) -> None:
    """Become the shell that `words` start: what is exported is there, and what `env` and `srun --export` set."""
    launcher, more = "", dict[str, Traced]()
    for place, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if word.text.rpartition("/")[2] in _SHELLS:
            break
        if word.text.rpartition("/")[2] in ("env", "srun"):
            launcher = word.text.rpartition("/")[2]
        elif launcher == "env" and equals and name.isidentifier():
            more[name] = word[len(name) + 1 :]
        elif launcher == "env" and word.text in ("-i", "-", "--ignore-environment"):
            values.exported = {}
        elif launcher == "env" and words[place - 1].text == "-u":
            values.exported.pop(word.text, None)
        elif launcher == "srun" and name == "--export":
            said = [one.partition("=") for one in word.text.partition("=")[2].split(",")]
            if not any(one == "ALL" for one, _, _ in said):
                values.exported = {one: word.line for one, _, _ in said if one in values.exported}
            more |= {one: Traced.on(value, word.line) for one, sign, value in said if sign and one.isidentifier()}
    values.become_a_new_shell()
    for name, value in more.items():
        values.assign(name, value, line=value.line)
        values.export(name, value.line)
    values.arguments = list(arguments)


def not_known_to_eval(text: str) -> str | None:
    """What of eval's text a command prints, or nobody knows, and may set any variable; None: nothing."""
    text = text.strip()
    if ("$(" not in text and "`" not in text and VARIABLE.fullmatch(text) is None) or _PREPARING.search(text):
        return None
    return text if len(text) < 60 else f"{text[:60]}..."


def fed_to_a_shell(words: Sequence[Traced]) -> bool:
    """Whether a shell reads its script from what is fed to the command: `srun bash`, `bash -s`."""
    rest = [word.text for word in words]
    while len(rest) > 1 and rest[-1].startswith("-") and not _runs_text(rest[-1]):
        rest.pop()
    return rest[-1].rpartition("/")[2] in _SHELLS


def _runs_text(option: str) -> bool:
    """Whether a shell's option says that a text follows: `-c`, `-lc`."""
    return option.startswith("-") and not option.startswith("--") and option.endswith("c")
