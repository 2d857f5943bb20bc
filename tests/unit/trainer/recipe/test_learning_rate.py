"""The learning rate against the numbers that the published runs printed, and against Megatron's own scheduler."""

from __future__ import annotations

import runpy
import sys
import types
from importlib.metadata import distribution
from typing import Any

import pytest

from trainer.recipe.learning_rate import WSD_DECAY_STYLES, LearningRateSchedule
from trainer.recipe.options import OptionsError, parse, to_arguments
from trainer.recipe.schedule_rules import schedule_notices


@pytest.mark.parametrize(
    ("consumed_samples", "printed"), [(59_312, "1.944E-05"), (9_841_584, "5.969E-05"), (158_692_272, "1.150E-05")]
)
def test_the_cosine_schedule_prints_the_published_learning_rates(consumed_samples: int, printed: str) -> None:
    schedule = LearningRateSchedule(6e-5, 6e-6, 183_105, 200_000_000, "cosine")
    assert f"{schedule.at(consumed_samples):.3E}" == printed


def test_the_first_step_runs_at_zero_and_the_warm_up_ends_at_the_peak() -> None:
    schedule = LearningRateSchedule(1e-3, 1e-5, 100, 1100, "linear")
    assert schedule.at(0) == 0.0
    assert schedule.at(50) == pytest.approx(5e-4)
    assert schedule.at(100) == 1e-3
    assert schedule.at(600) == pytest.approx((1e-3 + 1e-5) / 2)
    assert schedule.at(1100) == pytest.approx(1e-5)
    assert schedule.at(1101) == 1e-5
    assert LearningRateSchedule(1e-3, 0, 0, 10).at(0) == 1e-3


def test_the_constant_schedule_never_decays() -> None:
    schedule = LearningRateSchedule(1e-3, 0.0, 10, 20, "constant")
    assert [schedule.at(n) for n in (5, 10, 20, 10_000)] == [5e-4, 1e-3, 1e-3, 1e-3]


def test_a_warm_up_longer_than_the_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\b20\b"):
        LearningRateSchedule(1e-3, 0.0, 20, 20, "cosine")
    with pytest.raises(ValueError, match="constant, linear, cosine, inverse-square-root, WSD"):
        LearningRateSchedule(1e-3, 0.0, 1, 20, "exponential")
    with pytest.raises(ValueError, match=r"sample 95\b.*sample 96\b"):
        LearningRateSchedule(3e-4, 2e-5, 96, 4000, "WSD", 3905, "linear")


@pytest.fixture
def megatrons_scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's class, out of its own file alone: its package takes many seconds to import, and this only logs."""
    stand_in = types.ModuleType("megatron.core.utils")
    stand_in.log_single_rank = lambda *_: None  # type: ignore[attr-defined]
    for name, module in (("megatron", types.ModuleType("megatron")), ("megatron.core.utils", stand_in)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "megatron.core", types.ModuleType("megatron.core"))
    file = distribution("megatron-core").locate_file("megatron/core/optimizer_param_scheduler.py")
    return runpy.run_path(str(file))["OptimizerParamScheduler"]


def of_megatron(scheduler_class: Any, schedule: LearningRateSchedule, samples: list[int]) -> list[float]:
    """Return the rates that Megatron's scheduler gives after so many samples."""

    class Groups:
        param_groups: list[dict[str, Any]] = []  # noqa: RUF012 what the scheduler writes to, and here no one reads

    scheduler = scheduler_class(
        Groups(),
        init_lr=0.0,
        max_lr=schedule.max_lr,
        min_lr=schedule.min_lr,
        lr_warmup_steps=schedule.warmup_samples,
        lr_decay_steps=schedule.decay_samples,
        lr_decay_style=schedule.style,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
        wsd_decay_steps=schedule.wsd_decay_samples,
        lr_wsd_decay_style=schedule.wsd_decay_style,
    )
    rates = []
    for count in samples:
        scheduler.num_steps = count
        rates.append(scheduler.get_lr({}))
    return rates


@pytest.mark.parametrize(
    "schedule",
    [
        *(LearningRateSchedule(3e-4, 2e-5, 96, 4000, "WSD", 1000, style) for style in WSD_DECAY_STYLES),
        LearningRateSchedule(3e-4, 2e-5, 96, 4000, "WSD", 3904, "linear"),
        LearningRateSchedule(3e-4, 2e-5, 96, 4000, "inverse-square-root"),
        LearningRateSchedule(3e-4, 2e-5, 0, 4000, "inverse-square-root"),
        LearningRateSchedule(3e-4, 2e-5, 96, 4000, "cosine"),
    ],
    ids=lambda schedule: f"{schedule.style}-{schedule.wsd_decay_style}-{schedule.warmup_samples}",
)
def test_every_style_has_megatrons_rates(schedule: LearningRateSchedule, megatrons_scheduler: Any) -> None:
    samples = [0, 1, 50, 96, 97, 98, 500, 2999, 3000, 3001, 3333, 3999, 4000, 4001, 9000]
    expected = of_megatron(megatrons_scheduler, schedule, samples)
    assert [schedule.at(count) for count in samples] == pytest.approx(expected, rel=1e-12, abs=1e-18)


