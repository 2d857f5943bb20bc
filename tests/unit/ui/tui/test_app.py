"""The screen that stays, driven by its keys without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from opsctl.ui.tui.app import INTERRUPTED, KEYS, LiveApp, Panel


class Watched:
    """A run that says its size."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1

    def lines(self, width: int, height: int, colour: bool) -> list[str]:
        shown = ["\x1b[32mdemo\x1b[0m" if colour else "demo", f"{width} by {height}", f"look {self.looks}"]
        return shown[:height]


def drive(
    watched: Watched, script: Callable[[Pilot[int]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> int | None:
    """The result of the app after `script`."""

    async def run() -> int | None:
        app = LiveApp(watched, colour=True, every_s=60.0)
        async with app.run_test(size=size) as pilot:
            await seen(pilot, lambda: watched.looks > 0)
            await script(pilot)
        return app.return_value

    return asyncio.run(run())


async def seen(pilot: Pilot[Any], is_so: Callable[[], bool]) -> None:
    for _ in range(400):
        if is_so():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never came")


def test_it_follows_the_terminals_size_down_to_almost_nothing() -> None:
    async def script(pilot: Pilot[int]) -> None:
        panel = pilot.app.query_one(Panel)
        for width, height in ((80, 24), (20, 5), (200, 60), (3, 3)):
            await pilot.resize_terminal(width, height)
            await seen(pilot, lambda said=f"{width} by {height - 1}": said in panel._lines)  # type: ignore[misc]

    drive(Watched(), script)


def test_l_looks_now_and_control_c_leaves_as_interrupted() -> None:
    watched = Watched()

    async def script(pilot: Pilot[int]) -> None:
        before = watched.looks
        await pilot.press("l")
        await seen(pilot, lambda: watched.looks > before)
        await pilot.press("ctrl+c")

    assert drive(watched, script) == INTERRUPTED


def test_a_question_mark_shows_all_keys_and_another_the_run_again() -> None:
    async def script(pilot: Pilot[int]) -> None:
        panel = pilot.app.query_one(Panel)
        await pilot.press("question_mark")
        await seen(pilot, lambda: panel._lines[:1] == ["Keys"])
        assert [key for key, _ in KEYS if not any(line.split()[:1] == [key] for line in panel._lines)] == []
        await pilot.press("question_mark")
        await seen(pilot, lambda: "80 by 23" in panel._lines)

    drive(Watched(), script)


def test_only_lines_that_have_changed_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(pilot: Pilot[int]) -> None:
        panel = pilot.app.query_one(Panel)
        panel.show(["a", "b", "c"])
        await pilot.pause()
        drawn: list[int] = []
        monkeypatch.setattr(panel, "refresh", lambda *regions, **_: drawn.extend(region.y for region in regions))
        panel.show(["a", "B", "c"])
        panel.show(["a", "B"])
        assert drawn == [1, 2]
        monkeypatch.undo()

    drive(Watched(), script)
