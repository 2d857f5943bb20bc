"""The names of tasks in today's lm-eval."""

from __future__ import annotations

from opsctl.core.shipped import templates_folder
from opsctl.jobs.evaluation.settings import OF_BLOOM, RENAMED, missing, tasks_of, tasks_problem
from opsctl.run.config.load import load_run_file


def test_blooms_example_has_its_28_tasks() -> None:
    assert len(OF_BLOOM) == len(set(OF_BLOOM)) == 28
    file = load_run_file(templates_folder() / "examples" / "tr11-176B-ml.toml", {}).file
    assert file.evaluation is not None
    assert file.evaluation.tasks == OF_BLOOM and file.evaluation.every == 10_000


def test_each_task_has_its_name_of_today_and_says_why_it_is_another() -> None:
    found = {one.asked: one for one in tasks_of(OF_BLOOM)}
    assert [one.asked for one in tasks_of(OF_BLOOM)] == [*OF_BLOOM]
    assert {one.asked: one.name for one in found.values() if one.name != one.asked} == {
        "headqa": "headqa_es",
        "lambada": "lambada_openai",
        "sst": "sst2",
    }
    assert all(bool(one.note) == (one.asked in RENAMED) for one in found.values())
    assert [one.asked for one in missing([*found.values()], {"sst2", "arc_easy"})] == [
        one for one in OF_BLOOM if one not in ("sst", "arc_easy")
    ]


def test_tasks_that_would_share_a_file_are_refused_by_both_names() -> None:
    assert tasks_problem(tasks_of(OF_BLOOM)) is None
    assert str(tasks_problem(tasks_of(["sst", "cats", "sst2"]))).startswith("sst and sst2 ")
    assert "results.json" in str(tasks_problem(tasks_of(["results"])))
