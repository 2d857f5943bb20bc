"""The factor by which gradients are clipped."""

from __future__ import annotations

import pytest

from trainer.engine.folded_step import _clipping


@pytest.mark.parametrize(("norm", "most", "factor"), [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (4.0, 0.0, 1.0)])
def test_gradients_are_scaled_down_to_the_clipping_norm_and_never_up(norm: float, most: float, factor: float) -> None:
    assert _clipping(norm, most) == pytest.approx(factor, rel=1e-5)
