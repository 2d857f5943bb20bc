"""One checkpoint's evaluation: done once, continued, and what is said of whatever goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.brief import evaluations_seen
from opsctl.jobs.evaluation.execute import Busy, is_at_work
from opsctl.jobs.evaluation.records import Evaluated, append, read
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from opsctl.run.state.checkpoint_readers import being_read
from tests.unit.jobs.control.checkpoint_runs import save
from tests.unit.jobs.evaluation.evaluated_runs import a_run, due, evaluation, paths_of, ran, trainer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20)


def results(folder: Path, step: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((paths_of(folder).evaluation(step) / "results.json").read_text())
    return found


def states(folder: Path, step: int) -> dict[str, str]:
    tasks = results(folder, step)["tasks"]
    assert isinstance(tasks, list)
    return {one["name"]: one["state"] for one in tasks}


def test_it_is_done_once_and_the_export_is_gone(folder: Path) -> None:
    wanted = due(folder, 20)
    first = evaluation(folder).run(wanted)
    again = evaluation(folder).run(wanted)
    assert (first.state, again.state) == ("done", "there") and ran(folder) == ["cats", "dogs"]
    metrics = {one.name: one.metrics for one in first.tasks}
    assert metrics["cats"] == {"cats": {"acc": 0.25, "em,strict": 1.0}}  # nan is no number, `none` is no filter
    assert (first.consumed_train_samples, first.lm_eval) == (160, "9.9")
    assert results(folder, 20)["state"] == "done"
    assert not list(paths_of(folder).exported.iterdir())
    assert [line.what for line in read(paths_of(folder))] == ["begun", "done"]


def test_a_task_that_failed_is_said_by_name_and_it_alone_is_tried_again(folder: Path) -> None:
    (folder / "told" / "cats").write_text("no-data")
    failed = evaluation(folder).run(due(folder, 10))
    assert failed.state == "failed" and "cats (RuntimeError: no-data)" in failed.detail
    assert states(folder, 10) == {"cats": "failed", "dogs": "done"}
    (folder / "told" / "cats").unlink()
    assert evaluation(folder).run(due(folder, 10)).state == "done"
    assert ran(folder) == ["cats", "dogs", "cats"]


def test_a_task_that_lm_eval_does_not_have_is_missing(tmp_path: Path) -> None:
    folder, said = a_run(tmp_path / "run", 10, tasks=["cats", "unicorns"]), []  # type: Path, list[str]
    found = evaluation(folder, said).run(due(folder, 10))
    assert found.state == "done" and ": unicorns" in found.detail
    assert [(one.name, one.state) for one in found.tasks] == [("cats", "done"), ("unicorns", "missing")]
    assert any("unicorns" in line and "lm-eval 9.9" in line for line in said)


def test_a_checkpoint_saved_anew_is_another_one_and_old_answers_are_none_of_its(folder: Path) -> None:
    evaluation(folder).run(due(folder, 10))
    save(folder, 10, loss=3.5)
    assert evaluation(folder).run(due(folder, 10)).state == "done"
    assert ran(folder) == ["cats", "dogs"] * 2


def test_without_lm_eval_that_is_said_and_it_counts_as_a_try(folder: Path) -> None:
    shutil.rmtree(folder / "python")
    (folder / "python" / "lm_eval").mkdir(parents=True)
    (folder / "python" / "lm_eval" / "__init__.py").write_text("raise ImportError('not here')")
    with pytest.raises(OpsctlError, match=r": not here; .*\[evaluation\] python"):
        evaluation(folder).run(due(folder, 10))
    assert [(line.what, "no lm-eval" in line.detail) for line in read(paths_of(folder))] == [
        ("begun", False),
        ("failed", True),
    ]


@pytest.mark.parametrize("how", ["pruned", "saved again"])
def test_a_checkpoint_that_is_another_by_then_is_not_evaluated(folder: Path, how: str) -> None:
    wanted = due(folder, 10)
    if how == "pruned":
        shutil.rmtree(paths_of(folder).checkpoints / "global_step10")
    else:
        save(folder, 10, loss=2.5)
    found = evaluation(folder).run(wanted)
    assert found.state == "failed" and "global_step10 " in found.detail
    assert ran(folder) == []


def test_an_export_that_fails_leaves_nothing_and_says_so(folder: Path) -> None:
    def fails(module: str, arguments: Sequence[str]) -> int:
        trainer(module, arguments)
        return 1

    found = evaluation(folder, export=fails).run(due(folder, 10))
    assert found.state == "failed" and "export" in found.detail and "code 1" in found.detail
    assert not list(paths_of(folder).exported.iterdir())


def test_who_prunes_sees_that_the_checkpoint_is_being_read_while_it_is_exported(folder: Path) -> None:
    seen: list[dict[int, str]] = []

    def looks(module: str, arguments: Sequence[str]) -> int:
        seen.append(being_read(paths_of(folder)))
        return trainer(module, arguments)

    evaluation(folder, export=looks).run(due(folder, 10))
    assert [sorted(one) for one in seen] == [[10], []]


def test_two_at_once_are_one(folder: Path) -> None:
    (folder / "told" / "cats").write_text("wait")
    child = forked(lambda: evaluation(folder).run(due(folder, 10)))
    awaited(lambda: (folder / "told" / "waits").exists())
    assert is_at_work(paths_of(folder), 10) and not is_at_work(paths_of(folder), 20)
    with pytest.raises(Busy, match="global_step10"):
        evaluation(folder).run(due(folder, 10))
    (folder / "told" / "cats").write_text("")
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_one_that_was_killed_is_gone_on_with_from_its_last_answer(folder: Path) -> None:
    (folder / "told" / "dogs").write_text("wait")
    child = forked(lambda: evaluation(folder).run(due(folder, 10)))
    awaited(lambda: (folder / "told" / "waits").exists())
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (paths_of(folder).exported / "global_step10").is_dir()
    (folder / "told" / "dogs").unlink()
    assert evaluation(folder).run(due(folder, 10)).state == "done"
    assert ran(folder) == ["cats", "dogs", "dogs"]
    assert not list(paths_of(folder).exported.iterdir())


def test_what_is_interrupted_leaves_no_export(folder: Path) -> None:
    def interrupted(module: str, arguments: Sequence[str]) -> int:
        trainer(module, arguments)
        return 130

    with pytest.raises(KeyboardInterrupt):
        evaluation(folder, export=interrupted).run(due(folder, 10))
    assert not list(paths_of(folder).exported.iterdir())


def forked(do: Callable[[], object]) -> int:
    """A process of its own with a group of its own, so that it dies with what it started."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        try:
            do()
        finally:
            os._exit(0)
    return child


