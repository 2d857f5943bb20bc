"""The layouts on which a run continues without some of its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli.plan import command
from opsctl.core.shipped import templates_folder
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.planning.fewer_nodes import SmallerLayout, fewer_nodes_problem, smaller_layouts
from tests.printed_json import printed
from tests.tiny_run import expand, write_run
from trainer.recipe.layout import Layout
from trainer.recipe.options import parse


def tiny(folder: Path, slurm: str, batch: int) -> ExpandedRun:
    path = write_run(folder, nodes=4, slurm=slurm)
    text = path.read_text().replace("gpus_per_node = 2", "gpus_per_node = 1")
    path.write_text(text.replace("global_batch_size = 8", f"global_batch_size = {batch}"))
    return expand(load_run_file(path))


def found(run: ExpandedRun, below: int | None = None) -> list[SmallerLayout]:
    return list(smaller_layouts(run.file, run.arguments, run.options, below))


def test_a_smaller_dp_keeps_the_batch_and_everything_else(tmp_path: Path) -> None:
    run = tiny(tmp_path, "min_nodes = 2", 12)
    three, two = found(run)
    assert [(one.nodes, one.layout) for one in (three, two)] == [(3, Layout(3, 1, 1, 3)), (2, Layout(2, 1, 1, 2))]
    with_them = parse([*run.arguments, *three.arguments], 3)
    assert with_them.micro_batch_size == 1 and with_them.global_batch_size == 12
    assert [one.nodes for one in found(run, below=3)] == [2]
    assert fewer_nodes_problem(run.file, run.arguments, run.options) is None


def test_a_number_of_nodes_that_does_not_divide_the_batch_is_passed_over(tmp_path: Path) -> None:
    assert [one.nodes for one in found(tiny(tmp_path, "min_nodes = 1", 16))] == [2, 1]


def test_a_batch_that_the_run_file_leaves_to_the_layout_stays_that_of_all_nodes(tmp_path: Path) -> None:
    run = tiny(tmp_path, "min_nodes = 2", 16)
    without = load_run_file(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text(without.path.read_text().replace("global_batch_size = 16", ""))
    run = expand(load_run_file(tmp_path / "run.toml"))
    assert run.options.global_batch_size == 4
    (two,) = found(run)
    assert parse([*run.arguments, *two.arguments], two.nodes).global_batch_size == 4


def test_where_the_own_model_parallelism_does_not_divide_another_layout_is_found(tmp_path: Path) -> None:
    path = write_run(tmp_path, nodes=4, slurm="min_nodes = 3")
    model = "num_layers = 12\npipeline_model_parallel_size = 4"
    path.write_text(path.read_text().replace("num_layers = 2", model))
    run = expand(load_run_file(path))
    (three,) = found(run)
    assert three.layout.world_size == 6 and three.layout.pipeline in (3, 6)  # 8 samples have no third
    assert Layout.of(parse([*run.arguments, *three.arguments], 6), 6) == three.layout


@pytest.mark.parametrize(("memory_gb", "nodes"), [("16", [3, 2]), ("0.001", [])])
def test_a_layout_that_does_not_fit_the_memory_is_not_chosen(tmp_path: Path, memory_gb: str, nodes: list[int]) -> None:
    tiny(tmp_path, "min_nodes = 2", 12)
    gpu = f"\n[gpu]\nmemory_gb = {memory_gb}\npeak_tflops = 1.0\n"
    path = tmp_path / "run.toml"
    path.write_text(path.read_text().replace("num_layers = 2", "num_layers = 8") + gpu)
    assert [one.nodes for one in found(expand(load_run_file(tmp_path / "run.toml")))] == nodes


def test_bloom_continues_on_36_of_48_nodes(tmp_path: Path) -> None:
    text = (templates_folder() / "examples" / "tr11-176B-ml.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("[slurm]\n", "[slurm]\nmin_nodes = 36\n"))
    loaded = load_run_file(tmp_path / "run.toml")
    (smaller,) = found(ExpandedRun.of(loaded, loaded.file))
    assert (smaller.nodes, str(smaller.layout)) == (36, "TP 8 x PP 9 x DP 4")  # 70 blocks, 8 x 256 samples


@pytest.mark.parametrize(
    ("slurm", "batch", "why"), [("min_nodes = 4", 12, "below nodes = 4"), ("min_nodes = 3", 16, "batch of 16")]
)
def test_plan_prints_the_smaller_layouts_and_refuses_by_name_what_keeps_none(
    tmp_path: Path, slurm: str, batch: int, why: str
) -> None:
    tiny(tmp_path, "min_nodes = 2", 12)
    answer = CliRunner().invoke(command, [str(tmp_path / "run.toml"), "--json"])
    job = printed("plan", answer.stdout)["job"]
    assert [(one["nodes"], one["data"]) for one in job["fewer_nodes"]] == [(3, 3), (2, 2)]
    tiny(tmp_path, slurm, batch)
    answer = CliRunner().invoke(command, [str(tmp_path / "run.toml"), "--json"])
    assert answer.exit_code == 2
    (problem,) = printed("plan", answer.stdout)["problems"]
    assert "[slurm] min_nodes" in problem and why in problem


def test_off_is_the_default(tmp_path: Path) -> None:
    run = tiny(tmp_path, "", 12)
    assert found(run) == [] and fewer_nodes_problem(run.file, run.arguments, run.options) is None
