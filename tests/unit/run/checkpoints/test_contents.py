"""The report on one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsctl.run.checkpoints.contents import lines_of, shown
from tests.unit.jobs.control.checkpoint_runs import save

AT = "2026-03-01T12:00:00+01:00"
LAYOUT = {"tensor": 1, "pipeline": 2, "data": 2, "world_size": 4, "optimizer": "adam"}
STARTS: list[dict[str, Any]] = [
    {"at": AT, "user": "ada", "host": "x01", "kind": "began", "iteration": 0, "layout": LAYOUT, "revision": 1},
    {
        **{
            "at": AT,
            "user": "ben",
            "host": "x02",
            "kind": "resumed",
            "iteration": 20,
            "attempt": "4711",
            "revision": 2,
        },
        "loaded_from": "/runs/global_step20",
        "changes": [{"name": "clip_grad", "before": 1.0, "now": 0.5}, {"name": "seed", "before": 1, "now": 2}],
        "allowed_by": "--allow-changed seed",
    },
]


def screen(folder: Path) -> str:
    return " ".join("\n".join(lines_of(shown(folder))).split())


def test_one_of_the_first_schema_shows_what_it_has(tmp_path: Path) -> None:
    found, text = shown(save(tmp_path, 40)), screen(save(tmp_path, 40))
    assert (found.iteration, found.consumed_samples, found.consumed_tokens, found.latest) == (40, 320, 5120, True)
    assert (found.loss, found.saved_by, found.history, found.manifest_schema) == (None, None, [], 1)
    # 384 rows + 16 positions of 32; a block: 12 x 32^2 + 13 x 32; two of 32 at the end
    assert found.parameters == 400 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
    assert found.learning_rate is not None and abs(found.learning_rate - 1e-3 * (1 - 320 / 4000)) < 1e-12
    assert "global_step40 (the latest)" in text and "complete; 2 files" in text
    assert "TP 1 x PP 1 x DP 4" in text


def test_the_newest_schema_tells_who_with_what_and_every_start_with_what_changed(tmp_path: Path) -> None:
    saved = {"at": AT, "user": "ben", "host": "x02", "attempt": "4711", "revision": 2}
    more = {"pinned": True, "loss": 2.25, "saved": saved, "history": STARTS, "layout": LAYOUT}
    folder = save(tmp_path, 40, schema_version=2, training={"seed": 2}, settings={"clip_grad": 0.5}, **more)
    text = screen(folder)
    assert "(the latest, pinned)" in text and "loss 2.25, learning rate 0.00092" in text
    assert "by ben@x02, job 4711, revision 2" in text
    assert "training seed 2 settings clip_grad 0.5" in text
    assert "began at iteration 0 by ada@x01, revision 1, TP 1 x PP 2 x DP 2; world_size 4, optimizer adam" in text
    assert "resumed at iteration 20 by ben@x02, job 4711, revision 2, from /runs/global_step20" in text
    assert "clip_grad: 1.0 -> 0.5 seed: 1 -> 2 " in text and "--allow-changed seed" in text


def test_what_is_wrong_and_what_would_steer_a_terminal_are_told_as_text(tmp_path: Path) -> None:
    folder = save(tmp_path, 40, settings={"clip_grad": "\x1b[31m"}, learning_rate={}, model={"odd": 1})
    (folder / "layer_01-model_00-model_states.pt").unlink()
    found, text = shown(folder), screen(folder)
    assert found.problem is not None and "is missing" in text and "\x1b" not in text
    assert (found.learning_rate, found.parameters) == (None, None)
