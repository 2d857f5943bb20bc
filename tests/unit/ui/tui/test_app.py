"""The screen that stays, driven by its keys without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from opsctl.ui.tui import app as live_app
from opsctl.ui.tui.app import INTERRUPTED, TOO_SMALL, Asking, LiveApp, Panel
from opsctl.ui.tui.refresh import Act, kill_switch_act, request_acts


class Watched:
    """A run that says its size."""

    def __init__(self, acts: bool = True) -> None:
        self.looks, self.acted, self._acts = 0, 0, acts
        self.is_triggered = False

    def look(self) -> None:
        self.looks += 1

    def lines(self, width: int, height: int, colour: bool) -> list[str]:
        shown = ["\x1b[32mdemo\x1b[0m" if colour else "demo", f"{width} by {height}", f"look {self.looks}"]
        return shown[:height]

    def kill_switch(self) -> Act | None:
        return kill_switch_act("/r/run.toml", self.is_triggered) if self._acts else None

    def requests(self) -> tuple[Act, ...]:
        return request_acts("/r/run.toml", "toy") if self._acts else ()

    def has_acted(self) -> None:
        self.acted += 1


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that were run."""
    found: list[tuple[str, ...]] = []

    def carry_out(words: tuple[str, ...]) -> list[str]:
        found.append(words)
        return ["done: \x1b[2Jas asked"]

    monkeypatch.setattr(live_app, "carried_out", carry_out)
    return found


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


def asked(pilot: Pilot[Any]) -> str:
    """Return what the box on top says; empty without one."""
    top = pilot.app.screen
    return str(top.query_one("#asked", Static).content) if isinstance(top, Asking) else ""


def state(pilot: Pilot[Any]) -> str:
    """Return what the box on top waits for; empty without one."""
    top = pilot.app.screen
    return top._state if isinstance(top, Asking) else ""


def test_the_kill_switch_is_triggered_by_the_command_after_a_reason_and_a_yes(done: list[tuple[str, ...]]) -> None:
    watched = Watched()

    async def script(pilot: Pilot[int]) -> None:
        await pilot.press("k")
        await seen(pilot, lambda: state(pilot) == "why")
        await pilot.press("y", "q", "space", "k", "enter")  # letters of the reason, no answers
        await seen(pilot, lambda: state(pilot) == "sure")
        assert "opsctl kill-switch trigger --run /r/run.toml --no-wait --reason 'yq k'" in asked(pilot)
        assert done == []
        await pilot.press("y")
        await seen(pilot, lambda: state(pilot) == "done")
        assert r"done: \x1b[2Jas asked" in asked(pilot)
        await pilot.press("space", "q")

    assert drive(watched, script) == 0
    assert done == [("kill-switch", "trigger", "--run", "/r/run.toml", "--no-wait", "--reason", "yq k")]
    assert watched.acted == 1


def test_nothing_is_done_without_a_yes(done: list[tuple[str, ...]]) -> None:
    async def script(pilot: Pilot[int]) -> None:
        for answer in ("n", "enter", "escape", "space"):
            await pilot.press("k")
            await seen(pilot, lambda: state(pilot) == "why")
            await pilot.press("enter")
            await seen(pilot, lambda: state(pilot) == "sure")
            await pilot.press(answer)
            await seen(pilot, lambda: not asked(pilot))
        await pilot.press("k")
        await seen(pilot, lambda: state(pilot) == "why")
        await pilot.press("escape", "y")
        await seen(pilot, lambda: not asked(pilot))

    drive(Watched(), script)
    assert done == []


@pytest.mark.parametrize("size", [(20, 5), (59, 24), (80, 11)])
def test_a_window_in_which_no_question_is_seen_takes_no_answer(
    done: list[tuple[str, ...]], size: tuple[int, int]
) -> None:
    watched = Watched()
    watched.is_triggered = True

    async def script(pilot: Pilot[int]) -> None:
        for key in ("k", "a"):
            await pilot.press(key, "y")
            assert not isinstance(pilot.app.screen, Asking)
            assert TOO_SMALL in str(pilot.app.query_one("#keys", Static).content)

    async def made_smaller(pilot: Pilot[int]) -> None:
        await pilot.press("k")
        await pilot.resize_terminal(*size)
        await pilot.press("y")
        assert TOO_SMALL in asked(pilot)

    drive(watched, script, size)
    drive(watched, made_smaller)
    assert done == []


def test_a_triggered_switch_is_taken_back_after_a_yes_alone(done: list[tuple[str, ...]]) -> None:
    watched = Watched()
    watched.is_triggered = True

    async def script(pilot: Pilot[int]) -> None:
        await pilot.press("k")
        await seen(pilot, lambda: "opsctl kill-switch deactivate --run /r/run.toml" in asked(pilot))
        await pilot.press("y")
        await seen(pilot, lambda: state(pilot) == "done")

    drive(watched, script)
    assert done == [("kill-switch", "deactivate", "--run", "/r/run.toml")]


def test_each_request_is_the_command_of_its_name(done: list[tuple[str, ...]]) -> None:
    acts = request_acts("/r/run.toml", "toy")

    async def script(pilot: Pilot[int]) -> None:
        for act in acts:
            await pilot.press("a")
            await seen(pilot, lambda: state(pilot) == "choosing")
            assert all(one.title in asked(pilot) for one in acts)
            await pilot.press(act.key)
            await seen(pilot, lambda: state(pilot) == "why")
            await pilot.press("enter")
            await seen(pilot, lambda: state(pilot) == "sure")
            await pilot.press("y")
            await seen(pilot, lambda: state(pilot) == "done")
            await pilot.press("space")
            await seen(pilot, lambda: not asked(pilot))

    drive(Watched(), script)
    assert done == [("request", act.title, "--run", "/r/run.toml", "--cluster", "toy") for act in acts]


def test_of_all_runs_nothing_is_done(done: list[tuple[str, ...]]) -> None:
    async def script(pilot: Pilot[int]) -> None:
        await pilot.press("k", "a", "y")
        assert not asked(pilot)
        assert "kill" not in str(pilot.app.query_one("#keys", Static).content)

    drive(Watched(acts=False), script)
    assert done == []


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


def test_acts_are_the_commands_own_processes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = live_app.carried_out(("kill-switch", "trigger", "--run", str(tmp_path / "none")))
    assert str(tmp_path / "none") in said[0] and said[-1].endswith(" 2")
