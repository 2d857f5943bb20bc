"""The live screen, by Textual: it draws only what has changed, and follows the terminal's size."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from opsctl.ui.tui.panel import cut
from opsctl.ui.tui.refresh import REFRESH_EVERY_S, Refresher, Watched

INTERRUPTED = 130
#: The keys and what they do.
KEYS = (
    ("q", "quit"),
    ("Ctrl-C", "quit with exit code 130"),
    ("l", "refresh now"),
    ("?", "show or hide the keys"),
)


class Panel(Widget):
    """Lines of text, of which only those that have changed are drawn again."""

    def __init__(self, resized: Callable[[], None]) -> None:
        super().__init__(id="panel")
        self._resized = resized
        self._lines: list[str] = []

    def on_resize(self, _event: Resize) -> None:
        """Lay it out again."""
        self._resized()

    def show(self, lines: list[str]) -> None:
        """Draw these in place of those before. lines: with SGR codes, no other."""
        before, self._lines = self._lines, lines
        for y in range(max(len(before), len(lines))):
            if before[y : y + 1] != lines[y : y + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """See Widget."""
        text = Text.from_ansi(self._lines[y]) if y < len(self._lines) else Text("")
        segments = text.render(self.app.console, end="")
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


class LiveApp(App[int]):
    """The screen of a run or of all of them; its result is the command's exit code."""

    TITLE = "opsctl status --watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; }
    #panel { height: 1fr; width: 100%; }
    #keys { height: 1; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", priority=False),
        Binding("ctrl+c", f"leave({INTERRUPTED})", priority=True),
        Binding("l", "look"),
        Binding("question_mark", "keys"),
    ]

    def __init__(self, watched: Watched, colour: bool, every_s: float = REFRESH_EVERY_S) -> None:
        super().__init__(ansi_color=True)
        self._watched, self._colour, self._every_s = watched, colour, every_s
        self._looker = Refresher(watched.look, self._tell, every_s)
        self._shows_keys = False

    def compose(self) -> ComposeResult:
        """Return the panel and the line of keys."""
        yield Panel(self.redraw)
        yield Static(
            Text("q quit   l refresh now   ? keys", style="dim" if self._colour else "", no_wrap=True), id="keys"
        )

    def on_mount(self) -> None:
        """Begin to look; what is shown grows old also while no look comes back."""
        self._looker.start()
        self.set_interval(self._every_s, self.redraw)
        if not self.is_headless:
            self.set_interval(1.0, end_with_terminal)

    def redraw(self) -> None:
        """Show what the last look found."""
        panel = self.query_one(Panel)
        width, height = panel.size
        if width > 0 and height > 0:
            panel.show(
                _key_lines(width, height) if self._shows_keys else self._watched.lines(width, height, self._colour)
            )

    def action_leave(self, code: int) -> None:
        """Leave the terminal as it was."""
        self._looker.stop()
        self.exit(code)

    def action_look(self) -> None:
        """Look now."""
        self._looker.again()

    def action_keys(self) -> None:
        """Show the keys in place of the run, or the run again."""
        self._shows_keys = not self._shows_keys
        self.redraw()

    def _tell(self) -> None:
        if self.is_running:
            with contextlib.suppress(RuntimeError):  # it has been left meanwhile
                self.call_from_thread(self.redraw)


def _key_lines(width: int, height: int) -> list[str]:
    lines = [
        "Keys",
        *(f"  {key:<8}{what}" for key, what in KEYS),
        f"The screen refreshes every {REFRESH_EVERY_S:.0f} seconds.",
    ]
    return [cut(line, width) for line in lines[:height]]


def end_with_terminal() -> None:
    """End at once if the terminal is gone: no user looks, and there is no screen to restore.

    Usually SIGHUP does this, but not in a process that ignores it or uses another user's terminal.
    """
    try:
        termios.tcgetattr(sys.__stdin__ or 0)
    except (termios.error, ValueError):
        os._exit(128 + signal.SIGHUP)
