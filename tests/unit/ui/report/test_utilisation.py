"""MFU that no line of the log says."""

from __future__ import annotations

import math
import re

import pytest
from msgspec.structs import replace

from opsctl.run.config.schema import GpuTable, SlurmTable
from opsctl.ui.report.curves import Course
from opsctl.ui.report.html_page import Known, page_run
from opsctl.ui.report.log_tables import progress, utilisation
from tests.unit.ui.report.test_curves import NOON, course_of, line, start
from trainer.recipe.options import Options, from_tables

A100 = SlurmTable(nodes=2, gpus_per_node=4, time="20:00:00", partition="gpu", gpu_type="a100")
MODEL = {
    "num_layers": 64,
    "hidden_size": 11600,
    "num_attention_heads": 80,
    "seq_length": 2048,
    "vocab_size": 50257,
    "bf16": True,
}


def options() -> Options:
    return from_tables(MODEL, 8)


def told(course: Course, gpu: GpuTable | None = None, slurm: SlurmTable = A100) -> tuple[list[float], str] | None:
    found = utilisation(course, options(), gpu or GpuTable(), slurm)
    return None if found is None else (list(found.percent), found.source)


def test_it_is_the_logs_model_tflops_of_the_peak_that_the_gpus_maker_states() -> None:
    found = told(course_of(line(1, model_tflops=156.0), line(2), line(3, model_tflops=78.0)))
    assert found is not None
    assert found[0][0] == pytest.approx(50.0) and math.isnan(found[0][1]) and found[0][2] == pytest.approx(25.0)
    assert re.search(r"\b312 TFLOP/s\b.*\bA100\b.*\bbf16\b", found[1])


def test_without_them_it_is_the_models_flops_in_the_time_of_an_iteration() -> None:
    found = told(
        course_of(line(1, global_batch_size=8, seconds_per_iteration=30.0), line(2, seconds_per_iteration=None))
    )
    assert found is not None
    batch, seq, layers, hidden, vocabulary = 8, 2048, 64, 11600, 50257
    # Equation 3 of arXiv 2104.04473 for three passes: nothing is computed again.
    formula = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocabulary / (12 * layers * hidden))
    assert found[0][0] == pytest.approx(100 * formula / 30 / 8 / 312e12, rel=0.01) and math.isnan(found[0][1])
    assert "on 8 GPUs" in found[1]


def test_iterations_from_before_the_number_of_gpus_changed_are_held_against_those_that_trained_them() -> None:
    def sized(ranks: int) -> str:
        return f"  world_size ......................... {ranks}"

    course = course_of(sized(8), line(1), sized(4), line(2), line(3, seconds_per_iteration=20.0))
    found = told(course)
    assert found is not None
    assert found[0] == pytest.approx([found[0][0], 2 * found[0][0], found[0][0]])
    assert "on 4 to 8 GPUs" in found[1]


def test_of_an_attempt_they_are_those_of_its_own_nodes() -> None:
    grown = replace(A100, nodes=4)
    found = told(course_of(start(1, NOON), line(1)), slurm=grown)
    assert found is not None and "on 8 GPUs" in found[1], "two nodes, whatever the run file asks for today"
    spared = told(course_of(start(1, NOON), line(1)), slurm=replace(A100, nodes=1, spare=1))
    assert spared is not None and "on 4 GPUs" in spared[1]


def test_of_a_gpu_that_nobody_knows_nothing_is_guessed_until_the_run_file_says_its_peak() -> None:
    course = course_of(line(1, model_tflops=100.0))
    unknown = SlurmTable(nodes=2, gpus_per_node=4, time="20:00:00", gpu_type="x9")
    assert told(course, slurm=unknown) is None
    found = told(course, GpuTable(peak_tflops=400.0), unknown)
    assert found is not None and found[0] == [25.0] and re.search(r"\b400 TFLOP/s\b.*\[gpu\].*\bbf16\b", found[1])


def test_a_log_that_says_it_is_believed() -> None:
    assert told(course_of(line(1, model_tflops=156.0), line(2, model_tflops=156.0, mfu_percent=41.0))) is None


def test_the_page_draws_it_and_says_what_it_was_reckoned_from() -> None:
    course = course_of(line(1, model_tflops=156.0))
    found = utilisation(course, options(), GpuTable(), A100)
    assert found is not None
    run = page_run("tr1", "log", course, Known(utilisation=found))
    assert run.sources == {"mfu": found.source} and run.columns["mfu"] != run.columns["loss"]
    rows = dict(progress(course, utilised=found).rows)
    assert rows["MFU"].startswith("50 %") and rows["MFU is"] == found.source
