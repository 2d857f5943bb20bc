"""Regular expressions of a site's own rules, run in a separate process with a time limit."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys

#: CPU seconds for one line; patterns with bounded gaps take milliseconds.
LONGEST_S = 0.25
#: Seconds for an answer, on a machine under load.
_ANSWER_S = 5.0
#: Seconds for the start of Python, which is slow on a cold file system.
_READY_S = 60.0
#: Answers each line `{"pattern", "text"}` with true or false. A pattern that takes too long ends this process by
#: SIGVTALRM: a thread cannot be interrupted in `re`. CPU time, so that a busy machine interrupts no fast pattern.
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
    """The process. It starts with the first pattern, restarts after it has ended, and ends with its owner."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[str] | None = None

    def is_fast(self, pattern: str, text: str) -> bool:
        """Return whether `pattern` finishes in time and matches. Raises TimeoutError; OSError without a process."""
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
        """Return the next line of its output; empty if there is none in time."""
        assert self._running is not None and self._running.stdout is not None
        answers, _, _ = select.select([self._running.stdout], [], [], seconds)
        return self._running.stdout.readline() if answers else ""

    def end(self) -> None:
        """End the process if it runs."""
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
    """A pattern that is disabled after it took too long."""

    def __init__(self, text: str, process: PatternProcess) -> None:
        self._pattern, self._process = re.compile(text), process
        self.given_up = ""  # the reason; empty while it is in use

    def search(self, text: str, /) -> re.Match[str] | None:
        """Return the match; None if the pattern is disabled."""
        if self.given_up:
            return None
        try:
            return self._pattern.search(text) if self._process.is_fast(self._pattern.pattern, text) else None
        except OSError as error:  # TimeoutError too
            self.given_up = str(error.strerror or error)
            return None


#: A pattern of the shipped table, or of a site's table.
Pattern = re.Pattern[str] | BoundedPattern
