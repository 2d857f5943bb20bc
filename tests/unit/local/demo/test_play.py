"""The end of the demo. `make demo` and tests/cluster run all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.local.demo import play
from opsctl.local.demo.play import Demo


def test_a_demo_that_fails_exits_with_1_and_takes_the_cluster_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_demo: Demo) -> None:
        raise OpsctlError("no loss")

    taken_down: list[Path] = []
    monkeypatch.setattr(play, "clear_the_stage", lambda: None)
    monkeypatch.setattr(play, "down", taken_down.append)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Demo, "play", fails)
    assert play._demo(tmp_path / "demo", keep=False) == 1
    assert len(taken_down) == 1
