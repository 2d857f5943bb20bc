"""A training that stopped and went on is the training that never stopped; what cannot go on is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.core.uncompiled import COMPILER

pytestmark = pytest.mark.distributed
RANKS_IMPORT = COMPILER  # recomputation loads it

LAYOUTS: dict[int, dict[str, Any]] = {
    1: {},
    2: {"bf16": True},
    4: {
        **WITH_NORMS,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "sequence_parallel": True,
        "recompute": "attention",
    },
    8: {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
}
# 4 samples a step until 12 are consumed, then 8: the stop after 2 steps falls into the ramp.
RAMPED = {"train_samples": 36, "rampup_batch_size": [4, 4, 12], "lr_warmup_samples": 20, "lr_decay_style": "cosine"}
RAMPED_BATCH_SIZES = [4, 4, 4, 8, 8, 8]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def stored(folder: Path, **options: Any) -> dict[str, Any]:
    return {"save": str(folder), "load": str(folder), **options}


def of_every_rank(ranks: list[Seen]) -> Seen:
    """Return the last rank's view, after checking that all saw the same losses and left with status 0."""
    assert [rank.status for rank in ranks] == [0] * len(ranks), [rank.errors for rank in ranks]
    assert all(rank.losses == ranks[0].losses for rank in ranks)
    return ranks[-1]


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.nightly), 2, 4, 8])
def test_stopping_twice_gives_the_losses_of_never_stopping_bit_for_bit(
    pool: Pool, corpus: str, tmp_path: Path, world_size: int
) -> None:
    """With dropout on, and with the first stop in the middle of a batch ramp-up."""
    options = {**RAMPED, **LAYOUTS[world_size], "data_path": [corpus]}
    whole = of_every_rank(pool.run(world_size, run_training, options))
    assert whole.batch_sizes == RAMPED_BATCH_SIZES
    assert len(set(whole.losses)) == len(whole.losses)

    pieces: list[float] = []
    rates: list[float] = []
    sizes: list[int] = []
    for interval in (2, 4, None):
        options_of_piece = {**options, **stored(tmp_path), "exit_interval": interval}
        piece = of_every_rank(pool.run(world_size, run_training, options_of_piece))
        pieces += piece.losses
        rates += piece.learning_rates
        sizes += piece.batch_sizes
    assert pieces == whole.losses
    assert rates == whole.learning_rates
    assert sizes == whole.batch_sizes
    assert (tmp_path / "latest").read_text() == "global_step6"
    manifest = json.loads((tmp_path / "global_step6" / "manifest.json").read_text())
    assert manifest["consumed_train_samples"] == sum(RAMPED_BATCH_SIZES)
    assert manifest["consumed_train_tokens"] == sum(RAMPED_BATCH_SIZES) * 16
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of a one-process training at iteration 2 of 4."""
    folder = tmp_path_factory.mktemp("saved")
    options = {"data_path": [corpus], "train_iters": 4, **stored(folder), "exit_interval": 2}
    of_every_rank(pool.run(1, run_training, options))
    return folder


def resumed(pool: Pool, corpus: str, folder: Path, world_size: int = 1, **options: Any) -> list[Seen]:
    return pool.run(world_size, run_training, {"data_path": [corpus], "train_iters": 4, "load": str(folder), **options})


def drawn_weights(options: dict[str, Any]) -> tuple[int | str, int]:
    """Exit status of a training, and how many weights it drew before its first step."""
    from trainer.parallel import tensor_parallel

    module: Any = tensor_parallel
    draw, drawn = module.initial_weight, []

    def drawing(name: str, *arguments: Any, **keywords: Any) -> Any:
        drawn.append(name)
        return draw(name, *arguments, **keywords)

    module.initial_weight = drawing
    return run_training(options).status, len(drawn)


def test_a_training_that_goes_on_draws_no_weights_first(pool: Pool, corpus: str, tmp_path: Path) -> None:
    options = {"data_path": [corpus], "train_iters": 2, **stored(tmp_path)}
    ((_, drawn),) = pool.run(1, drawn_weights, {**options, "exit_interval": 1})
    assert drawn > 0
    assert pool.run(1, drawn_weights, options) == [(0, 0)]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"hidden_size": 32}, "hidden_size value from checkpoint (16) is not equal to the input argument value (32)"),
        ({"num_layers": 4}, "num_layers value from checkpoint (2)"),
        ({"num_attention_heads": 4}, "num_attention_heads value from checkpoint (2)"),
        ({"vocab_size": 80}, "vocab_size value from checkpoint (64)"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type value from checkpoint (alibi)"),
        ({"normalization": "RMSNorm"}, "normalization value from checkpoint (None)"),
        ({"bf16": True}, "fp32"),
        ({"lr": 1e-3}, "learning rate 0.003 -> 0.001"),
        ({"lr_decay_style": "cosine"}, "decay style linear -> cosine"),
        ({"lr_decay_iters": 3}, "total number of iterations 32 -> 24"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_in_one_line(
    pool: Pool, corpus: str, saved: Path, changed: dict[str, Any], complaint: str
) -> None:
    (refused,) = resumed(pool, corpus, saved, **changed)
    assert refused.status == 1
    assert refused.losses == []
    assert complaint in refused.errors
    assert refused.errors.count("\n") == 1


def test_files_of_another_checkpoint_are_refused_on_every_rank_and_none_waits(
    pool: Pool, corpus: str, saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "global_step2"
    # Of the same size: who looks at no checksum sees by its contents alone that it is the other block's.
    shutil.copy(folder / "layer_03-model_00-model_states.pt", folder / "layer_04-model_00-model_states.pt")
    for unverified, complaint in (
        (False, f"{folder}/layer_04-model_00-model_states.pt has checksum "),
        (True, ".weight are not its optimizer's: one is another checkpoint's"),
    ):
        ranks = resumed(pool, corpus, tmp_path, world_size=2, no_verify_checkpoint_checksums=unverified)
        assert [rank.status for rank in ranks] == [1, 1]
        assert complaint in ranks[0].errors
        assert ranks[0].errors.count("\n") == 1 and ranks[1].errors == ""


def test_a_changed_learning_rate_goes_on_when_told_which_one_to_believe(pool: Pool, corpus: str, saved: Path) -> None:
    (overridden,) = resumed(pool, corpus, saved, lr=1e-3, override_lr_scheduler=True)
    (kept,) = resumed(pool, corpus, saved, lr=1e-3, use_checkpoint_lr_scheduler=True)
    # linear from the peak at 0 to 0 at 32 samples: half of it at iteration 2
    assert overridden.learning_rates[0] == pytest.approx(0.5e-3)
    assert kept.learning_rates[0] == pytest.approx(1.5e-3)


def test_finetune_takes_the_weights_and_starts_at_the_beginning(pool: Pool, corpus: str, saved: Path) -> None:
    (fresh,) = pool.run(1, run_training, {"data_path": [corpus], "train_iters": 1})
    (tuned,) = resumed(pool, corpus, saved, finetune=True)
    assert tuned.status == 0
    assert len(tuned.losses) == 4
    assert tuned.losses[0] < fresh.losses[0]
    # Weights alone do not depend on how many replicas there were.
    assert [rank.status for rank in resumed(pool, corpus, saved, world_size=2, finetune=True)] == [0, 0]


def test_a_checkpoint_without_optimizer_states_is_refused_until_told_to_go_without(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    options = {"data_path": [corpus], "train_iters": 4}
    of_every_rank(pool.run(1, run_training, {**options, **stored(tmp_path), "exit_interval": 2, "no_save_optim": True}))
    assert not list(tmp_path.glob("global_step2/*optim_states*"))
    for again in ({}, {"no_save_optim": True}):
        (refused,) = resumed(pool, corpus, tmp_path, **again)
        assert refused.status == 1
        assert "--no-load-optim" in refused.errors
    (taken,) = resumed(pool, corpus, tmp_path, no_load_optim=True)
    assert taken.status == 0
    assert len(taken.losses) == 2


def test_another_optimizers_states_are_refused_also_where_none_will_be_saved(
    pool: Pool, corpus: str, saved: Path
) -> None:
    (refused,) = resumed(pool, corpus, saved, optimizer="sgd", no_save_optim=True)
    assert refused.status == 1
    assert re.search(r"--optimizer adam.*\bsgd\b", refused.errors)
