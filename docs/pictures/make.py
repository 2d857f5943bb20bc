"""`make pictures`: the pictures of README.md and docs, from a run of the demo: a recording, the live screen, the page.

Needs a Slurm, Debian's chromium and some minutes; the pictures are committed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
OPSCTL = [sys.executable, "-m", "opsctl"]
WIDTH, HEIGHT = 100, 30
_DEMO_S, _COMMAND_S = 900, 120
#: Seconds that the live screen runs before it is drawn.
_LOOKS_S = 12


def main() -> int:
    """Run the demo, make the pictures, and stop its cluster."""
    with tempfile.TemporaryDirectory(prefix="opsctl-pictures-") as scratch:
        own = {"XDG_STATE_HOME": f"{scratch}/state", "COLUMNS": str(WIDTH), "PYTHONUNBUFFERED": "1"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | own
        try:
            recording(scratch, environment)
            (run,) = Path(scratch).glob("*/demo")
            live(run, environment)
            terminal(run, environment, ["status"])
            page(run, environment)
            for picture in HERE.glob("*.svg"):  # no reader fetches a font from elsewhere
                picture.write_text(re.sub(r"@font-face \{.*?\}\n", "", picture.read_text(), flags=re.DOTALL))
        finally:
            down = [*OPSCTL, "local-cluster", "down", "--name", "demo"]
            subprocess.run(down, env=environment, timeout=_COMMAND_S, check=False)
    return 0


def recording(scratch: str, environment: dict[str, str]) -> None:
    """Run the demo and record its terminal as an animated SVG. Pauses are at most two seconds long."""
    demo = shlex.join([*OPSCTL, "demo", "--keep", "--folder", scratch])
    # termtosvg 1.1 imports pkg_resources, which newer setuptools do not have.
    recorder = ["uv", "tool", "run", "--with", "setuptools<81", "termtosvg", str(HERE / "demo.svg")]
    words = [*recorder, "-g", f"{WIDTH}x{HEIGHT}", "-M", "2000", "-D", "5000", "-c", demo]
    _, terminal = pty.openpty()
    subprocess.run(words, env=environment, check=True, timeout=_DEMO_S, stdin=terminal)


def terminal(run: Path, environment: dict[str, str], words: list[str]) -> None:
    """Draw the output of a command as an SVG of a terminal."""
    done = subprocess.run(
        [*OPSCTL, *words], cwd=run, env=environment, capture_output=True, text=True, timeout=_COMMAND_S
    )
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text(f"$ opsctl {' '.join(words)}", style="bold"))
        console.print(Text.from_ansi("\n".join(done.stdout.splitlines()[:HEIGHT])))
        console.save_svg(str(HERE / f"{words[0]}.svg"), title=f"opsctl {words[0]}")


def live(run: Path, environment: dict[str, str]) -> None:
    """Draw `opsctl status --watch` after some seconds, with Textual's own SVG export."""
    asked = {
        "TEXTUAL_SCREENSHOT": str(_LOOKS_S),
        "TEXTUAL_SCREENSHOT_LOCATION": str(HERE),
        "TEXTUAL_SCREENSHOT_FILENAME": "live.svg",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    child = subprocess.Popen(
        [*OPSCTL, "status", "--watch"], cwd=run, env=environment | asked, stdin=theirs, stdout=theirs, stderr=theirs
    )
    deadline = time.monotonic() + _COMMAND_S
    while time.monotonic() < deadline and child.poll() is None:
        if select.select([ours], [], [], 0.2)[0]:
            os.read(ours, 65536)
    if child.poll() is None:
        child.kill()
    child.wait()


def page(run: Path, environment: dict[str, str]) -> None:
    """Take a screenshot of the run's page in Chromium."""
    written = run / "page.html"
    subprocess.run(
        [*OPSCTL, "report", "--output", str(written)], cwd=run, env=environment, check=True, timeout=_COMMAND_S
    )
    words = ["chromium", "--headless=new", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1000"]
    words += [
        "--virtual-time-budget=4000",
        f"--screenshot={HERE / 'page.png'}",
        *(["--no-sandbox"] * (os.geteuid() == 0)),
    ]
    subprocess.run([*words, f"file://{written}"], capture_output=True, check=True, timeout=_COMMAND_S)


if __name__ == "__main__":
    sys.exit(main())
