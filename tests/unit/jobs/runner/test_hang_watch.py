from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.hangs.summary import GOES_ON, SILENT, described
from opsctl.jobs.runner.hang_watch import HangWatch, Silence, _silence, is_hung, patience_s
from opsctl.jobs.runner.stacks import Taken
from opsctl.jobs.runner.task import Task
from opsctl.run.config.paths import RunPaths
from tests.unit.diagnosis.hangs.ranks import stack, waits
from trainer.formats.attempt.error_file import GroupProgress, RankStack
from trainer.formats.logs.log_lines import Timers, write_timers
from trainer.formats.logs.training_line import TrainingLine, write_training_line

STUCK = [*map(waits, range(3)), stack(3, "read", state="T", node="x2")]
LINE = b"[default1]: iteration 3/ 10 | consumed samples: 24 |\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(
    clock: Clock,
    looks: list[list[RankStack] | str],
    may_end: bool = True,
    limit_s: float = 100.0,
    unseen_s: float | None = None,
) -> HangWatch:
    """A watch whose looks, one after another, show these stacks, or cannot be made."""

    def take() -> tuple[Taken, str]:
        stacks = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(stacks, str):
            raise OpsctlError(stacks)
        taken = Taken(tuple(stacks), (), 4)
        return taken, described(taken.groups, 4)

    return HangWatch(lambda *_: Silence(limit_s, may_end, unseen_s), take, clock, ask_s=0.0)


def pass_until(hangs: HangWatch, clock: Clock, at_s: float, every_s: float = 10.0) -> list[str]:
    """Let time pass as the step's loop does, waiting for each look; what was said."""
    said: list[str] = []
    while clock.now < at_s:
        clock.now += every_s
        hangs.check()
        until = time.monotonic() + 5
        while hangs._thread is not None and hangs._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.001)
        hangs.check()
        said += hangs.news()
    return said


def test_a_step_whose_ranks_stand_still_is_told_then_ended_at_twice_the_limit() -> None:
    clock = Clock()
    hangs = watch(clock, [STUCK])
    hangs.heard(LINE)
    assert pass_until(hangs, clock, 90) == [] and not hangs.stacks
    (first,) = pass_until(hangs, clock, 150)
    assert first.startswith(f"{SILENT}0:01:40") and "rank 3 on x2" in first
    assert not hangs.ends and hangs.verdict is None and hangs.stacks[0].ranks == "3"
    (last,) = pass_until(hangs, clock, 230)
    assert hangs.ends and last.startswith("opsctl: ") and "rank 3 on x2" in last
    assert clock.now <= 230 and hangs.verdict is not None and (hangs.verdict.node, hangs.verdict.rank) == ("x2", 3)


@pytest.mark.parametrize(
    "looks",
    [
        [STUCK, [waits(0), waits(1), waits(2), stack(3, "write")]] * 9,  # slow, but a user moves
        ["srun: error: no answer"],  # who cannot see ends nothing
        [STUCK[:2], STUCK] * 9,
        [STUCK[:3]],  # one is not found at all
        [[*STUCK[:3], stack(3)]],  # it runs, as /proc says, and did not answer
    ],
)
def test_what_moves_or_cannot_be_seen_is_not_ended(looks: list[list[RankStack] | str]) -> None:
    clock = Clock()
    hangs = watch(clock, list(looks))
    pass_until(hangs, clock, 900)
    assert not hangs.ends and hangs.verdict is None


@pytest.mark.parametrize("prints", [True, False])
def test_a_program_whose_ranks_cannot_be_seen_is_ended_only_if_it_prints_nothing_for_long(prints: bool) -> None:
    clock = Clock()
    hangs = watch(clock, ["srun: error: no answer"], unseen_s=400.0)
    hangs.heard(LINE)
    for at_s in range(100, 350, 50):
        pass_until(hangs, clock, at_s)
        if prints:
            hangs.heard(b"warming up\n")
    assert not hangs.ends
    pass_until(hangs, clock, 500)
    assert hangs.ends is not prints


def test_any_output_is_a_sign_of_life_of_a_program_without_lines_of_progress() -> None:
    clock = Clock()
    hangs = HangWatch(watch(clock, [STUCK])._limit, watch(clock, [STUCK])._take, clock, ask_s=0.0, all_counts=True)
    for at_s in range(50, 500, 50):
        pass_until(hangs, clock, at_s)
        hangs.heard(b"working\n")
    assert not hangs.ends and not hangs.stacks
    pass_until(hangs, clock, 900)
    assert hangs.ends


def test_one_that_did_not_answer_because_it_is_stopped_is_known_to_hang() -> None:
    clock = Clock()
    hangs = watch(clock, [[*STUCK[:3], stack(3, state="T")]])
    pass_until(hangs, clock, 300)
    assert hangs.ends


def test_ranks_that_come_further_in_a_process_group_are_not_ended_though_their_frames_are_the_same() -> None:
    def taken(number: int) -> Taken:
        return Taken(tuple(STUCK), (GroupProgress(rank=0, group="0", enqueued=number, completed=number - 1),), 4)

    limit = Silence(100.0, True)
    assert not is_hung(300.0, limit, taken(7), taken(8))
    assert is_hung(300.0, limit, taken(8), taken(8))


