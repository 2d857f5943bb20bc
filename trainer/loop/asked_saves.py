"""Saving because somebody asks, and training on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime

from trainer.formats.attempt.attempt_records import SAVED_NOTE, SavedNote, SaveRequest
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode
from trainer.loop.observer import Observer
from trainer.loop.place import Place
from trainer.parallel.agreement import Refusal


class AskedSaves:
    """The save request that lies there, and the word of what came of it. Only the first rank has a place for them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._asked: SaveRequest | None = None
        self._answered: SaveRequest | None = None
        self._unsaid: SavedNote | None = None  # what a full disk did not take
        self.are_due = False  # as all ranks have agreed

    def is_asked(self) -> bool:
        """Whether a request lies there that has had no answer yet. One that cannot be read is none."""
        self._say()
        if not self._place.is_taken():
            return False
        asked: SaveRequest | None = None
        with contextlib.suppress(OSError):
            asked = decode(self._place.read(), SaveRequest)
        if asked is None or asked == self._answered:
            return False
        self._asked = asked
        return True

    def carry_out(self, observers: Sequence[Observer], progress: Progress) -> None:
        """Have every observer that can save this iteration, unless it is saved. Collective, like their saves.

        Whoever saves beside the training answers when all is written. A disk that takes no checkpoint is no reason to
        end the training: the word says so.
        """
        asked = self._answered = self._asked

        def answer(iteration: int, problem: str) -> None:
            if asked is not None:
                self._unsaid = SavedNote(asked.id, iteration, problem, datetime.now().astimezone())
                self._say()

        try:
            can_save = [observer.when_asked_to_save(progress, answer) for observer in observers]
            if not any(can_save):
                answer(progress.iteration, "this training saves nothing (no --save)")
        except Refusal as error:
            answer(progress.iteration, str(error))

    def _say(self) -> None:
        if self._unsaid is not None:
            with contextlib.suppress(OSError):
                self._place.write(json_file_text(self._unsaid), SAVED_NOTE)
                self._unsaid = None
