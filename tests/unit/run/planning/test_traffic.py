"""All checkpoints of a training."""

from __future__ import annotations

from opsctl.run.config.schema import RetentionTable
from opsctl.run.planning.costs import Traffic, traffic
from trainer.recipe.save_schedule import SavePhase, SaveSchedule
from trainer.recipe.schedule import BatchRamp

FLAT = BatchRamp.constant(8)
LEAST = RetentionTable(last=2, full_percent=0, until_backed_up=0)
WISH = SaveSchedule((SavePhase(10, 100), SavePhase(18, 1000), SavePhase(1500)))


def test_every_save_counts_and_the_last_iteration_is_one() -> None:
    assert traffic(WISH, 150_000, FLAT, None, is_full=True) == Traffic(10 + 50 + 100, 8, None)  # 100, then 108
    assert traffic(SaveSchedule((SavePhase(100),)), 250, FLAT, None, is_full=True) == Traffic(3, 100, None)


def test_what_lies_there_at_most_is_what_the_policy_keeps_and_the_one_just_saved() -> None:
    every = SaveSchedule((SavePhase(100),))
    assert traffic(every, 10_000, FLAT, LEAST, is_full=True).kept_most == 3
    # nine thousands, and fifteen from 8,600 on of which two are thousands; one more is saved before the oldest goes
    assert traffic(every, 10_000, FLAT, RetentionTable(full_percent=0), is_full=True).kept_most == 8 + 15 + 1
    pinned = SaveSchedule((SavePhase(100),), frozenset({100, 150}))
    assert traffic(pinned, 10_000, FLAT, LEAST, is_full=True).kept_most == 5


def test_a_tenth_of_the_training_is_counted_in_samples_also_along_a_ramp() -> None:
    ramp = BatchRamp(8, 8, 80_000, 80)
    every, policy = SaveSchedule((SavePhase(50),)), RetentionTable(last=2, full_percent=25, until_backed_up=0)
    assert traffic(every, 6_000, ramp, policy, is_full=True).kept_most in (5, 6)
    assert traffic(every, 6_000, ramp, policy, is_full=False).kept_most == 3
