"""The end of a rank that does not come to its own: a peer is gone, a file system dead, an exit handler busy."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from trainer.formats.attempt.attempt_records import HARD_END_STATUS

#: A rank that has saved, or has nothing to save, and is still there after this many seconds ends without asking.
HARD_END_AFTER_S = 60.0

# The last words go to files, perhaps on the file system that is dead: nobody waits for them for longer than this.
_LAST_WORDS_S = 5.0


class HardEnd:
    """Ends this process without asking when something that was begun is not over in time.

    One thing at a time is watched: beginning another calls the one before off. `leave_word` is handed the sentence that
    says why, once it is printed: what else has to know of it.
    """

    def __init__(self, leave_word: Callable[[str], None] = lambda _sentence: None) -> None:
        self._leave_word = leave_word
        self._timer: threading.Timer | None = None

    def start(self, after_s: float = HARD_END_AFTER_S, sentence: str | None = None) -> None:
        """Begin the countdown, in a thread that does not itself keep the process alive."""
        self.cancel()
        why = sentence or f"this rank had decided to leave and did not within {after_s:g} s"
        self._timer = threading.Timer(after_s, self._end, args=(why,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Call it off; no error if it was never started."""
        if self._timer is not None:
            self._timer.cancel()

    @contextlib.contextmanager
    def unless_done_in(self, after_s: float, sentence: str) -> Iterator[None]:
        """Watch over what is done inside, for `after_s` seconds."""
        self.start(after_s, sentence)
        try:
            yield
        finally:
            self.cancel()

    def _end(self, sentence: str) -> None:
        words = threading.Thread(target=self._say, args=(sentence,), daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        os._exit(HARD_END_STATUS)

    def _say(self, sentence: str) -> None:
        os.write(2, f"{sentence}: ending it\n".encode())
        self._leave_word(sentence)
