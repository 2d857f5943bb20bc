"""A spike in a live training, made by a drill: what each of the guard's tiers does about it, and again after a stop.

The drill's loss is ten times what it is, so that what is unusual is no matter of chance. All begin at iteration 36 of
one training, of which the guard has seen enough to judge.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.test_tensorboard import shown
from tests.distributed.whole_training import Seen, run_training, write_corpus
from tests.killed_in_python import die_at
from trainer.formats.attempt.lease import LEASE_FILE, Holder, taken_line
from trainer.formats.checkpoint.manifest import Manifest, read_manifest
from trainer.formats.logs.guard_lines import GuardLine, NotRolledBack, RolledBack, RunAgain, Unusual, parse_guard_line
from trainer.formats.logs.training_line import TrainingLine, parse_training_line

pytestmark = pytest.mark.distributed

#: The drill raises the losses of iterations 38 to 40; the second of them is worth a rollback.
GUARDED = {"spike_guard_window": 32, "spike_guard_patience": 2, "spike_guard_margin": 1, "train_iters": 46}
SMALL = {"num_layers": 1, "global_batch_size": 4}
BEGUN = 36


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents=200)


@pytest.fixture(scope="module")
def begun(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a training that has come to iteration BEGUN."""
    folder = tmp_path_factory.mktemp("begun")
    train(pool, 1, corpus, folder, "log", spike_drill=None, exit_interval=BEGUN)
    return folder


@pytest.fixture
def copy_of(begun: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a folder of that name with the same checkpoints, to save in."""
    return lambda name: Path(shutil.copytree(begun, tmp_path / name))


@pytest.fixture(scope="module")
def skipping(pool: Pool, corpus: str, begun: Path) -> Callable[[], list[Seen]]:
    """Return a training on two ranks that skips the drill's updates, as several tests compare with it."""
    return cache(lambda: train(pool, 2, corpus, None, "skip", load=str(begun)))


@pytest.fixture(scope="module")
def gone_back(
    pool: Pool, corpus: str, begun: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], tuple[list[Seen], Path]]:
    """Return a training of one rank that rolled back automatically, and its checkpoints."""

    def go() -> tuple[list[Seen], Path]:
        folder = Path(shutil.copytree(begun, tmp_path_factory.mktemp("gone back") / "checkpoints"))
        return train(pool, 1, corpus, folder, "rollback"), folder

    return cache(go)


def asked_for(corpus: str, folder: Path | None, *tiers: str, **options: Any) -> dict[str, Any]:
    """Options of a training that is drilled and guarded; in `folder` it goes on and saves."""
    there = {"save": str(folder), "load": str(folder)} if folder else {}
    guard = {"spike_guard": list(tiers)} if tiers else {}
    return {"data_path": [corpus], **SMALL, **GUARDED, "spike_drill": "38", **guard, **there, **options}


def train(pool: Pool, ranks: int, corpus: str, folder: Path | None, *tiers: str, **options: Any) -> list[Seen]:
    seen: list[Seen] = pool.run(ranks, run_training, asked_for(corpus, folder, *tiers, **options))
    assert [rank.status for rank in seen] == [0] * ranks, [rank.errors for rank in seen]
    assert all(rank.losses == seen[0].losses for rank in seen)
    return seen


def said(seen: list[Seen]) -> list[GuardLine]:
    return [line for rank in seen for text in rank.output.splitlines() if (line := parse_guard_line(text)) is not None]


def logged(seen: list[Seen]) -> list[TrainingLine]:
    found = [parse_training_line(text) for rank in seen for text in rank.output.splitlines()]
    return [line for line in found if line is not None]


def at(folder: Path, iteration: int) -> Manifest:
    return read_manifest(folder / f"global_step{iteration}")


def went_back(seen: list[Seen]) -> list[tuple[int, int, int, int]]:
    """Return the iteration, the target and the skipped range of each rollback."""
    return [(one.iteration, one.to, one.first, one.last) for one in said(seen) if isinstance(one, RolledBack)]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_skipped_updates_leave_the_training_as_if_their_steps_had_not_been(
    pool: Pool,
    corpus: str,
    begun: Path,
    skipping: Callable[[], list[Seen]],
    tmp_path: Path,
    precision: dict[str, Any],
) -> None:
    """The losses after them are those of a training that was asked to skip the same iterations."""
    load = {"load": str(tmp_path if precision else begun), **precision}
    ranks = 1 if precision else 2
    if precision:
        train(pool, ranks, corpus, tmp_path, "log", spike_drill=None, exit_interval=BEGUN, **precision)
    skipped = train(pool, ranks, corpus, None, "skip", **load) if precision else skipping()
    spared = train(pool, ranks, corpus, None, train_range_to_skip=[38, 40], **load)
    assert [(one.iteration, one.done) for one in said(skipped) if isinstance(one, Unusual)] == [
        (38, "update skipped"),
        (39, "update skipped"),
        (40, "update skipped"),
    ]
    assert (len(skipped[0].losses), len(spared[0].losses)) == (10, 7)
    assert skipped[0].losses[0] == spared[0].losses[0]
    assert skipped[0].losses[4:] == spared[0].losses[1:]
    assert [line.iteration for line in logged(skipped) if line.skipped_iterations] == [38, 39, 40]


