"""Runs from a few answers: they fit, and their numbers are those of the trainer's own arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import UsageError
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import load_run_file
from opsctl.run.init.draft import run_text
from opsctl.run.init.suggestions import GPU_KINDS, Wanted, gpus_for, is_known_gpu, size_near, suggested
from opsctl.run.planning.sizes import model_shape
from trainer.recipe.options import from_tables
from trainer.recipe.sizes import parameters as parameters_of


@pytest.mark.parametrize(
    ("parameters", "gpus", "gpu"), [(125e6, 8, "V100-16"), (7e9, 64, "A100-80"), (175e9, 512, "H100")]
)
def test_what_is_suggested_is_a_run_that_could_be_submitted_but_for_its_data(
    parameters: float, gpus: int, gpu: str, tmp_path: Path
) -> None:
    begun, layout = suggested("mine", Wanted(parameters, 20 * parameters, gpus, 8, gpu))
    (tmp_path / "run.toml").write_text(run_text(begun, ["made"]))
    found = find_problems(load_run_file(tmp_path / "run.toml", {}), files=False)
    assert found.problems == ()
    assert found.layout is not None and found.layout.world_size == gpus
    assert layout.memory_gb > 0
    shape = model_shape(from_tables(dict(found.options)))
    assert shape is not None
    assert parameters_of(shape) == pytest.approx(size_near(parameters).parameters, rel=1e-3)


#: From 100M to 200B, four to a factor of ten, and what people ask for.
GRID = [1e8 * 10 ** (step / 4) for step in range(14)] + [125e6, 1.3e9, 2.7e9, 7e9, 8e9, 13e9, 34e9, 70e9, 175e9, 200e9]


@pytest.mark.parametrize("wanted", GRID, ids=lambda one: f"{one / 1e9:.3g}B")
def test_a_model_has_the_wanted_size_within_ten_percent_and_a_shape_that_tensor_parallelism_divides(
    wanted: float,
) -> None:
    size = size_near(wanted)
    assert size.parameters == pytest.approx(wanted, rel=0.1)
    assert size.hidden % size.heads == 0 and size.hidden // size.heads in (64, 80, 128)
    assert size.hidden % 128 == 0 and size.ffn % 256 == 0
    if size.hidden >= 4096:
        assert size.heads % 4 == 0 and size.ffn % 8 == 0
    assert 2 <= size.ffn / size.hidden <= 4 and 16 <= size.hidden / size.layers <= 320


def test_a_size_far_outside_the_usual_ones_is_refused() -> None:
    for parameters in (1e6, 1e13):
        with pytest.raises(UsageError, match="no shape with"):
            suggested("mine", Wanted(parameters, 1e12, 64, 8, "H100"))


def test_every_kind_that_is_offered_is_known_and_names_of_slurm_are_understood() -> None:
    assert all(is_known_gpu(kind) for kind in (*GPU_KINDS, "a100", "nvidia_h100_80gb_hbm3"))
    assert not any(is_known_gpu(kind) for kind in ("k80", "", None))


def test_gpus_are_whole_nodes_and_no_more_than_there_are() -> None:
    assert gpus_for(1e9, 20e9, "H100", 4, None) == 4
    # 6 x 7e9 parameters x 140e9 tokens at 40 % of 312 and of 989 TFLOP/s: 39 and 12.3 GPUs for 14 days.
    assert gpus_for(7e9, 140e9, "A100-80", 8, None) == 64
    assert gpus_for(7e9, 140e9, "H100", 8, None) == 16
    assert gpus_for(70e9, 1.4e12, "A100-80", 8, 13) == 64


def test_what_fits_nowhere_is_said_with_what_would() -> None:
    with pytest.raises(UsageError, match="nothing fits 8 GPUs of 16 GB"):
        suggested("mine", Wanted(175e9, 1e12, 8, 8, "V100-16"))
