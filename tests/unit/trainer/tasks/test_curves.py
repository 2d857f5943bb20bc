from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.tasks import curves


def results(step: int, value: float) -> dict[str, Any]:
    metrics = {"glue": {"acc": value}, "sst2": {"acc": value, "acc_stderr": 0.01}}
    return {"iteration": step, "consumed_train_samples": 8 * step, "tasks": [{"metrics": metrics}, {"metrics": {}}]}


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {tag: [(one.step, round(one.value, 6)) for one in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}


def test_each_checkpoint_is_a_point_once_however_often_it_is_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard" / "lm-eval"
    for step, value in ((10, 0.5), (100, 0.25), (10, 0.75)):
        file = tmp_path / f"{step}.json"
        file.write_text(json.dumps(results(step, value)))
        assert curves.main([str(file), str(folder)]) == 0
    assert len(list(folder.iterdir())) == 2
    found = points(folder)
    assert sorted(found) == sorted(
        f"lm-eval/{tag}{by}" for tag in ("glue/acc", "sst2/acc", "sst2/acc_stderr") for by in ("", " vs samples")
    )
    assert sorted(found["lm-eval/sst2/acc"]) == [(10, 0.75), (100, 0.25)]
    assert sorted(found["lm-eval/sst2/acc vs samples"]) == [(80, 0.75), (800, 0.25)]


def test_what_cannot_be_drawn_is_said(tmp_path: Path, capsys: Any) -> None:
    assert curves.main([str(tmp_path / "none.json"), str(tmp_path / "to")]) == 1
    assert str(tmp_path / "to") in capsys.readouterr().err
