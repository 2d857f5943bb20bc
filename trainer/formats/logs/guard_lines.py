"""The spike guard's lines in a training log, written and read back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # who reads logs has no use for what decides
    from trainer.recipe.spike_guard import Judgement, Window

#: In every such line: what a search through a log's bytes looks for.
MARKS = (b"spike guard: ",)
#: What became of an unusual step, in the log's words.
LOGGED, SKIPPED, UPDATED = "logged", "update skipped", "update made"
_UNUSUAL = re.compile(
    r"\s*spike guard: iteration (?P<iteration>\d{1,18}) is unusual: loss (?P<loss>\S+) \(\S+ deviations\), "
    r"gradient norm (?P<norm>\S+) \(\S+ deviations\): (?P<done>\w[\w ]*)"
)
_RERUN = re.compile(
    r"\s*spike guard: iteration (?P<iteration>\d{1,18}) was run again: (?P<found>hardware|data): (?P<why>.+)"
)
_BACK = re.compile(
    r"\s*spike guard: rolled back from iteration (?P<iteration>\d{1,18}) to (?P<to>\d{1,18}), "
    r"leaving out iterations (?P<first>\d{1,18}) to (?P<last>\d{1,18}): (?P<why>.+)"
)
_KEPT = re.compile(r"\s*spike guard: no rollback at iteration (?P<iteration>\d{1,18}): (?P<why>.+)")


class Unusual(msgspec.Struct, frozen=True):
    """A step whose loss or gradient norm was unusual, and what was done."""

    iteration: int
    loss: float
    grad_norm: float
    done: str


class RunAgain(msgspec.Struct, frozen=True):
    """A step that was run again."""

    iteration: int
    found: str  # "hardware" or "data"
    why: str

    @property
    def is_hardware(self) -> bool:
        """Whether the same data came out differently."""
        return self.found == "hardware"


class RolledBack(msgspec.Struct, frozen=True):
    """The training went back, and leaves data out."""

    iteration: int
    to: int
    first: int
    last: int
    why: str


class NotRolledBack(msgspec.Struct, frozen=True):
    """There was reason to go back, and no way."""

    iteration: int
    why: str


GuardLine = Unusual | RunAgain | RolledBack | NotRolledBack


def write_unusual(iteration: int, judgement: Judgement, done: str) -> str:
    """One line."""
    return (
        f"spike guard: iteration {iteration} is unusual: loss {judgement.loss:.6g} "
        f"({_deviations(judgement.loss_deviations)} deviations), gradient norm {judgement.gradient_norm:.6g} "
        f"({_deviations(judgement.norm_deviations)} deviations): {done}"
    )


def write_run_again(line: RunAgain) -> str:
    """One line."""
    return f"spike guard: iteration {line.iteration} was run again: {line.found}: {line.why}"


def write_rolled_back(window: Window) -> str:
    """One line."""
    return (
        f"spike guard: rolled back from iteration {window.found_at} to {window.rolled_back_to}, "
        f"leaving out iterations {window.first} to {window.last}: {window.why}"
    )


def write_not_rolled_back(line: NotRolledBack) -> str:
    """One line."""
    return f"spike guard: no rollback at iteration {line.iteration}: {line.why}"


def parse_guard_line(text: str) -> GuardLine | None:
    """What a line of the guard says, else None."""
    if "spike guard: " not in text:
        return None
    if match := _UNUSUAL.match(text):
        return Unusual(int(match["iteration"]), float(match["loss"]), float(match["norm"]), match["done"])
    if match := _RERUN.match(text):
        return RunAgain(int(match["iteration"]), match["found"], match["why"])
    if match := _BACK.match(text):
        iteration, to, first, last = (int(match[name]) for name in ("iteration", "to", "first", "last"))
        return RolledBack(iteration, to, first, last, match["why"])
    if match := _KEPT.match(text):
        return NotRolledBack(int(match["iteration"]), match["why"])
    return None


def _deviations(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"
