"""The evaluations in a plan."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.run.config.schema import EvaluationTable
from opsctl.run.planning.schedule import evaluation_sections
from trainer.recipe.options import parse, to_arguments

TABLE = EvaluationTable(every=100, tasks=("arc_easy", "sst"), gpus=2, time="10:00:00")


def options(**given: Any) -> Any:
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "vocab_size": 300}
    batch = {"micro_batch_size": 1, "global_batch_size": 1, "lr": 1e-3}
    return parse(to_arguments({**sizes, **batch, "train_iters": 1000, "save": "x", "save_interval": 50, **given}), 1)


def planned(table: EvaluationTable, **given: Any) -> tuple[int, float | None, str]:
    (section,) = evaluation_sections(table, options(**given))
    values: Any = section.values
    return values.count, values.gpu_hours, "; ".join(text for _, text in section.rows)


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 10), ({"save_interval": 200}, 5), ({"save_interval": 150}, 4), ({"train_iters": 1050}, 10)],
)
def test_what_is_saved_at_multiples_is_evaluated_and_the_last_is_saved_whatever_the_schedule(
    given: dict[str, Any], count: int
) -> None:
    # 150: at 300, 600, 900, and at the end.
    found, hours, text = planned(TABLE, **given)
    assert (found, hours) == (count, count * 2 * 10)
    assert all(fact in text for fact in (f"{count}, ", " 100", "2 tasks", "2 GPUs for 10:00:00", f"{count * 20} GPU"))


def test_a_schedule_that_matches_no_save_plans_no_evaluation() -> None:
    count, hours, text = planned(TABLE, save_interval=70, train_iters=650)
    assert count == 0 and not hours and "100" in text


@pytest.mark.parametrize("table", [None, EvaluationTable(every=100), EvaluationTable(every=0, tasks=("a",))])
def test_without_tasks_or_a_schedule_there_is_nothing_to_say(table: EvaluationTable | None) -> None:
    assert list(evaluation_sections(table, options())) == []
