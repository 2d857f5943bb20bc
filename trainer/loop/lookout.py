"""Seeing that somebody wants the training to leave while it is busy: in a step, an evaluation, a save, a long start."""

from __future__ import annotations

import threading
from pathlib import Path

from trainer.core.console import say
from trainer.formats.logs.guard_lines import Reason
from trainer.loop.place import Place

#: Seconds between two looks.
LOOK_EVERY_S = 1.0
# So many looks pass before it says so: a training that is between two short steps leaves without more words.
_LOOKS_UNTIL_SAID = 3
_NAMES = {Reason.KILL_SWITCH: "kill switch", Reason.STOP_REQUEST: "stop request"}


class Lookout:
    """Looks, in a thread of its own, whether the kill switch or the stop request is there.

    To leave all ranks have to agree, between two things that they do together. So all that this does is to say that
    they are going to. It ends with the process, or when it is closed.
    """

    def __init__(self, kill_switch: Path | None, stop_request: Path | None, every_s: float = LOOK_EVERY_S) -> None:
        paths = {Reason.KILL_SWITCH: kill_switch, Reason.STOP_REQUEST: stop_request}
        self._paths = {reason: path for reason, path in paths.items() if path is not None}
        # Its own places: what they hold open is not shared between threads.
        self._places = {reason: Place(path) for reason, path in self._paths.items()}
        self._looks: dict[Reason, int] = dict.fromkeys(self._places, 0)
        self._every_s = every_s
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin to look, where there is anything to look at."""
        if self._places:
            threading.Thread(target=self._watch, name="lookout", daemon=True).start()

    def close(self) -> None:
        """Look no more: the training is leaving."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._every_s):
            for reason, place in self._places.items():
                self._looks[reason] = self._looks[reason] + 1 if place.is_taken() else 0
                if self._looks[reason] == _LOOKS_UNTIL_SAID:
                    say(f"{_NAMES[reason]} at {self._paths[reason]} is seen: leaving when what is under way is done")
