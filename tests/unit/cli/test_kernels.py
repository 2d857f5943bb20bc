from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import trainer_program
from opsctl.cli.kernels import command
from opsctl.core.errors import UsageError
from tests.tiny_run import write_run
from tests.unit.cli.called import Answer, forked


def opsctl(*words: str, cache: Path) -> Answer:
    return forked(cache, "kernels", *words, environment={**os.environ, "OPSCTL_KERNELS_CACHE": str(cache)})


def test_several_architectures_follow_one_word_and_each_may_have_its_own(tmp_path: Path) -> None:
    for words in (("--arch", "7.0", "9.0"), ("--arch", "7.0", "--arch", "9.0")):
        done = opsctl("list", "--json", *words, cache=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["kernels"]
        assert [one["name"] for one in found["artifacts"] if one["name"].startswith("cuda")] == [
            "cuda-sm_70",
            "cuda-sm_90",
        ]
        assert found["folders"] == [str(tmp_path)]


def test_a_check_of_what_nobody_has_built_fails(tmp_path: Path) -> None:
    done = opsctl("check", "--arch", "8.0", cache=tmp_path)
    assert done.returncode == 1
    assert "cuda-sm_80" in done.stdout and "missing" in done.stdout


@pytest.mark.parametrize("has_run", [True, False])
def test_ways_are_measured_at_the_sizes_of_the_run_at_hand_or_at_common_ones(
    has_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []

    def run(module: str, arguments: Sequence[str], needed: Sequence[str]) -> int:
        started.append([module, *arguments])
        return 0

    monkeypatch.setattr(trainer_program, "run_trainer_program", run)
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    monkeypatch.chdir(write_run(tmp_path).parent if has_run else tmp_path)
    result = CliRunner().invoke(command, ["measure", "--device", "cpu", "--json"], standalone_mode=False)
    assert result.exception is None and result.return_value == 0
    assert started[0][:4] == ["trainer.kernels", "--measure", "--device=cpu", "--json"]
    assert ("--hidden-size" in started[0]) == has_run == ("--" in started[0])


def test_a_run_that_is_named_and_not_there_is_not_measured_at_other_sizes(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(command, ["measure", "--run", str(tmp_path / "none")], catch_exceptions=False)