def test_what_is_only_logged_is_trained_on(
    pool: Pool, corpus: str, begun: Path, skipping: Callable[[], list[Seen]]
) -> None:
    (only_logged,) = train(pool, 1, corpus, None, "log", load=str(begun))
    assert only_logged.losses[4:] != pytest.approx(skipping()[0].losses[4:], rel=1e-5)
    assert [(one.iteration, one.done) for one in said([only_logged]) if isinstance(one, Unusual)] == [
        (38, "logged"),
        (39, "logged"),
        (40, "logged"),
    ]


def test_a_stop_between_two_decisions_changes_none_of_them(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path], skipping: Callable[[], list[Seen]]
) -> None:
    folder = copy_of("stopped")
    first = train(pool, 2, corpus, folder, "skip", exit_interval=39)
    state = at(folder, 39).spike_guard
    assert state is not None
    assert (state.unusual, state.skipped, len(state.losses)) == ((38, 39), 2, 32)
    went_on = train(pool, 2, corpus, folder, "skip")
    assert first[0].losses + went_on[0].losses == skipping()[0].losses
    assert said(first) + said(went_on) == said(skipping())


def test_a_step_that_is_run_again_tells_hardware_from_data(pool: Pool, corpus: str, begun: Path) -> None:
    load = {"load": str(begun)}
    plain = train(pool, 2, corpus, None, "skip", spike_drill=None, **load)
    broken = train(pool, 2, corpus, None, "rerun", "skip", spike_drill="38:hardware", **load)
    (found,) = said(broken)
    assert isinstance(found, RunAgain) and (found.iteration, found.found) == (38, "hardware")
    assert "(rank 0) differs" in found.why and "rank 1" not in found.why
    of_steps = broken[0].losses[:1] + broken[0].losses[2:]
    assert of_steps == plain[0].losses  # the second run was as it should be, and counted

    by_data = train(pool, 2, corpus, None, "rerun", "skip", **load)
    again = [one for one in said(by_data) if isinstance(one, RunAgain)]
    assert [(one.iteration, one.found) for one in again] == [(38, "data"), (39, "data"), (40, "data")]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_a_step_that_makes_its_update_when_run_again_is_compared_bit_for_bit(
    pool: Pool, corpus: str, tmp_path: Path, precision: dict[str, Any]
) -> None:
    seen = train(pool, 1, corpus, tmp_path, "rerun", exit_interval=40, **precision)
    again = [one for one in said(seen) if isinstance(one, RunAgain)]
    assert [(one.iteration, one.found) for one in again] == [(38, "data"), (39, "data"), (40, "data")]
    unusual = [one for one in said(seen) if isinstance(one, Unusual)]
    assert [(one.iteration, one.done) for one in unusual] == [(one.iteration, "update made") for one in again]


def drilled_with_no_number(options: dict[str, Any]) -> Seen:
    """Run the training with a drill that makes the loss NaN."""
    from trainer.loop import guarding

    usual = getattr(guarding, "FACTOR")  # noqa: B009
    setattr(guarding, "FACTOR", float("nan"))  # noqa: B010 - the module imports the name for itself
    try:
        return run_training(options)
    finally:
        setattr(guarding, "FACTOR", usual)  # noqa: B010


@pytest.mark.parametrize("tier", ["skip", "rerun", "rollback"])
def test_a_loss_that_is_no_number_is_judged_like_any_other_and_its_update_not_said_to_be_made(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path], tier: str
) -> None:
    """On whatever tier: the engine makes no update of it. Both ranks remember the same, else the losses differ."""
    folder = copy_of("no number")
    more = {"exit_interval": 41, "spike_guard_patience": 5, "spike_drill": "38", "save_non_finite": True}
    options = asked_for(corpus, folder, tier, **more)
    of_ranks: list[Seen] = pool.run(2, drilled_with_no_number, options)
    assert [seen.status for seen in of_ranks] == [0, 0], [seen.errors for seen in of_ranks]
    unusual = [one for one in said(of_ranks) if isinstance(one, Unusual)]
    assert [(one.iteration, one.done) for one in unusual] == [(number, "update skipped") for number in range(38, 42)]
    again = [(one.iteration, one.found) for one in said(of_ranks) if isinstance(one, RunAgain)]
    assert again == [(number, "data") for number in range(38, 42) if tier == "rerun"]
    state = at(folder, 41).spike_guard
    assert state is not None and (state.skipped, state.unusual) == (4, (38, 39, 40, 41))


