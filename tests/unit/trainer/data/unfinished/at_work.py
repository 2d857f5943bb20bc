"""Preparations in processes of their own, which pause where a test wants to do something to them."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.data import pieces, prepare, program, unfinished

#: A preparation that pauses after its second save until a file named `go` is there.
PAUSING = """
import sys, time
from pathlib import Path
from trainer.data import pieces, prepare, program, unfinished

folder, pieces.PIECE_BYTES, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
unfinished.SAVE_EVERY_S, program.QUIET_S = 0.0, 1e9
save, saves = unfinished.UnfinishedPair.save, []

def pausing(pair):
    save(pair)
    saves.append(1)
    if len(saves) == 2 and (folder / "pauses").exists():
        (folder / "paused").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)

unfinished.UnfinishedPair.save = pausing
sys.exit(prepare.main(words))
"""
PIECE_BYTES = 3000
FILES = ["c_text_document.bin", "c_text_document.idx", "c_text_document.json"]


class AtWork:
    """Preparations of the corpus in processes of their own."""

    def __init__(self, corpus: Path, folder: Path):
        self.out, self._folder = folder / "out", folder
        self.words = [str(corpus / "corpus.jsonl"), f"--output-prefix={self.out}/c"]
        self.tokenizer = [f"--tokenizer={corpus}"]
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *words: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PAUSING, str(self._folder), str(PIECE_BYTES), *self.words, *words]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )
        self._all.append(process)
        return process

    def paused(self, *words: str) -> subprocess.Popen[str]:
        """One that has saved twice, and waits."""
        (self._folder / "pauses").touch()
        process = self.start(*words)
        deadline = time.monotonic() + 60
        while not (self._folder / "paused").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.005)
        (self._folder / "pauses").unlink()
        return process

    def go(self) -> None:
        (self._folder / "go").touch()

    def finished(self, *words: str) -> str:
        """Prepare the data in this process, and return what it writes to stderr."""
        with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stderr(io.StringIO()) as err:
            patched.setattr(unfinished, "SAVE_EVERY_S", 0.0)
            patched.setattr(program, "QUIET_S", 1e9)
            patched.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
            assert prepare.main([*self.words, *words]) == 0, err.getvalue()
        return err.getvalue()

    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def tidy_up(self) -> None:
        for process in self._all:
            process.kill()
            process.communicate()


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return its encoding processes."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in found if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()]
