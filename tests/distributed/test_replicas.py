"""Drifted replicas: one bit in one rank's copy of a weight that others have too is found, and named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine
from tests.distributed.whole_training import run_training, write_corpus

pytestmark = pytest.mark.distributed

NORM, EMBEDDING, SPLIT = "input_layernorm.weight", "word_embeddings.weight", "mlp.dense_h_to_4h.weight"


def found_by_flipping(changes: dict[str, Any], flips: list[tuple[int, str]]) -> list[str]:
    """In a rank: what a comparison says after one bit of (rank, end of the parameter's name) is flipped.

    Each is flipped back before the next; "" where nothing is found, as in undisturbed ranks: before any update, and
    after two.
    """
    import torch

    from trainer.engine.build import train_step
    from trainer.loop.replicas import Replicas
    from trainer.parallel.agreement import Refusal

    options, parallel, engine = tiny_engine(**changes)
    replicas = Replicas(engine, parallel, engine.module.shape)

    def compared() -> str:
        try:
            replicas.compare(2)
        except Refusal as refusal:
            return str(refusal)
        return ""

    def flip(rank: int, name: str) -> None:
        if parallel.rank != rank:
            return
        held: Any = next(one.data for full, one in engine.module.named_parameters() if full.endswith(name))
        bits = held.view(-1).view({2: torch.int16, 4: torch.int32}[held.element_size()])
        bits[bits.numel() // 2] ^= 1

    said = [compared()]
    for step in range(2):
        items = iter(step_items(options, parallel, step)) if parallel.needs_data else None
        train_step(engine, items, options.lr)
    said.append(compared())
    for one in flips:
        flip(*one)
        said.append(compared())
        flip(*one)
    said.append(compared())
    return said


#: The parameter, and the numbers of the ranks in the order in which the line has them.
Found = tuple[str, list[int]]


def named(pool: Pool, changes: dict[str, Any], flips: list[tuple[int, str]]) -> list[Found]:
    """Return the common report of all ranks for each flip."""
    ranks = pool.run(4, found_by_flipping, changes, flips)
    assert all(said == ranks[0] for said in ranks)
    untrained, first, *found, last = ranks[0]
    assert untrained == first == last == ""
    assert all("iteration 2 " in text for text in found)
    return [what_differs(text) for text in found]


def what_differs(text: str) -> Found:
    pattern = rf"weight of ((?:layers\.\d+\.)?(?:{NORM}|{EMBEDDING}|{SPLIT}))\b([^.]*)\."
    ((name, rest),) = re.findall(pattern, text)
    return name, [int(number) for number in re.findall(r"\d+", rest)]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_one_bit_in_what_tensor_parallel_ranks_have_whole_is_named(pool: Pool, precision: dict[str, Any]) -> None:
    """TP 2 x DP 2: rank 0 and 1 are the first replica."""
    layer = f"layers.0.{NORM}"
    flips = [(2, NORM), (3, SPLIT)]
    assert named(pool, {"tensor_model_parallel_size": 2, **precision}, flips) == [
        (layer, [2, 0, 1, 3]),
        (f"layers.0.{SPLIT}", [1, 3]),
    ]


def test_one_bit_in_the_tied_embedding_is_named_on_either_stage(pool: Pool) -> None:
    """PP 2 x DP 2: ranks 0 and 1 are the first stage."""
    changes = {"pipeline_model_parallel_size": 2, "bf16": True}
    assert named(pool, changes, [(3, EMBEDDING)]) == [(EMBEDDING, [3, 0, 2])]  # ranks 0 to 2


def test_a_training_that_drifts_ends_with_the_reason_and_saves_nothing_of_it(pool: Pool, tmp_path: Path) -> None:
    options = {"data_path": [write_corpus(tmp_path)], "train_iters": 8, "save": str(tmp_path / "ck")}
    options |= {"load": str(tmp_path / "ck"), "check_replicas_interval": 3, "save_interval": 2}
    options |= {"tensor_model_parallel_size": 2, "sync_tp_duplicated_parameters": True}
    told = r".*iteration 4 .*layers\.0\.input_layernorm\.weight .*"
    ends = pool.run(2, run_training, options, {"after_step": 4, "flip": (1, NORM)})
    assert [seen.status for seen in ends] == [1, 1]
    assert re.match(rf"trainer: {told}rank 0 .*rank 1\b.*\n$", ends[0].errors)
    assert ends[1].errors == ""
    assert (tmp_path / "ck" / "latest").read_text() == "global_step2"
    assert not (tmp_path / "ck" / "global_step4").exists()

    unseen = pool.run(2, run_training, {**options, "check_replicas_interval": 0}, {"after_step": 1, "flip": (1, NORM)})
    assert [seen.status for seen in unseen] == [0, 0]


def test_a_training_whose_first_iterations_are_left_out_is_compared_once_it_has_trained(
    pool: Pool, tmp_path: Path
) -> None:
    options = {"data_path": [write_corpus(tmp_path)], "train_iters": 6, "check_replicas_interval": 2}
    options |= {"tensor_model_parallel_size": 2, "sync_tp_duplicated_parameters": True, "train_range_to_skip": [1, 3]}
    well = pool.run(2, run_training, options)
    assert [(seen.status, seen.errors, len(seen.losses)) for seen in well] == [(0, "", 3)] * 2
    ends = pool.run(2, run_training, options, {"after_step": 3, "flip": (1, NORM)})
    assert [seen.status for seen in ends] == [1, 1]
    assert "iteration 6 " in ends[0].errors and NORM in ends[0].errors