def test_a_loss_that_is_no_number_on_a_broken_replica_is_said_and_trained_anew(
    pool: Pool, corpus: str, begun: Path
) -> None:
    plain = train(pool, 2, corpus, None, "skip", spike_drill=None, load=str(begun))
    options = asked_for(corpus, None, "rerun", spike_drill="38:hardware", load=str(begun))
    of_ranks: list[Seen] = pool.run(2, drilled_with_no_number, options)
    (found,) = said(of_ranks)
    assert isinstance(found, RunAgain) and (found.iteration, found.found) == (38, "hardware")
    assert "(rank 0) differs" in found.why and "rank 1" not in found.why
    assert of_ranks[0].losses[:1] + of_ranks[0].losses[2:] == plain[0].losses


def test_a_training_goes_back_and_leaves_the_data_out_by_itself(
    pool: Pool, corpus: str, begun: Path, copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """On two replicas, saving beside the training at every step; then again elsewhere, from what it saved."""
    folder, second = copy_of("first"), tmp_path / "second"
    more = {"tensorboard_dir": str(tmp_path / "curves"), "async_save": True, "save_interval": 1, "num_workers": 1}
    seen = train(pool, 2, corpus, folder, "rollback", **more)
    # Two unusual ones, 38 and 39, with one iteration around them; 36 is saved before these.
    assert went_back(seen) == [(39, BEGUN, 37, 40)]
    assert [line.iteration for line in logged(seen)] == [37, 38, 39, *range(37, 47)]
    assert [line.iteration for line in logged(seen) if line.is_left_out] == [37, 38, 39, 40]
    state = at(folder, 46).spike_guard
    assert state is not None
    (window,) = state.windows
    assert (window.first, window.last, window.rolled_back_to, window.found_at) == (37, 40, BEGUN, 39)
    assert all(at(folder, iteration).spike_guard.windows == (window,) for iteration in range(37, 46))  # type: ignore[union-attr]
    (line,) = map(json.loads, (folder / "rollbacks.jsonl").read_text().splitlines())
    assert (line["from"], line["to"]) == (39, BEGUN) and line["why"].startswith("spike guard: 2 unusual iterations")
    points = shown(tmp_path / "curves")["lm-loss-training/lm loss"]
    assert points == sorted(set(points)) and points[-1] == 46

    # What it came to is what a training that was asked to leave the same out comes to.
    spared = train(pool, 2, corpus, None, load=str(begun), spike_drill=None, train_range_to_skip=[37, 40])
    assert seen[0].losses[-6:] == spared[0].losses

    # In the midst of what is left out a start on another layout goes on, and remembers it without the guard.
    later = train(pool, 1, corpus, None, load=str(folder), load_step=38, save=str(second))
    assert later[0].losses == pytest.approx(seen[0].losses[-6:], rel=1e-5)
    assert at(second, 46).spike_guard == at(folder, 38).spike_guard


def test_it_goes_back_no_more_often_than_it_may(pool: Pool, corpus: str, begun: Path, tmp_path: Path) -> None:
    """Every later spike is logged, and so is one before which there is nothing to go back to."""
    load = {"load": str(begun)}
    seen = train(pool, 1, corpus, None, "rollback", save=str(tmp_path / "may not"), spike_guard_rollbacks=0, **load)
    assert [type(one) for one in said(seen)] == [Unusual] * 3
    nothing = train(pool, 1, corpus, None, "rollback", save=str(tmp_path / "none"), **load)
    assert [one.iteration for one in said(nothing) if isinstance(one, NotRolledBack)] == [39]
    assert len(nothing[0].losses) == 10


def test_it_does_not_go_back_to_what_was_trained_on_the_spike(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path]
) -> None:
    """Iteration 38 was saved before the training went back from there, and not again since."""
    folder, soon = copy_of("twice"), {"spike_guard_patience": 1, "spike_guard_margin": 0}
    train(pool, 1, corpus, folder, "log", exit_interval=38, **soon)
    # A way back makes good for the update that was skipped before it, else the training would leave.
    seen = train(pool, 1, corpus, folder, "skip", "rollback", max_skipped_iterations=1, **soon)
    assert went_back(seen) == [(38, BEGUN, 38, 38), (39, BEGUN, 39, 39)]
    assert [line.iteration for line in logged(seen)] == [37, 38, 39, *range(37, 47)]


