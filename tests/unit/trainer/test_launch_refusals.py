"""The launcher's messages before any rank exists."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.facts import missing
from trainer import launch
from trainer.formats.distribution import requirement


def test_a_python_without_torch_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_torch(_names: tuple[str, ...], with_compiler: bool) -> None:
        assert with_compiler  # as it recomputes
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(launch, "import_engine", without_torch)
    monkeypatch.setattr(launch, "set_process_defaults", lambda _ranks: None)
    monkeypatch.setattr(signal, "signal", lambda _number, _handler: None)
    node = ["--nnodes", "1", "--nproc-per-node", "1", "--node-rank", "0", "--node-name", "x01"]
    words = [*node, "--master-addr", "10.0.0.1", "--master-port", "1"]
    assert launch.main([*words, "--attempt-folder", str(tmp_path), "--", "--recompute=block"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert not missing(said[0], "torch", "x01", requirement("trainer"))
