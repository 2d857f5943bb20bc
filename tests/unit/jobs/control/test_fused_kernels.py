from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import RunFileError
from opsctl.jobs.control import fused_kernels
from opsctl.jobs.control.fused_kernels import unbuilt_kernels
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.jobs.control.submit import check
from opsctl.run.config.load import LoadedRun, load_run_file
from tests.tiny_run import write_run

INSISTS = {"abort_on_unmet_fused_kernel_constraints": True}


@pytest.fixture
def insisting(tmp_path: Path) -> LoadedRun:
    """On A100s, with a cache of kernels that is empty."""
    run_file = write_run(tmp_path)
    text = run_file.read_text().replace("[slurm]\n", '[slurm]\ngpu_type = "a100"\n', 1)
    text = text.replace("[env]\n", f'[env]\nOPSCTL_KERNELS_CACHE = "{tmp_path}/kernels"\n', 1)
    text = text.replace("[trainer]\n", "[trainer]\nabort_on_unmet_fused_kernel_constraints = true\n", 1)
    run_file.write_text(text)
    return load_run_file(run_file, {})


def test_a_run_that_insists_on_kernels_nobody_has_built_is_not_submitted(insisting: LoadedRun) -> None:
    with pytest.raises(RunFileError, match=r"cuda-sm_80 is missing in .*/kernels.*: opsctl kernels build --arch=8\.0"):
        check(insisting, ChainOptions())


@pytest.mark.parametrize(("state", "refuses"), [("ok", False), ("stale", True), ("damaged", True)])
def test_kernels_have_to_be_those_of_this_version_and_whole(
    insisting: LoadedRun, monkeypatch: pytest.MonkeyPatch, state: str, refuses: bool
) -> None:
    artifact: dict[str, Any] = {"name": "cuda-sm_80", "state": state, "why": "", "compiler": None, "torch": None}
    artifact |= {"kernels": 9, "folder": "/k", "used_here": False}
    listed = {"schema_version": 1, "kernels": {"folders": ["/k"], "artifacts": [artifact]}}
    monkeypatch.setattr(fused_kernels, "printed_by_module", lambda *_: json.dumps(listed))
    chain = check_without_problems(insisting)
    assert (unbuilt_kernels(chain) is not None) == refuses


@pytest.mark.parametrize("printed", [None, "", "no JSON"])
def test_a_python_that_cannot_be_asked_leaves_it_to_the_trainer(
    insisting: LoadedRun, monkeypatch: pytest.MonkeyPatch, printed: str | None
) -> None:
    monkeypatch.setattr(fused_kernels, "printed_by_module", lambda *_: printed)
    assert check(insisting, ChainOptions()).warnings == ()


def test_who_insists_on_nothing_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernels, "printed_by_module", lambda *_: pytest.fail("asked"))
    assert check(load_run_file(write_run(tmp_path), {}), ChainOptions())


def check_without_problems(loaded: LoadedRun) -> Any:
    return check(loaded, ChainOptions(), files=False).chain