SMALL: dict[str, Any] = {
    **{"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 10, "micro_batch_size": 1},
    **{"vocab_size": 8, "lr": 1e-3, "global_batch_size": 4, "train_samples": 400},
}
IN_ITERATIONS = {**{key: value for key, value in SMALL.items() if key != "train_samples"}, "train_iters": 100}


def schedule_of(given: dict[str, Any]) -> LearningRateSchedule:
    return LearningRateSchedule.of(parse(to_arguments(given), 1))


def test_lengths_in_tokens_and_iterations_are_the_same_in_samples() -> None:
    by_samples = {"lr_decay_samples": 396, "lr_warmup_samples": 20}
    by_tokens = {"lr_decay_tokens": 3960, "lr_warmup_tokens": 200}
    assert schedule_of({**SMALL, **by_tokens}) == schedule_of({**SMALL, **by_samples})
    wsd = {"lr_decay_style": "WSD", "lr_wsd_decay_style": "minus_sqrt"}
    iterations = schedule_of({**IN_ITERATIONS, **wsd, "lr_wsd_decay_iters": 25, "lr_warmup_iters": 5})
    assert iterations == schedule_of({**SMALL, **wsd, "lr_wsd_decay_samples": 100, "lr_warmup_samples": 20})
    assert (iterations.decay_samples, iterations.wsd_decay_samples) == (400, 100)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 50, "lr_decay_samples": 200, "min_lr": 1e-5},
            ("--lr-decay-samples 200", "--train-samples 400"),
        ),
        ({"lr_decay_style": "WSD"}, ("--lr-decay-style WSD", "--lr-wsd-decay-samples")),
        ({"lr_wsd_decay_samples": 4}, ("--lr-wsd-decay-samples", "--lr-decay-style WSD")),
        (
            {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 390, "lr_warmup_samples": 20},
            ("--lr-wsd-decay-samples 390", "400", "20"),
        ),
        (
            {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 300, "lr_warmup_fraction": 0.5},
            ("--lr-wsd-decay-samples 300", "--train-samples 400", "--lr-warmup-fraction 0.5 (200 samples)"),
        ),
        (
            {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 401, "lr_decay_tokens": 4000},
            ("--lr-wsd-decay-samples 401", "--lr-decay-tokens 4000 (400 samples)"),
        ),
        ({"lr_decay_samples": 400, "lr_decay_tokens": 4000}, ("--lr-decay-samples", "--lr-decay-tokens")),
        ({"lr_warmup_samples": 4, "lr_warmup_tokens": 40}, ("--lr-warmup-tokens", "--lr-warmup-samples")),
        ({"lr_decay_style": "WSD", "lr_wsd_decay_iters": 4}, ("--train-samples", "--lr-wsd-decay-iters")),
    ],
)
def test_a_schedule_that_cannot_be_or_ends_before_the_training_is_refused_with_both_values(
    changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(OptionsError) as refusal:
        schedule_of({**SMALL, **changes})
    assert all(word in str(refusal.value) for word in named), str(refusal.value)


def notices_of(**changes: Any) -> list[str]:
    return schedule_notices(parse(to_arguments({**SMALL, **changes}), 1))


@pytest.mark.parametrize("length", [{"lr_decay_samples": 200}, {"lr_decay_tokens": 2000}])
def test_a_decay_to_zero_before_the_training_ends_is_said_with_both_values(length: dict[str, int]) -> None:
    (notice,) = notices_of(**length)
    ((key, value),) = length.items()
    assert f"--{key.replace('_', '-')} {value} ends before --train-samples 400" in notice
    assert notices_of(**length, min_lr=1e-5) == []  # as the published runs went on


def test_what_ends_within_the_last_step_does_not_end_before() -> None:
    assert notices_of(lr_decay_samples=396) == []
    assert len(notices_of(lr_decay_samples=395)) == 1
    wsd = {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 50, "min_lr": 1e-5}
    assert schedule_of({**SMALL, **wsd, "lr_decay_samples": 396}).decay_samples == 396
    with pytest.raises(OptionsError, match="ends before"):
        schedule_of({**SMALL, **wsd, "lr_decay_samples": 395})


BEFORE = LearningRateSchedule(6e-5, 6e-6, 183_105, 200_000_000, "constant")


def test_a_schedule_without_the_newer_parts_is_told_as_before() -> None:
    assert list(BEFORE.facts()) == ["max_lr", "min_lr", "warmup_samples", "decay_samples", "style"]
    assert LearningRateSchedule.of_facts(BEFORE.facts()) == BEFORE