def awaited(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def test_two_runs_of_one_name_that_share_a_scratch_keep_their_weights(tmp_path: Path) -> None:
    more = f'every = 10\nscratch = "{tmp_path / "scratch"}"'
    one, other = (a_run(tmp_path / name, 10, more=more) for name in ("one", "other"))
    states: list[str] = []

    def meanwhile(module: str, arguments: Sequence[str]) -> int:
        trainer(module, arguments)
        if module.endswith("export_program"):
            states.append(evaluation(other).run(due(other, 10)).state)
        return 0

    assert evaluation(one, export=meanwhile).run(due(one, 10)).state == "done" and states == ["done"]
    assert not list((tmp_path / "scratch").iterdir())


def test_status_leaves_out_what_was_asked_for_of_a_checkpoint_that_is_gone(folder: Path) -> None:
    for step in (10, 20):
        append(paths_of(folder), Evaluated(iteration=step, what="asked", of="a", at=now(), errand="e1", by="b@far"))
    shutil.rmtree(paths_of(folder).checkpoints / "global_step10")
    seen = evaluations_seen(paths_of(folder))
    assert seen is not None and seen.open == [20]


def test_answers_under_other_settings_are_none(folder: Path) -> None:
    (folder / "told" / "dogs").write_text("no data")
    for more, which in (("", ["cats", "dogs"]), ("", ["dogs"]), ("limit = 8\n", ["cats", "dogs"])):
        text = (folder / "run.toml").read_text()
        (folder / "run.toml").write_text(text.replace("every = 10\n", f"every = 10\n{more}"))
        (folder / "told" / "ran").unlink(missing_ok=True)
        evaluation(folder).run(due(folder, 10))
        assert ran(folder) == which


def test_again_is_anew_once_and_then_gone_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS_VARIABLE, str(folder / "e1" / "progress"))
    evaluation(folder).run(due(folder, 10))
    monkeypatch.setenv(PROGRESS_VARIABLE, str(folder / "e2" / "progress"))

    def interrupted(module: str, arguments: Sequence[str]) -> int:
        return 130

    with pytest.raises(KeyboardInterrupt):
        evaluation(folder, export=interrupted).run(due(folder, 10), again=True)
    (folder / "told" / "dogs").write_text("no data")
    assert evaluation(folder).run(due(folder, 10), again=True).state == "failed"
    assert ran(folder) == ["cats", "dogs"] * 2  # the answers of before are gone, and counted for nothing
    (folder / "told" / "dogs").unlink()
    assert evaluation(folder).run(due(folder, 10), again=True).state == "done"
    assert ran(folder) == [*["cats", "dogs"] * 2, "dogs"]
    assert evaluation(folder).run(due(folder, 10), again=True).state == "there"
