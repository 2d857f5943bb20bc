"""When the training loop says that it has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer.formats.leave_lines import Reason
from trainer.loop import train as loop


def test_the_end_is_dated_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(hour=1)
    said: list[str] = []

    def step(training: Any, _items: object) -> None:
        training.progress.iteration += 1
        clock.hour += 1

    monkeypatch.setattr(loop, "stamp", lambda what: f"{what} at {clock.hour}")
    monkeypatch.setattr(loop, "leave_line", lambda reason: f"{reason} at {clock.hour}")
    monkeypatch.setattr(loop, "say_on_first_rank", said.append)
    monkeypatch.setattr(loop, "open_items", lambda *_, **__: None)
    monkeypatch.setattr(loop, "_step", step)
    for name in ("_after_step", "_save", "_evaluate_at_the_end"):
        monkeypatch.setattr(loop, name, lambda _training: None)
    training: Any = SimpleNamespace(
        progress=SimpleNamespace(iteration=0, consumed_train_samples=0),
        options=None,
        parallel=None,
        datasets=SimpleNamespace(train=None),
        vocab_size=8,
        end_of_document=None,
        lengths=SimpleNamespace(train_iterations=3),
        leaving=SimpleNamespace(reason=lambda *_: None),
        steps_done=0,
    )
    assert loop.train(training) == Reason.FINISHED
    assert said == ["before the start of training step at 1", "finished at 4"]
