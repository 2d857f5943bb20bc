"""Triggers are noticed and reported while the training is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.loop import leaving
from trainer.loop.leaving import Lookout


class Said(list[str]):
    """Lines, of which the first can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.something = threading.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self.something.set()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    lines = Said()
    monkeypatch.setattr(leaving, "say", lines)
    return lines


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[Lookout]:
    one = Lookout(tmp_path / "kill-switch", tmp_path / "stop-request", every_s=0.01)
    one.start()
    yield one
    one.close()
    for thread in threading.enumerate():
        if thread.name == "lookout":
            thread.join(10)


@pytest.mark.parametrize(("name", "words"), [("kill-switch", "kill switch at "), ("stop-request", "stop request at ")])
def test_a_trigger_is_said_once_while_the_training_is_busy(
    looking: Lookout, said: Said, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / name).touch()
    assert said.something.wait(10)  # and this thread does nothing meanwhile, as one that is in a long save
    looking.close()
    (line,) = said
    assert f"{words}{tmp_path / name} " in line


def test_what_is_seen_between_two_short_steps_needs_no_words(tmp_path: Path, said: Said) -> None:
    (tmp_path / "kill-switch").touch()
    busy = Lookout(tmp_path / "kill-switch", None, every_s=0.01)
    looks = []

    class LeavesAtTheSecondLook:
        def is_taken(self) -> bool:
            looks.append(1)
            if len(looks) == 2:
                busy.close()
            return True

    busy._places = dict.fromkeys(busy._places, LeavesAtTheSecondLook())  # type: ignore[arg-type]
    busy._watch()
    assert said == [] and len(looks) == 2


def test_where_there_is_nothing_to_look_at_no_thread_looks() -> None:
    before = threading.active_count()
    Lookout(None, None).start()
    assert threading.active_count() == before
