"""Tests of asked saves, which `trainer.loop.save` contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.formats.checkpoint.history import Progress
from trainer.loop.observer import Answer, Observer
from trainer.loop.resuming import Place
from trainer.loop.save import AskedSaves
from trainer.parallel.agreement import Refusal


class Saver(Observer):
    """Saves each time it is asked, or cannot."""

    def __init__(self, problem: str = "") -> None:
        self.saved: list[int] = []
        self._problem = problem

    def when_asked_to_save(self, progress: Progress, answer: Answer) -> bool:
        if self._problem:
            raise Refusal(self._problem)
        self.saved.append(progress.iteration)
        answer(progress.iteration, "")
        return True


@pytest.fixture
def asked(tmp_path: Path) -> AskedSaves:
    return AskedSaves(Place(tmp_path / "save-request"))


def ask(folder: Path, name: str) -> None:
    (folder / "save-request").write_text(json.dumps({"id": name}))


def at(iteration: int) -> Progress:
    progress = Progress.none()
    progress.iteration = iteration
    return progress


def said(folder: Path) -> tuple[str, int, str]:
    found = json.loads((folder / "saved.json").read_text())
    return found["id"], found["iteration"], found["problem"]


def test_each_request_is_carried_out_once_however_long_it_lies_there(asked: AskedSaves, tmp_path: Path) -> None:
    saver = Saver()
    for iteration, name in ((3, "a"), (5, "b")):
        ask(tmp_path, name)
        assert asked.is_asked() and asked.is_asked()  # also where all left it at looking, as at the start
        asked.carry_out([Observer(), saver], at(iteration))
        assert not asked.is_asked()
        assert said(tmp_path) == (name, iteration, "")
    assert saver.saved == [3, 5]


def test_what_could_not_be_saved_is_said_and_the_next_request_is_tried(asked: AskedSaves, tmp_path: Path) -> None:
    for name, observers, problem in (("a", [Saver("no space left")], "no space left"), ("b", [Observer()], "--save")):
        ask(tmp_path, name)
        assert asked.is_asked()
        asked.carry_out(observers, at(2))
        *answered, why = said(tmp_path)
        assert answered == [name, 2] and problem in why


def test_a_word_that_a_full_disk_did_not_take_is_written_later(
    asked: AskedSaves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path, "a")
    assert asked.is_asked()
    really = Place.write

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Place, "write", full)
    asked.carry_out([Saver()], at(2))
    assert not (tmp_path / "saved.json").exists()
    monkeypatch.setattr(Place, "write", really)
    assert not asked.is_asked()
    assert said(tmp_path) == ("a", 2, "")


def test_a_rank_without_a_place_asks_for_nothing_and_saves_with_the_others() -> None:
    asked, saver = AskedSaves(Place(None)), Saver()
    assert not asked.is_asked()
    asked.carry_out([saver], at(4))
    assert saver.saved == [4]
