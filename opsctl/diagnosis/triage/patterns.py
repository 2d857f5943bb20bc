"""Regular expressions that somebody else has written, tried in a process of their own, for as long as they may take."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys

#: Of processor time, for one line; patterns whose gaps are bounded take some thousandths.
LONGEST_S = 0.25
#: For an answer of any kind, on a machine that has other work.
_ANSWER_S = 5.0
#: For Python's own start, which on a cold file system takes longer than any answer.
_READY_S = 60.0
#: Answers `{"pattern", "text"}` with whether it matches, a line each. A pattern that takes longer ends this
#: process by SIGVTALRM, and nothing else: no thread can be kept from `re`. Processor time, so that a busy machine cuts
#: none short.
_PROGRAM = """
import json, re, signal, sys

print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    signal.setitimer(signal.ITIMER_VIRTUAL, float(sys.argv[1]))
    match = re.search(asked["pattern"], asked["text"])
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    print(json.dumps(match is not None), flush=True)
"""


class PatternProcess:
    """The process; it is started with the first question, again after it has ended, and goes with its owner."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[str] | None = None

    def is_fast(self, pattern: str, text: str) -> bool:
        """Return whether `pattern` fits in time. Raises TimeoutError, and OSError without a process."""
        if self._running is None:
            self._running = self._started()
            if not self._line_within(_READY_S):
                self.end()
                raise TimeoutError(f"its process did not start within {_READY_S:g} s")
        running = self._running
        assert running.stdin is not None
        try:
            running.stdin.write(json.dumps({"pattern": pattern, "text": text}) + "\n")
            running.stdin.flush()
            line = self._line_within(_ANSWER_S)
        except BrokenPipeError:
            line = ""
        if not line:
            self.end()
            raise TimeoutError(f"one line took more than {LONGEST_S} s")
        return line.strip() == "true"

    def _line_within(self, seconds: float) -> str:
        """What it says next; empty where that is nothing in time."""
        assert self._running is not None and self._running.stdout is not None
        answers, _, _ = select.select([self._running.stdout], [], [], seconds)
        return self._running.stdout.readline() if answers else ""

    def end(self) -> None:
        """End it, if it runs."""
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            for pipe in (running.stdin, running.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            running.wait()

    def __del__(self) -> None:
        self.end()

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(LONGEST_S)]
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


class BoundedPattern:
    """A pattern that is given up once it took too long."""

    def __init__(self, text: str, process: PatternProcess) -> None:
        self._pattern, self._process = re.compile(text), process
        self.given_up = ""  # why

    def search(self, text: str, /) -> re.Match[str] | None:
        """Return the match; None once the pattern is given up."""
        if self.given_up:
            return None
        try:
            return self._pattern.search(text) if self._process.is_fast(self._pattern.pattern, text) else None
        except OSError as error:  # TimeoutError too
            self.given_up = str(error.strerror or error)
            return None


#: A pattern of the shipped table, or of a site's own.
Pattern = re.Pattern[str] | BoundedPattern
