"""The report of a state that is not finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.verdict import Cause
from trainer.loop.finite import NotFinite, _is_finite

LARGE = 3e38


def test_triage_takes_the_line_that_ends_the_training_for_a_divergence(tmp_path: Path) -> None:
    why = "rank 3 holds weights or optimizer states that are not finite (NaN or infinite): layers.0.attention.weight"
    log = tmp_path / "log"
    log.write_text(f"trainer: {NotFinite(why, ends_training=True).ending(400)}\n")
    assert decide(read_log(LogPart(log), shipped_rules(), 60), shipped_rules()).cause == Cause.DIVERGED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("values", "is_finite"),
    [
        ([LARGE, LARGE, -LARGE], True),
        ([], True),
        ([1.0, float("nan")], False),
        ([float("inf"), float("-inf"), 0.0], False),
    ],
)
def test_large_numbers_are_finite_and_infinities_do_not_cancel(
    dtype: torch.dtype, values: list[float], is_finite: bool
) -> None:
    assert bool(_is_finite(torch.tensor(values, dtype=dtype))) == is_finite