def test_a_look_for_which_no_thread_is_to_be_had_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = Clock()
    hangs = watch(clock, [STUCK])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert pass_until(hangs, clock, 150) == []
    assert len(pass_until(hangs, clock, 170)) == 1


def test_an_evaluation_and_a_save_of_long_ago_count_in_what_a_step_may_be_silent(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.logs.mkdir(parents=True)
    lines = [
        write_training_line(
            TrainingLine(
                iteration=n, total_iterations=9999, consumed_samples=8 * n, seconds_per_iteration=3.0, loss=2.0
            )
        )
        for n in range(1, 1061)
    ]
    timers = [write_timers(Timers({name: 1000.0 * s})) for name, s in (("evaluation", 1500), ("save-checkpoint", 1300))]
    paths.main_log.write_text("\n".join([*lines[:60], *timers, *lines[60:], ""]))
    asked: list[bool] = []
    task = SimpleNamespace(paths=paths, options=None, revision=SimpleNamespace(file=SimpleNamespace(watch={})))

    def limit(is_starting: bool, more: bool) -> Silence | None:
        asked.append(more)
        return _silence(cast(Task, task), is_starting, more)

    clock = Clock()
    hangs = HangWatch(limit, lambda: (Taken(tuple(STUCK), (), 4), "x"), clock, ask_s=0.0)
    hangs.heard(LINE)
    assert pass_until(hangs, clock, 3390) == []
    assert asked == [False, True], "the log is read far back once in a silence"
    (said,) = pass_until(hangs, clock, 3420)
    assert "0:56:40" in said
    assert patience_s(cast(Task, task)) == 3400.0


def test_where_people_are_to_end_it_the_ranks_are_told_all_the_same() -> None:
    clock = Clock()
    hangs = watch(clock, [STUCK], may_end=False)
    assert len(pass_until(hangs, clock, 900)) == 1 and not hangs.ends and hangs.stacks


def test_a_training_that_goes_on_is_said_and_forgotten() -> None:
    clock = Clock()
    hangs = watch(clock, [STUCK])
    pass_until(hangs, clock, 180)
    hangs.heard(b"some chatter of a library\n")
    assert hangs.stacks, "which is no sign of life"
    hangs.heard(LINE)
    (line,) = hangs.news()
    assert line.startswith(f"{GOES_ON}0:03:00")
    assert not hangs.stacks and pass_until(hangs, clock, 270) == []


def test_a_step_of_torchtitan_is_a_sign_of_life_and_ends_the_start() -> None:
    clock = Clock()
    hangs = watch(clock, [STUCK])
    pass_until(hangs, clock, 180)
    hangs.heard(b"[rank0]:[titan] 2026-03-01 10:00:02,000 - root - INFO - step:  3  loss:  8.1  tps: 9\n")
    assert hangs.is_training and not hangs.stacks


def test_a_line_that_comes_in_pieces_is_a_sign_of_life_wherever_it_is_cut() -> None:
    for cut in range(1, len(LINE)):
        clock = Clock()
        hangs = watch(clock, [STUCK])
        clock.now = 90.0
        hangs.heard(LINE[:cut])
        hangs.heard(LINE[cut:])
        assert pass_until(hangs, clock, 180) == [], LINE[:cut]
        hangs.heard(b"some chatter of a library, and no more\n")
        assert len(pass_until(hangs, clock, 200)) == 1, "what was heard once is not heard again"


def test_where_nobody_knows_what_a_step_may_take_nothing_is_looked_at() -> None:
    clock, took = Clock(), []

    def take() -> tuple[Taken, str]:
        took.append(1)
        raise OpsctlError("x")

    hangs = HangWatch(lambda *_: None, take, clock, ask_s=0.0)
    pass_until(hangs, clock, 900)
    assert not took


def test_the_limit_is_asked_with_whether_an_iteration_was_logged_yet() -> None:
    clock, asked = Clock(), []

    def limit(is_starting: bool, _more: bool) -> Silence | None:
        asked.append(is_starting)
        return None

    refuse: Callable[[], tuple[Taken, str]] = lambda: (_ for _ in ()).throw(OpsctlError("x"))  # noqa: E731
    hangs = HangWatch(limit, refuse, clock, ask_s=0.0)
    hangs.check()
    for said in (
        b"  checkpoint_activations ........ True\n",
        b" loading checkpoint from /x\n",
        b"datetime: 2026-11-21\n",
    ):
        hangs.heard(said)
        hangs.check()
    hangs.heard(LINE)
    hangs.check()
    assert asked == [True, True, True, True, False]


def test_a_training_line_behind_more_of_a_progress_bar_than_is_kept_of_a_line_is_heard() -> None:
    clock = Clock()
    hangs = watch(clock, [STUCK])
    hangs.heard(LINE)
    clock.now = 90.0
    hangs.heard(b"\rEpoch 1:  12%|####      | 120/1000 [00:12<01:20, 9.9it/s]" * 2000)
    hangs.heard(b"\r" + LINE)
    assert pass_until(hangs, clock, 180) == []
