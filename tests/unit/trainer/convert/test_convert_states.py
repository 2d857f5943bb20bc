"""Conversions keep the drawn value of each parameter, in every layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.made_checkpoint import STEP, DrawnStates, make_checkpoint
from tests.unit.trainer.convert.test_convert_program import MODEL
from trainer.checkpoint.saved_state import SavedState
from trainer.convert.convert_program import main
from trainer.formats.checkpoint.manifest import read_manifest
from trainer.formats.checkpoint.partitions import engine_name

STATES = ("fp32", "exp_avg", "exp_avg_sq")


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "made", data=2, bf16=True, tensor_model_parallel_size=2, **MODEL)


def test_a_universal_file_says_how_its_parameter_is_shared_and_has_it_without_padding(
    native: Path, tmp_path: Path
) -> None:
    assert main([str(native), "--to=universal", f"--output={tmp_path / 'universal'}", "--workers=1"]) == 0
    parameters = read_manifest(native).parameters
    drawn, zero = DrawnStates(parameters, "bf16", "adam"), tmp_path / "universal" / "zero"
    for one in parameters:
        folder = zero / engine_name(one)
        for which in STATES:
            found = torch.load(folder / f"{which}.pt", weights_only=True)
            assert torch.equal(found["param"], drawn.optimizer(one.name, which)[: one.token_rows])
            assert (found.get("cat_dim"), "vocab_tensor" in found) == (one.split_dim, one.token_rows is not None)
        assert float(torch.load(folder / "step.pt", weights_only=True)) == STEP
    common = torch.load(zero / "optimizer_state.pt", weights_only=False)
    assert not any(common["group_paddings"])


@pytest.mark.parametrize("by", ["universal", "native"])
def test_another_layout_has_the_same_states_and_steps(native: Path, tmp_path: Path, by: str) -> None:
    """Three data ranks cut parameters elsewhere, and two pipeline stages each have the embedding."""
    source = native
    if by == "universal":
        source = tmp_path / "universal"
        assert main([str(native), "--to=universal", f"--output={source}", "--workers=1"]) == 0
    layout = ["--pipeline-parallel=2", "--data-parallel=3", "--tensor-parallel=1"]
    words = ["--to=native", f"--output={tmp_path / 'other'}", "--workers=1", *layout]
    assert main([str(source), *words]) == 0
    folder = tmp_path / "other" / native.name
    state = SavedState(folder, read_manifest(folder))
    drawn = DrawnStates(state.manifest.parameters, "bf16", "adam")
    for name in state.parameters:
        assert torch.equal(state.weight(name), drawn.weight(name)) and state.step(name) == STEP
        for which in STATES:
            assert torch.equal(state.optimizer(name, which), drawn.optimizer(name, which)), (name, which)