def test_it_goes_back_to_no_checkpoint_that_it_could_not_go_on_from(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path]
) -> None:
    """Iteration 37 lies there without optimizer states, in another precision, of another model; then as it was."""
    folder = copy_of("beside others")
    train(pool, 1, corpus, folder, "log", exit_interval=37)
    manifest = folder / "global_step37" / "manifest.json"
    own = json.loads(manifest.read_text())
    others: list[dict[str, Any]] = [
        {"layout": {**own["layout"], "optimizer": "none"}},
        {"layout": {**own["layout"], "optimizer": "sgd"}},
        {"precision": "bf16"},
        {"model": {**own["model"], "hidden_size": 32}},
        {},
    ]
    went = []
    for changed in others:
        manifest.write_text(json.dumps({**own, **changed}))
        (folder / "latest").write_text(f"global_step{BEGUN}")
        went += went_back(train(pool, 1, corpus, folder, "rollback", spike_guard_margin=0, exit_interval=40))
        shutil.rmtree(folder / "global_step40")
    assert went == [(39, BEGUN, 38, 39)] * 4 + [(39, 37, 38, 39)]


def dying_on_its_way_back(step: int, options: dict[str, Any]) -> Seen:
    """Run the training and kill it before the `step`-th disk change of its rollback."""
    from trainer.loop import guarding

    before = getattr(guarding, "go_back")  # noqa: B009 - the module imports the name for itself

    def go_back(*arguments: Any) -> None:
        die_at(step)
        before(*arguments)

    setattr(guarding, "go_back", go_back)  # noqa: B010 - the rank ends with this training
    return run_training(options)


def test_killed_on_its_way_back_again_and_again_it_comes_to_the_same_end(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path], gone_back: Callable[[], tuple[list[Seen], Path]]
) -> None:
    """Before it is on record, before `latest` changes, and before anything is saved that knows of it."""
    folder, latest = copy_of("killed"), list[tuple[bool, str]]()
    train(pool, 1, corpus, folder, "log", exit_interval=39)  # the very iteration at which it would go back
    before_it = Path(shutil.copytree(folder, folder.parent / "before it"))
    for step in range(1, 12):
        with pytest.raises(RanksFailed, match="died"):
            pool.run(1, dying_on_its_way_back, step, asked_for(corpus, folder, "rollback"))
        latest.append(((folder / "rollbacks.jsonl").exists(), (folder / "latest").read_text()))
        if latest[-1][1] == f"global_step{BEGUN}":
            break
    assert list(dict.fromkeys(latest)) == [
        (False, "global_step39"),
        (True, "global_step39"),
        (True, f"global_step{BEGUN}"),
    ]
    ended = train(pool, 1, corpus, folder, "rollback")
    whole, its_folder = gone_back()
    assert went_back(ended) == went_back(whole) == [(39, BEGUN, 37, 40)]
    assert ended[0].losses == whole[0].losses
    assert at(folder, 46).spike_guard == at(its_folder, 46).spike_guard
    at_once = train(pool, 1, corpus, before_it, "rollback")
    assert went_back(at_once) == went_back(whole) and at_once[0].losses == whole[0].losses[3:]


def test_one_that_is_to_leave_where_it_went_back_to_does_not_come_there_again(
    pool: Pool, corpus: str, copy_of: Callable[[str], Path], gone_back: Callable[[], tuple[list[Seen], Path]]
) -> None:
    """Else each task of a chain would end where it began. What it leaves knows what is left out."""
    folder = copy_of("left")
    first = train(pool, 1, corpus, folder, "rollback", exit_interval=BEGUN)
    assert went_back(first) == [(39, BEGUN, 37, 40)] and len(first[0].losses) == 3
    assert (folder / "latest").read_text() == f"global_step{BEGUN}"
    second = train(pool, 1, corpus, folder, "rollback", exit_interval=BEGUN)
    assert went_back(second) == []
    assert first[0].losses + second[0].losses == gone_back()[0][0].losses


def test_whoever_was_overtaken_does_not_go_back(pool: Pool, corpus: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("overtaken")
    lease = folder.parent / LEASE_FILE
    holders = [taken_line(Holder(number, f"attempt-{number}", number, "ada", "x01")) + "\n" for number in (1, 2)]
    lease.write_text(holders[0])
    options = asked_for(corpus, folder, "rollback", lease_path=str(lease), lease_number=1)
    (seen,) = pool.run(1, run_training, options, {"after_step": 3, "append": (str(lease), holders[1])})
    assert (seen.status, len(seen.losses)) == (0, 3)
    assert "[Overtaken by another writer" in seen.output
    assert not (folder / "rollbacks.jsonl").exists()
