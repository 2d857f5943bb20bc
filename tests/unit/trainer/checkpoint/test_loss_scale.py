"""The fp16 loss scale that continues from a checkpoint, by DeepSpeed's own scaler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler

from trainer.checkpoint.into_engine import fill_loss_scaler

FOUND = {"dynamic": True, "cur_scale": 512.0, "cur_hysteresis": 3, "cur_iter": 70, "last_overflow_iter": 40}
SAVED_WITH = {"scale_window": 1000, "min_scale": 1.0, "delayed_shift": 4}


def filled(scaler: Any, saved: dict[str, Any]) -> Any:
    engine: Any = SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler))
    state: Any = SimpleNamespace(loss_scaler=lambda: saved)
    fill_loss_scaler(engine, state)
    return scaler


def dynamic(**settings: Any) -> Any:
    given = {
        "init_scale": 4096.0,
        "scale_window": 200,
        "min_scale": 2.0,
        "delayed_shift": 5,
        "consecutive_hysteresis": False,
        **settings,
    }
    return DynamicLossScaler(**{"dtype": None, **given})


def test_the_scale_that_was_found_goes_on_and_what_it_goes_by_is_the_command_lines() -> None:
    scaler = filled(dynamic(), {**FOUND, **SAVED_WITH})
    assert (scaler.cur_scale, scaler.cur_hysteresis) == (512.0, 3)
    assert (scaler.cur_iter, scaler.last_overflow_iter) == (70, 40)
    assert (scaler.scale_window, scaler.min_scale, scaler.delayed_shift) == (200, 2.0, 5)


def test_a_scale_or_patience_that_the_command_line_does_not_allow_is_its_own_limit() -> None:
    scaler = filled(dynamic(min_scale=1024.0, delayed_shift=2), {**FOUND, **SAVED_WITH})
    assert (scaler.cur_scale, scaler.cur_hysteresis) == (1024.0, 2)


@pytest.mark.parametrize(
    ("scaler", "saved"), [(LossScaler(64.0), FOUND), (dynamic(), {}), (dynamic(), {"cur_scale": 8.0})]
)
def test_between_a_fixed_scale_and_one_that_is_found_nothing_is_carried_over(
    scaler: Any, saved: dict[str, Any]
) -> None:
    before = scaler.cur_scale
    assert filled(scaler, saved).cur_scale == before
