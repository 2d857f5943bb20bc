"""Searching for layouts, compared with hand calculations and with the original runs' choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opsctl.cli.plan import command
from opsctl.core.shipped import templates_folder
from opsctl.run.planning.gpus import Gpu
from opsctl.run.planning.search import candidate, search
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options, from_tables

#: 1 TFLOP/s, of which large products reach 0.6; 1 GB/s within a node, 0.5 for each of two GPUs between nodes.
GPU = Gpu("test", memory_gb=1.0, peak_tflops=1.0, within_node_gbs=1.0, between_nodes_gbs=1.0)
SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 256,
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "position_embedding_type": "alibi",
    "bf16": True,
}


def small(**changes: Any) -> tuple[Options, ModelShape]:
    options = from_tables({**SMALL, **changes})
    return options, ModelShape.of(options, Vocabulary.unpadded(128))


def test_a_step_is_turns_of_the_slowest_stage_and_what_replicas_exchange() -> None:
    options, shape = small()
    one = candidate(options, shape, Layout(8, 2, 2, 2), 1, "block", 2, GPU)
    assert one is not None
    # Of a token: 4 passes of 2 blocks x (2 x 12 h^2 weights + 4 s h), and 6 V h on the last stage.
    of_token = 4 * 2 * (24 * 64**2 + 4 * 256 * 64) + 6 * 128 * 64
    assert one.turn.compute_s == pytest.approx(256 * of_token / 2 / (0.6e12 * 256 / 512))
    # 6 sums in each of 2 blocks, of 256 x 64 numbers of 2 bytes, each sent 2 (t - 1) / t = 1 times.
    assert one.turn.tensor_s == pytest.approx(6 * 2 * 256 * 64 * 2 / 1e9)
    # One stage on and one gradient back, each GPU having half of its node's 1 GB/s.
    assert one.turn.stages_s == pytest.approx(2 * 256 * 64 * 2 / 0.5e9)
    assert one.micro_batches == 4 and one.bubble == 1 / 4
    # 12 h^2 / 2 weights of a block, biases 7 h / 2 and 6 h whole, embedding V h / 2 and a norm of 2 h on the last.
    held = 2 * (12 * 64**2 // 2 + 7 * 64 // 2 + 6 * 64) + 128 * 64 // 2 + 2 * 64
    assert one.replicas_s == pytest.approx(held * (2 * 4 + 2) / 2 / 0.5e9)
    turns = one.turn.compute_s + one.turn.tensor_s + one.turn.stages_s
    assert one.step_s == pytest.approx((4 + 1) * turns + one.replicas_s)


def test_slices_of_a_sequence_are_gathered_once_more_and_sent_alone() -> None:
    layout = Layout(8, 2, 2, 2)
    whole, slices = (candidate(*small(sequence_parallel=split), layout, 1, "none", 2, GPU) for split in (False, True))
    assert whole is not None and slices is not None
    assert slices.turn.tensor_s == pytest.approx(whole.turn.tensor_s * 5 / 4)
    assert slices.turn.stages_s == pytest.approx(whole.turn.stages_s / 2)


def test_only_what_divides_is_looked_at() -> None:
    options, shape = small(rampup_batch_size=(4, 4, 100), num_attention_heads=2)
    found = search(options, shape, gpus=8, per_node=8, gpu=GPU).fitting
    layouts = {(one.layout.tensor, one.layout.pipeline, one.layout.data, one.micro_batch) for one in found}
    # Two heads, 4 blocks, and batches from 4 by 4: DP x micro-batch divides 4.
    assert layouts == {
        *((1, 2, 4, 1), (2, 1, 4, 1), (2, 2, 2, 1), (2, 2, 2, 2), (1, 4, 2, 1), (1, 4, 2, 2)),
        *((2, 4, 1, 1), (2, 4, 1, 2), (2, 4, 1, 4)),
    }


def test_no_more_is_recomputed_than_has_to_be() -> None:
    options, shape = small()
    kept, blocks = (candidate(options, shape, Layout(1, 1, 1, 1), 8, how, 1, GPU) for how in ("none", "block"))
    assert kept is not None and blocks is not None
    between = Gpu("test", (kept.memory_gb + blocks.memory_gb) / 2 / 0.9, 1.0, 1.0, 1.0)
    by_micro = {one.micro_batch: one.recompute for one in search(options, shape, 1, 1, between).fitting}
    assert by_micro[1] == "none" and by_micro[8] != "none"


@pytest.mark.parametrize(("example", "chosen"), [("tr1-13B", (2, 4, 16, 1)), ("tr11-176B-ml", (4, 12, 8, 1))])
def test_what_the_originals_chose_is_among_the_first_three(example: str, chosen: tuple[int, ...]) -> None:
    answer = _searched(_example(example))
    first = answer["layouts"][:3]
    keys = ("tensor", "pipeline", "data", "micro_batch_size")
    assert chosen in [tuple(one[key] for key in keys) for one in first]
    assert [one for one in first if one["is_the_run"]]
    assert answer["own"]["recompute"] == "block"  # as the run files say, where the rows recompute the least that fits
    assert tuple(answer["own"][key] for key in keys) == chosen
    seconds = [one["seconds_per_iteration"] for one in answer["layouts"]]
    assert seconds == sorted(seconds)
    assert all(one["memory_gb"] <= answer["gpu"]["usable_gb"] for one in answer["layouts"])


def _example(name: str) -> Path:
    return templates_folder() / "examples" / f"{name}.toml"


def _searched(file: Path, *more: str) -> dict[str, Any]:
    found = CliRunner().invoke(command, ["--json", "--search", str(file), *more], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    answer: dict[str, Any] = json.loads(found.stdout)["search"]
    return answer


def test_another_number_of_gpus_is_searched_when_asked_for() -> None:
    assert _searched(_example("tr11-176B-ml"), "--nodes", "24")["gpu"]["gpus"] == 192
    answer = _searched(_example("tr11-176B-ml"), "--gpus", "192")
    assert answer["own"] is None and not any(one["is_the_run"] for one in answer["layouts"])  # it has 384
    assert {one["tensor"] * one["pipeline"] * one["data"] for one in answer["layouts"]} == {192}


def test_where_nothing_fits_it_says_what_would() -> None:
    found = CliRunner().invoke(command, ["--search", str(_example("tr11-176B-ml")), "--nodes", "2"])
    assert found.exit_code != 0
    assert "16 GPUs of 80 GB" in str(found.exception)


def test_a_gpu_that_is_not_known_is_asked_for_by_key(tmp_path: Path) -> None:
    text = _example("tr1-13B").read_text().replace('"v100-32g"', '"fast"')
    (tmp_path / "run.toml").write_text(text)
    found = CliRunner().invoke(command, ["--search", str(tmp_path)])
    assert "[gpu] peak_tflops" in str(found.exception) or "[gpu] memory_gb" in str(found.exception)


def test_what_gpu_says_counts_before_what_is_known_by_name(tmp_path: Path) -> None:
    text = _example("tr1-13B").read_text()
    (tmp_path / "run.toml").write_text(text.replace("memory_gb = 32", "memory_gb = 16\npeak_tflops = 100"))
    gpu = _searched(tmp_path / "run.toml")["gpu"]
    assert (gpu["name"], gpu["memory_gb"], gpu["peak_tflops"]) == ("V100", 16, 100)
    (tmp_path / "run.toml").write_text(text.replace("memory_gb = 32", "memory_gb = 0"))
    found = CliRunner().invoke(command, ["--search", str(tmp_path)])
    assert "[gpu] memory_gb = 0.0" in str(found.exception) and "0.001" in str(found.exception)
