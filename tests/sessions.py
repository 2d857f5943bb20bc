"""Sessions of a page: what is typed in its ```console blocks, one after another, checked against what the page shows.

A line that begins with `$ ` is typed; the lines after it are what it prints, on either stream. `...` stands for
anything within a line, a line of `...` alone for any lines. What a reader does beside typing, or waits for, is in
remarks that a page does not show, before a block: `<!-- meanwhile: COMMAND -->` is run, `<!-- until: COMMAND -->` again
and again until it succeeds, `<!-- exits: N -->` is the exit code of the next block's last command.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PART = re.compile(
    r"^```console\n(?P<block>.*?)^```$|^<!-- (?P<what>meanwhile|until|exits): (?P<how>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
#: What a command of a page may take, and how long what is waited for.
COMMAND_S, WAIT_S = 180, 180


@dataclass(frozen=True)
class Typed:
    """One command of a page, what it is to print, and its exit code."""

    command: str
    prints: str
    exits: int = 0


@dataclass(frozen=True)
class Beside:
    """An action that is not typed: done meanwhile, or waited for."""

    command: str
    is_waited_for: bool


def steps(page: str) -> Iterator[Typed | Beside]:
    """Yield what a page has one do, in its order."""
    exits = 0
    for part in _PART.finditer(page):
        if part["what"] == "exits":
            exits = int(part["how"])
        elif part["what"]:
            yield Beside(part["how"], part["what"] == "until")
        else:
            typed = [each.partition("\n") for each in re.split(r"^\$ ", part["block"], flags=re.M)[1:]]
            for number, (command, _, prints) in enumerate(typed, 1):
                yield Typed(command, prints, exits if number == len(typed) else 0)
            exits = 0


def pattern(prints: str) -> re.Pattern[str]:
    """Return what fits all that a page shows of an output."""
    lines = (
        r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.rstrip().split("..."))) + r" *\n"
        for line in prints.splitlines()
    )
    return re.compile("".join(lines))


@dataclass
class Session:
    """A shell in a folder, its environment the same for all commands; `cd` lasts."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, page: str) -> None:
        """Do what the page has one do. Raises AssertionError at the first that does not come out as it shows."""
        for step in steps(page):
            if isinstance(step, Typed):
                self._type(step)
            elif step.is_waited_for:
                self._wait(step.command)
            else:
                code, printed = self._shell(step.command)
                assert code == 0, f"{step.command} -> {code}:\n{printed}"

    def _type(self, typed: Typed) -> None:
        code, printed = self._shell(typed.command)
        assert code == typed.exits, f"$ {typed.command}\nleft with {code}, not {typed.exits}:\n{printed}"
        fits = pattern(typed.prints).fullmatch(printed)
        assert fits, f"$ {typed.command}\nis to print\n{typed.prints}\nand printed\n{printed}"

    def _wait(self, command: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while (answer := self._shell(command))[0]:
            assert time.monotonic() < deadline, f"waited {WAIT_S} s for {command}; last:\n{answer[1]}"
            time.sleep(0.3)

    def _shell(self, command: str) -> tuple[int, str]:
        """Exit code and output. Where the command leaves the shell is where the next begins."""
        place = self.folder.parent / f"{self.folder.name}.cwd"
        here = place.read_text().strip() if place.exists() else str(self.folder)
        done = subprocess.run(
            ["bash", "-c", f'{command}\ncode=$?; pwd > "$0"; exit $code', str(place)],
            cwd=here,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )
        text = done.stdout
        return done.returncode, text if not text or text.endswith("\n") else f"{text}\n"
