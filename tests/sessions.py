"""Console sessions of the docs: type what the ```console blocks of a page show, and compare or write their output.

A line that begins with `$ ` is a command. The lines after it are its output, as `make examples` has written it:
complete, or up to MOST_LINES and then `...`. Numbers and names differ between runs, so words are compared: most words
of the page must be printed, and a command without output on the page must print nothing.

Hidden remarks before a block say what happens besides typing: `<!-- meanwhile: COMMAND -->` runs a command,
`<!-- until: COMMAND -->` repeats it until it succeeds, and `<!-- exits: N -->` is the exit code of the next block's
last command.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PART = re.compile(
    r"^```console\n(?P<block>.*?)^```$|^<!-- (?P<what>meanwhile|until|exits): (?P<how>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ ", re.MULTILINE)
_WORD = re.compile(r"(?<![\w/.])[A-Za-z]{2,}(?![\w/])")
#: Longest output that a page shows.
MOST_LINES = 40
#: Share of a page's words that a command must print. The rest allows for another moment of the same run.
_LEAST_SHARE = 0.75
#: Time limits of a command of a page, and of waiting for a condition.
COMMAND_S, WAIT_S = 180, 180


@dataclass(frozen=True)
class Typed:
    """A command of a page, its output on the page, where that is in the page's text, and the exit code."""

    command: str
    output: str
    start: int
    exits: int = 0


@dataclass(frozen=True)
class Remark:
    """A command that the page does not show: run once, or repeated until it succeeds."""

    command: str
    is_waited_for: bool


def steps(page: str) -> Iterator[Typed | Remark]:
    """Yield the commands and remarks of a page in order."""
    exits = 0
    for part in _PART.finditer(page):
        if part["what"] == "exits":
            exits = int(part["how"])
        elif part["what"]:
            yield Remark(part["how"], part["what"] == "until")
        else:
            block, first = part["block"], part.start("block")
            starts = [match.end() for match in _COMMAND.finditer(block)]
            for begin, end in zip(starts, [*(at - len("$ ") for at in starts[1:]), len(block)], strict=True):
                command, _, output = block[begin:end].partition("\n")
                yield Typed(command, output, first + begin + len(command) + 1, exits if end == len(block) else 0)
            exits = 0


def share_printed(output: str, printed: str) -> float:
    """Return the share of the words of `output` that are in `printed`, 0 to 1. Paths do not count."""
    shown = set(_WORD.findall(output))
    return len(shown & set(_WORD.findall(printed))) / len(shown) if shown else 1.0


@dataclass
class Session:
    """A shell in `folder`. Its environment is the same for all commands; `cd` lasts.

    names: text of this machine -> the text that a page shows in its place, longest first.
    """

    folder: Path
    environment: Mapping[str, str]
    names: Mapping[str, str]

    def run(self, page: str, writes: bool = False) -> str:
        """Type a page's commands. Return the page, with this output if `writes`, else after comparing each output.

        Raises AssertionError for another exit code, another output or a condition that does not come true.
        """
        written, copied = [], 0
        for step in steps(page):
            if isinstance(step, Remark):
                self._wait(step) if step.is_waited_for else self._run(step.command, 0)
                continue
            printed = self._run(step.command, step.exits)
            if writes:
                written += [page[copied : step.start], self._shown(printed)]
                copied = step.start + len(step.output)
            else:
                assert bool(printed) == bool(step.output), f"$ {step.command}\nprinted\n{printed}"
                share = share_printed(step.output, self._shown(printed, len(printed)))
                hint = f"{share:.0%} of the page's words are printed; if the change is right, run make examples"
                assert share >= _LEAST_SHARE, f"$ {step.command}\n{hint}\n{step.output}\nprinted\n{printed}"
        return "".join([*written, page[copied:]])

    def _shown(self, printed: str, most: int = MOST_LINES) -> str:
        for here, there in self.names.items():
            printed = re.sub(rf"(?<!\w){re.escape(here)}(?!\w)", there, printed)
        lines = [line.rstrip() + "\n" for line in printed.splitlines()]
        return "".join(lines[:most]) + ("...\n" if len(lines) > most else "")

    def _wait(self, remark: Remark) -> None:
        deadline = time.monotonic() + WAIT_S
        while (answer := self._shell(remark.command))[0]:
            assert time.monotonic() < deadline, f"waited {WAIT_S} s for {remark.command}; last:\n{answer[1]}"
            time.sleep(0.3)

    def _run(self, command: str, exits: int) -> str:
        code, printed = self._shell(command)
        assert code == exits, f"$ {command}\nexit code {code}, not {exits}:\n{printed}"
        return printed

    def _shell(self, command: str) -> tuple[int, str]:
        """Return exit code and output. The next command begins in the folder in which this one ends."""
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


def names_on_pages(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a page shows in place of a session's folder, of programs and configuration here, and of the user."""
    names = {
        str(folder.parent): "/work",
        str(Path(sys.executable).parent): "/opt/opsctl/bin",
        environment.get("SLURM_CONF", "/etc/slurm/slurm.conf"): "/etc/slurm/slurm.conf",
        str(Path.home()): "/home/ana",
    }
    return names | {socket.gethostname(): "login1", "root": "ana"}
