"""The screen that stays, by Textual: it draws only what has changed, follows the terminal's size, and acts when asked.

Whatever is done from here is done by the command that a person would type, in a process of its own, after a yes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key, Resize
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from opsctl.core.output import printable
from opsctl.core.process import Overdue, run_program
from opsctl.ui.tui.refresh import REFRESH_EVERY_S, Act, Refresher, Watched

#: Seconds for which a command may take: it waits for the job's word for 15.
_ACT_MOST_S = 90.0
INTERRUPTED = 130
TOO_SMALL = "window too small to ask"
#: The smallest window in which a question with its command is seen.
_LEAST_WIDTH, _LEAST_HEIGHT = 60, 12


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
    Asking { align: center middle; }
    Asking > Vertical { width: 76; max-width: 100%; height: auto; max-height: 100%; border: round; padding: 0 1; }
    Asking Static { height: auto; }
    Asking Input { border: none; height: 1; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", priority=False),
        Binding("ctrl+c", f"leave({INTERRUPTED})", priority=True),
        Binding("l", "look"),
        Binding("k", "kill_switch"),
        Binding("a", "requests"),
    ]

    def __init__(self, watched: Watched, colour: bool, every_s: float = REFRESH_EVERY_S) -> None:
        super().__init__(ansi_color=True)
        self._watched, self._colour, self._every_s = watched, colour, every_s
        self._looker = Refresher(watched.look, self._tell, every_s)

    def compose(self) -> ComposeResult:
        """Return the panel and the line of keys."""
        yield Panel(self._resized)
        yield Static(self._keys(), id="keys")

    def on_mount(self) -> None:
        """Begin to look; what is shown grows old also while no look comes back."""
        self._looker.start()
        self.set_interval(self._every_s, self.redraw)
        if not self.is_headless:
            self.set_interval(1.0, end_with_terminal)

    def redraw(self) -> None:
        """Show what the last look found."""
        panel = self.screen_stack[0].query_one(Panel)
        width, height = panel.size
        if width > 0 and height > 0:
            panel.show(self._watched.lines(width, height, self._colour))

    def action_leave(self, code: int) -> None:
        """Leave the terminal as it was."""
        self._looker.stop()
        self.exit(code)

    def action_look(self) -> None:
        """Look now."""
        self._looker.again()

    def action_kill_switch(self) -> None:
        """Ask, then trigger the kill switch, or take it back."""
        if not self._has_room_to_ask():
            return
        act = self._watched.kill_switch()
        if act is not None:
            self.push_screen(Asking((act,), self._has_acted))

    def action_requests(self) -> None:
        """Choose something to ask for, then ask whether to."""
        if (acts := self._watched.requests()) and self._has_room_to_ask():
            self.push_screen(Asking(acts, self._has_acted))

    def _resized(self) -> None:
        self.screen_stack[0].query_one("#keys", Static).update(self._keys())  # there may be room to ask now
        self.redraw()

    def _has_room_to_ask(self) -> bool:
        """Return whether a question can be read completely; otherwise show why: an unseen question gets no answer."""
        has_room = is_readable(self.size)
        if not has_room and self._watched.requests():
            self.query_one("#keys", Static).update(TOO_SMALL)
        return has_room

    def _has_acted(self) -> None:
        self._watched.has_acted()
        self._looker.again()

    def _tell(self) -> None:
        if self.is_running:
            with contextlib.suppress(RuntimeError):  # it has been left meanwhile
                self.call_from_thread(self.redraw)

    def _keys(self) -> Text:
        keys = ["q quit", "l look now"]
        if self._watched.requests():
            keys += ["k kill switch", "a ask the job for ..."]
        return Text("   ".join(keys), style="dim" if self._colour else "", no_wrap=True)


class Asking(ModalScreen[None]):
    """The dialog: the action, the reason, the confirmation, and the result."""

    AUTO_FOCUS = ""  # the line for the reason takes keys only while it is asked for
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", priority=True)]

    def __init__(self, acts: tuple[Act, ...], has_acted: Callable[[], None]) -> None:
        super().__init__()
        self._acts, self._has_acted = acts, has_acted
        self._chosen: Act | None = acts[0] if len(acts) == 1 else None
        self._why = ""
        self._state = "choosing"  # then why, sure, doing, done

    def compose(self) -> ComposeResult:
        """Return a box with the question, and a line for the reason."""
        with Vertical():
            yield Static(id="asked", markup=False)
            yield Input(id="why", select_on_focus=False)

    def on_mount(self) -> None:
        """Begin with the choice, where there is one."""
        self.query_one(Input).display = False
        if self._chosen is not None:
            self._ask_why(self._chosen)
        else:
            width = max(len(act.title) for act in self._acts)
            rows = [f"{act.key}  {act.title:<{width}}  {act.meaning}" for act in self._acts]
            self._say(["Ask the job for", "", *rows, "", "Esc: nothing"])

    def on_key(self, event: Key) -> None:
        """Handle a key: a letter chooses; y confirms, and any other key does not."""
        if self._state == "choosing":
            self._chosen = next((act for act in self._acts if act.key == event.key), None)
            event.stop()
            if self._chosen is not None:
                event.prevent_default()
                self._ask_why(self._chosen)
        elif self._state == "sure":
            event.stop()
            if event.key == "y" and not is_readable(self.app.size):
                self._state = "done"  # it has been made smaller meanwhile
                self._say([TOO_SMALL, "", "any key goes back"])
            elif event.key == "y" and self._chosen is not None:
                self._do(self._chosen)
            else:
                self.dismiss()
        elif self._state == "done":
            event.stop()
            self.dismiss()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept the reason, which may be empty."""
        event.stop()
        self._why = event.value.strip()
        if self._chosen is not None:
            self._ask_whether(self._chosen)

    def action_leave(self) -> None:
        """Do nothing; what has been begun goes on."""
        self.dismiss()

    def _ask_why(self, act: Act) -> None:
        if not act.why_option:
            self._ask_whether(act)
            return
        self._state = "why"
        self._say([f"{act.title}: {act.meaning}", "", "Reason, for other users (Enter continues, Esc leaves):"])
        line = self.query_one(Input)
        line.display = True
        line.focus()

    def _ask_whether(self, act: Act) -> None:
        self._state = "sure"
        self.query_one(Input).display = False
        self.set_focus(None)
        self._say([f"{act.title}: {act.meaning}", "", act.typed(self._why), "", "y does it, any other key does not"])

    def _do(self, act: Act) -> None:
        self._state = "doing"
        self._say([act.typed(self._why), "", "at it ..."])
        threading.Thread(target=self._carry_out, args=(act,), daemon=True).start()

    def _carry_out(self, act: Act) -> None:
        """In a thread: the command, to its end."""
        lines = carried_out(act.command(self._why))
        with contextlib.suppress(RuntimeError):
            self.app.call_from_thread(self._show_outcome, act, lines)

    def _show_outcome(self, act: Act, lines: list[str]) -> None:
        self._has_acted()
        if self.is_current:
            self._state = "done"
            self._say([act.typed(self._why), "", *lines, "", "any key goes back"])

    def _say(self, lines: list[str]) -> None:
        self.query_one("#asked", Static).update("\n".join(printable(line) for line in lines))


def is_readable(size: Size) -> bool:
    """Return whether a window of that size shows a question completely."""
    return size.width >= _LEAST_WIDTH and size.height >= _LEAST_HEIGHT


def end_with_terminal() -> None:
    """End at once if the terminal is gone: no user looks, and there is no screen to restore.

    Usually SIGHUP does this, but not in a process that ignores it or uses another user's terminal.
    """
    try:
        termios.tcgetattr(sys.__stdin__ or 0)
    except (termios.error, ValueError):
        os._exit(128 + signal.SIGHUP)


def carried_out(words: tuple[str, ...]) -> list[str]:
    """Run `opsctl WORDS` to its end; what it said, in lines."""
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        ended = run_program([sys.executable, "-P", "-m", "opsctl", *words], environment, _ACT_MOST_S)
    except Overdue as late:
        return [f"no end after {_ACT_MOST_S:g} s; the run's records have the result", *_lines(late.out)]
    except OSError as error:
        return [f"not done: {error.strerror}"]
    said = _lines(ended.out) + _lines(ended.err)
    return said if ended.code == 0 else [*said, f"it failed, with exit code {ended.code}"]


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").rstrip("\n").split("\n") if output.strip() else []
