"""A terminal with opsctl on it, as a person has one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

WAIT_S = 180.0  # a busy machine takes ten seconds for the first screen


class Terminal:
    """A terminal of 24 by 80 with `opsctl WORDS` on it; without PATH among the environment there is no Slurm."""

    def __init__(self, folder: Path, *words: str, before: str = "", **environment: str) -> None:
        self.ours, its = pty.openpty()
        self.resize(24, 80)
        self.settings = termios.tcgetattr(its)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "SLURM_"))}
        own = {"PATH": "/nonexistent", "TERM": "xterm-256color", "NO_COLOR": "1", **environment}
        for kind in ("STATE", "CACHE"):
            own.setdefault(f"XDG_{kind}_HOME", str(folder / kind.lower()))
        code = f"{before}\nfrom opsctl.cli import main; main()"
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=folder,
            env={**kept, **own},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self.shown = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: str) -> None:
        """Wait until this has been drawn since the last wait."""
        until_s = time.monotonic() + WAIT_S
        drawn = ""
        while text not in drawn:
            assert time.monotonic() < until_s, f"{text!r} never came: {drawn[-3000:]!r}"
            if select.select([self.ours], [], [], 0.2)[0]:
                drawn += os.read(self.ours, 1 << 16).decode(errors="replace")
        self.shown += drawn

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def ended(self) -> int:
        """Its exit code; what it still draws is taken from it."""
        until_s = time.monotonic() + WAIT_S
        while self.child.poll() is None:
            assert time.monotonic() < until_s, "it does not end"
            with contextlib.suppress(OSError):
                if select.select([self.ours], [], [], 0.1)[0]:
                    self.shown += os.read(self.ours, 1 << 16).decode(errors="replace")
        return self.child.returncode
