"""Checkpoints of earlier builds: a training resumes from each with its present run file."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from tests.distributed.pool import Pool
from tests.kept import PARAMETERS, Build
from tests.tiny_run import expand

pytestmark = pytest.mark.distributed


def go_on(arguments: list[str]) -> tuple[int, str, str]:
    """Train in this rank; (exit code, stdout, stderr)."""
    from trainer import pretrain_gpt

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = pretrain_gpt.main(arguments)
    return status, output.getvalue(), errors.getvalue()


def losses(log: str) -> dict[int, float]:
    """Return iteration -> its loss."""
    found = re.findall(r"iteration +(\d+)/.*?lm loss: ([\d.E+-]+)", log)
    return {int(iteration): float(loss) for iteration, loss in found}


@pytest.mark.parametrize("build", PARAMETERS)
def test_a_training_goes_on_from_what_a_build_saved(build: Build, pool: Pool, tmp_path: Path) -> None:
    """Its first iterations there have the loss that its last ones had, not that of a model that knows nothing."""
    folder = build.unpack(tmp_path)
    latest = folder / "output/checkpoints/latest"
    saved = int(latest.read_text().removeprefix("global_step"))
    arguments = [*expand(load_run_file(folder / "run.toml")).arguments, "--exit-interval", "20"]
    first, last = pool.run(2, go_on, arguments)
    assert (first[0], last[0]) == (0, 0), first[2] + last[2]
    before = losses((folder / "output/logs/main_log.txt").read_text())
    after = losses(last[1])  # the last rank writes it
    assert saved < min(after) <= saved + 5
    assert after[min(after)] == pytest.approx(before[max(before)], abs=0.6) and after[min(after)] < before[5] - 1
    assert int(latest.read_text().removeprefix("global_step")) == max(after) > saved
