"""The checks as a page: `python -m opsctl.cli.watch_help > docs/watch.md`."""

from __future__ import annotations

import re
from inspect import cleandoc

from opsctl.core.output import show_text
from opsctl.monitoring.check import Detector
from opsctl.monitoring.registry import DETECTORS, FAMILIES, command_name
from opsctl.run.config.schema import WatchTable

HEAD = """\
# What is watched

Made from the checks' own help by `python -m opsctl.cli.watch_help > docs/watch.md`.

`opsctl watch NAME` is one check, `opsctl watch all` every one; the cron's `slurm-status` job runs all each hour and
tells the [alert channels](run-file.md). A check is a pure function of one look at the run (`watch.snapshot`) and the
run file's settings. What it finds has a key that stays the same (`check`, or `check:subject` where there may be
several: a node, a file system, an iteration), a severity, since when it is so where that can be told, what it goes by
with numbers and units, and what to type next.

* **Who cannot see says so.** Where Slurm, a file system or a record cannot be looked at, a check that needs it finds
  nothing, good or bad: it says in one line, `unknown`, why. What it had found before is then neither over nor told
  again.
* **What is usual is what the run itself has shown.** Limits come from its log, its attempts and its file systems' past,
  by medians and quantiles over stretches that a few odd values do not move. A key of `[watch]` puts a number in their
  place.
* **What belongs to a training is no finding:** the batch ramp, an evaluation or a save, the learning rate's decay, a
  restart and the start-up after it, a maintenance, an array's task limit, the end of the training, a kill switch that
  somebody has just triggered.
* **It does not come and go.** Near its limit a finding stays until what it measures is clearly below: two per cent of a
  file system, a median over tens of iterations, a growth over a day.

How good they are is measured on simulated months with planted trouble: `make bench`, [lab notes](lab-notes.md)."""
_SEVERITIES = re.compile(r"(?<=[.?\s])\s*([0-3]): ")
_WORDS = {"0": "ok", "1": "warning", "2": "critical", "3": "unknown"}
_SETTING = re.compile(r"`(\[\w+\]) (\w+)`")


def row(detector: Detector) -> str:
    """One check: its command, what it asks, what is how bad, and the settings that its help names."""
    question, _, rest = " ".join(cleandoc(detector.help).split()).partition("? ")
    said = _SEVERITIES.split(f" {rest}")
    grades = [
        f"{_WORDS[grade]}: {text.strip().removesuffix('.')}" for grade, text in zip(said[1::2], said[2::2], strict=True)
    ]
    settings = dict.fromkeys(_setting(*found) for found in _SETTING.findall(" ".join(detector.help.split())))
    cells = (f"`{command_name(detector.name)}`", f"{question}?", "; ".join(grades), ", ".join(settings) or "-")
    return f"| {' | '.join(cells)} |"


def _setting(table: str, key: str) -> str:
    """The key with its default, where it has one."""
    default = getattr(WatchTable(), key, None) if table == "[watch]" else None
    shown = "" if default is None else f" = {str(default).lower() if isinstance(default, bool) else default}"
    return f"`{table} {key}{shown}`"


def markdown() -> str:
    """The page."""
    families = [
        f"`opsctl watch {name}`: {', '.join(command_name(one) for one in names)}."
        for name, (_, names) in FAMILIES.items()
    ]
    head = ["| check | asks | says | settings |", "|---|---|---|---|"]
    return "\n".join([HEAD, "", *head, *map(row, DETECTORS), "", "Several in one look: " + " ".join(families)])


if __name__ == "__main__":
    show_text(markdown())
