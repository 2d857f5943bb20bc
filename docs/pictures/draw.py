"""Draw the diagrams of the docs as SVG: the memory of layouts, the life of a chain, the path of an alert.

`python docs/pictures/draw.py` writes them next to this file. The layouts come from `opsctl plan --search`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
_PLAN_S = 60
#: Light and dark follow the reader's system. No font is loaded.
_STYLE = """
svg { background: #ffffff; color: #1f2430; font: 14px system-ui, sans-serif; }
text { fill: currentColor; } .small { font-size: 12px; opacity: 0.75; } .title { font-weight: 600; font-size: 15px; }
.box { fill: #eef1fb; stroke: #4a5bb8; }
.good { fill: #e3f4e6; stroke: #3b8a4b; } .bad { fill: #fdeaea; stroke: #c23b3b; }
.limit { stroke: #c23b3b; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
svg { background: #1b1e27; color: #e6e8ef; } .box { fill: #2a3157; } .good { fill: #1f3f28; } .bad { fill: #4a2222; } }
"""


def main() -> int:
    """Write the three pictures."""
    for name, drawing in (("layouts", layouts()), ("chain", chain()), ("alert", alert())):
        (HERE / f"{name}.svg").write_text(drawing)
    return 0


def layouts() -> str:
    """Return the bars of memory per GPU of the layouts that fit tr1-13B, with the time of an iteration."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (["init", "tr1", "--from", "tr1-13B"], ["plan", "--run", "tr1", "--search", "--json"]):
            command = [sys.executable, "-m", "opsctl", *words]
            printed = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=True, timeout=_PLAN_S
            ).stdout
    found = json.loads(printed)["search"]
    usable, scale, left = found["gpu"]["usable_gb"], 15.0, 190
    parts = [_text(20, 30, f"tr1-13B on {found['gpu']['gpus']} V100: memory per GPU of the layouts that fit", "title")]
    for row, one in enumerate([*found["layouts"], found["own"]]):
        top = 50 + 30 * row
        name = f"TP {one['tensor']}  PP {one['pipeline']}  DP {one['data']}  x {one['micro_batch_size']}"
        width = one["memory_gb"] * scale
        kind = "good" if one is found["own"] else "box"
        parts += [
            _text(20, top + 17, name),
            f'<rect class="{kind}" x="{left}" y="{top}" width="{width:.0f}" height="22"/>',
        ]
        parts.append(
            _text(
                left + usable * scale + 10,
                top + 16,
                f"{one['memory_gb']:.0f} GB, {one['seconds_per_iteration']:.0f} s",
                "small",
            )
        )
    bottom = 50 + 30 * (len(found["layouts"]) + 1)
    edge = left + usable * scale
    parts.append(f'<line class="limit" x1="{edge:.0f}" x2="{edge:.0f}" y1="44" y2="{bottom}"/>')
    parts.append(_text(edge - 8, bottom + 16, f"usable: {usable} GB", "small end"))
    parts.append(
        _text(
            20,
            bottom + 16,
            "x: micro-batch size. Green: the run as it is, with recomputation. s: one iteration",
            "small",
        )
    )
    return _svg(760, bottom + 34, parts)


def chain() -> str:
    """Return the life of a chain: three array tasks, a failure, a save and the end."""
    parts = [_text(20, 30, "opsctl submit --array 1-3%1", "title")]
    tasks = (
        ("array task 1", "good", "trains to the time limit", "saves at iteration 4,000"),
        ("array task 2", "bad", "node7 fails at 5,200", "last checkpoint: 5,000"),
        ("array task 3", "good", "resumes at 5,000", "trains without node7"),
    )
    for number, (name, kind, first, second) in enumerate(tasks):
        x = 20 + 240 * number
        parts += [
            _box(x, 50, 200, 84, kind),
            _text(x + 14, 74, name, "title"),
            _text(x + 14, 98, first),
            _text(x + 14, 118, second),
        ]
        parts.append(_arrow(x + 200, 92, x + 240, 92))
    parts += [
        _box(740, 50, 130, 84, "good"),
        _text(754, 74, "finished", "title"),
        _text(754, 98, "queued tasks"),
        _text(754, 118, "end in seconds"),
    ]
    notes = (
        (60, 240, "revise: the next task", "reads the new revision"),
        (310, 460, "triage names the cause", "and the node, and excludes it"),
        (560, 700, "kill switch: saves, stops,", "queued tasks end"),
    )
    for x, _, first, second in notes:
        parts += [_arrow(x + 70, 184, x + 70, 138), _text(x, 202, first, "small"), _text(x, 218, second, "small")]
    parts.append(_text(20, 250, "Three attempts in a row without a new checkpoint stop the chain.", "small"))
    return _svg(890, 266, parts)


def alert() -> str:
    """Return the path from a check to a person."""
    boxes = (
        ("snapshot", ("queue, log, disk,", "checkpoints, nodes")),
        ("checks", ("pure functions:", "snapshot to findings")),
        ("findings", ("key, severity,", "since, what to type")),
        ("alerts", ("once, then reminders;", "quiet hours; recovery")),
        ("channels", ("mail, Slack and others", "through apprise")),
    )
    parts = [_text(20, 30, "opsctl watch all --alert, every hour by opsctl cron", "title")]
    for number, (name, lines) in enumerate(boxes):
        x = 20 + 212 * number
        parts += [_box(x, 50, 184, 84, "box"), _text(x + 12, 74, name, "title")]
        parts += [_text(x + 12, 98 + 20 * row, line) for row, line in enumerate(lines)]
        if number + 1 < len(boxes):
            parts.append(_arrow(x + 184, 92, x + 212, 92))
    parts.append(
        _text(
            20,
            164,
            "opsctl alerts ack KEY stops the reminders. A message that a channel refuses waits and is sent in order.",
            "small",
        )
    )
    parts.append(
        _text(
            20,
            184,
            "A dead scheduler is reported by the running job; a failed heartbeat by your heartbeat service.",
            "small",
        )
    )
    return _svg(1070, 200, parts)


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    tip += '<path d="M0 0L8 4L0 8z" fill="#7a83a8"/></marker>'
    return "\n".join([head, f"<style>{_STYLE}</style><defs>{tip}</defs>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    anchor = ' text-anchor="end"' if "end" in kind.split() else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}"{anchor}>{escape(text)}</text>'


def _box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#7a83a8" stroke-width="2" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    sys.exit(main())
