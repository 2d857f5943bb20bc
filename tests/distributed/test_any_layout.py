"""A checkpoint is loaded into any layout: bitwise the same state, and the training that never moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.layouts import MODEL, Layout, differences, laid_out, saved_in_all, trained
from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool
from tests.distributed.whole_training import write_corpus

pytestmark = pytest.mark.distributed

# Every way of sharing alone and together with others; `python -m benchmarks.layouts` compares all 400 pairs.
COVERING: dict[str, list[Layout]] = {
    "fp32": [(1, 2, 2), (2, 2, 2), (4, 1, 1)],
    "bf16": [(2, 2, 1), (1, 1, 2)],
    "modern": [(2, 2, 1), (1, 1, 2), (4, 1, 1)],  # the last has two ranks for each group of keys and values
}
KINDS: dict[str, dict[str, Any]] = {"bf16": {"bf16": True}, "modern": WITH_NORMS}
STEPS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents=200)


@pytest.mark.parametrize("kind", COVERING)
def test_each_rank_of_each_layout_gets_bitwise_what_its_own_files_have(
    pool: Pool, corpus: str, tmp_path: Path, kind: str
) -> None:
    folders = saved_in_all(pool, tmp_path, corpus, COVERING[kind], num_layers=4, **KINDS.get(kind, {}))
    pairs = [(str(source), str(target)) for source in folders.values() for target in folders.values()]
    assert pool.run(1, differences, pairs)[0] == []


# 4 samples a step until 16 are consumed, then 8: the move after 2 steps falls into the ramp.
# Hidden dropout is on: it follows from the sample, on any rank.
RAMPED = {
    "hidden_dropout": 0.1,
    "train_samples": 16 + 8 * (STEPS - 2),
    "rampup_batch_size": [4, 4, 16],
    "lr_warmup_samples": 20,
}
FOUR = {"num_layers": 4, "micro_batch_size": 2}
MOVES: list[tuple[Layout, dict[str, Any], Layout, dict[str, Any]]] = [
    (
        (1, 1, 2),
        {"num_layers": 2},
        (2, 1, 1),
        {"num_layers": 2, "micro_batch_size": 2, "sequence_parallel": True},
    ),
    (
        (2, 2, 1),
        {**FOUR, "pp_partition_method": "type:transformer|embedding", "sequence_parallel": True},
        (1, 2, 2),
        {**FOUR, "pp_partition_method": "1,3"},
    ),
]


@pytest.mark.parametrize(("before", "given_before", "after", "given_after"), MOVES)
def test_a_training_that_moved_to_another_layout_in_the_ramp_is_the_one_that_never_moved(
    pool: Pool,
    corpus: str,
    tmp_path: Path,
    before: Layout,
    given_before: dict[str, Any],
    after: Layout,
    given_after: dict[str, Any],
) -> None:
    options = {"data_path": [corpus], **RAMPED, "save": str(tmp_path), "load": str(tmp_path)}
    stayed = trained(pool, before, {**options, **given_before, "save": None, "load": None})
    trained(pool, before, {**options, **given_before, "exit_interval": 2})
    moved = trained(pool, after, {**options, **given_after})
    assert len(moved[-1].losses) == STEPS
    assert moved[-1].losses == pytest.approx(stayed[-1].losses[2:], rel=1e-6)
    assert moved[-1].batch_sizes == stayed[-1].batch_sizes[2:] and moved[-1].batch_sizes[0] == 4
    assert moved[-1].learning_rates == stayed[-1].learning_rates[2:]
    _, resumed = json.loads((tmp_path / f"global_step{2 + STEPS}" / "manifest.json").read_text())["history"]
    named = {change["name"]: (change["before"], change["now"]) for change in resumed["changes"]}
    assert named["data_parallel_size"] == (before[2], after[2])


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """`saved(precision)`: options of a small model, with `load` naming a folder with its checkpoint of two replicas."""

    @cache
    def options_of(precision: str) -> dict[str, Any]:
        folder = str(tmp_path_factory.mktemp(precision))
        options = {"bf16": precision == "bf16", "num_layers": 2, "vocab_size": 66}
        trained(pool, (1, 1, 2), {**options, "data_path": [corpus], "train_iters": 2, "save": folder})
        return {**options, "load": folder}

    return options_of


def optimizer_after(options: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """In a rank: what an engine goes by after a load, and whether its fp32 weights are the checkpoint's."""
    import torch

    from tests.distributed.tiny_training import tiny_engine
    from trainer.checkpoint.load import find_latest, load_checkpoint
    from trainer.checkpoint.saved_state import SavedState

    given, _, engine = tiny_engine(**{**MODEL, **laid_out(layout), **options, "load": options["load"]})
    found = find_latest(Path(options["load"]))
    assert found is not None
    load_checkpoint(engine, found, with_optimizer=not given.no_load_optim)
    optimizer, state = engine.optimizer, SavedState(found.folder, found.manifest)
    groups = optimizer.optimizer.param_groups
    wanted = torch.cat([state.optimizer(one.name, "fp32").flatten() for one in state.parameters.values() if one.decays])
    return {
        "clip": optimizer.clip_grad,
        "groups": [(one["weight_decay"], one["betas"], one["eps"]) for one in groups],
        "states": [sorted(optimizer.optimizer.state[one["params"][0]]) for one in groups],
        "master weights match": torch.equal(groups[0]["params"][0].detach()[: wanted.numel()], wanted),
        "rounded to weights": any((one != one.bfloat16().float()).any() for one in wanted.split(1000)),
        "counted": (engine.global_steps, engine.global_samples, engine.skipped_steps),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("with_moments", [True, False])
def test_options_are_the_command_lines_and_fp32_weights_the_checkpoints(
    pool: Pool, saved: Callable[[str], dict[str, Any]], precision: str, with_moments: bool
) -> None:
    changed = {"clip_grad": 0.5, "weight_decay": 0.2, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_eps": 1e-6}
    given = {**saved(precision), **changed, "no_load_optim": not with_moments}
    (found,) = pool.run(1, optimizer_after, given, (1, 1, 1))
    assert found["clip"] == 0.5
    assert found["groups"] == [(0.2, (0.8, 0.95), 1e-6), (0.0, (0.8, 0.95), 1e-6)]
    assert found["states"] == [["exp_avg", "exp_avg_sq", "step"] if with_moments else []] * 2
    assert found["master weights match"] and found["rounded to weights"]
    assert found["counted"] == (2, 16, 0)


def moments_after_going_back(options: dict[str, Any]) -> list[bool]:
    """In a rank: of each moment of a checkpoint loaded over a training, whether it is where the one before was.

    And whether what DeepSpeed keeps of it for each parameter is a part of it, and the values are the first load's.
    """
    from tests.distributed.tiny_training import step_items, tiny_engine
    from trainer.checkpoint.load import find_latest, load_checkpoint
    from trainer.engine.build import train_step

    given, parallel, engine = tiny_engine(**{**MODEL, **laid_out((1, 1, 1)), **options})
    found = find_latest(Path(options["load"]))
    assert found is not None
    base: Any = engine.optimizer.optimizer
    names = ("exp_avg", "exp_avg_sq")

    def moments() -> dict[tuple[int, str], Any]:
        states = [base.state[group["params"][0]] for group in base.param_groups]
        return {(number, which): state[which] for number, state in enumerate(states) for which in names}

    load_checkpoint(engine, found)
    loaded = {key: one.clone() for key, one in moments().items()}
    train_step(engine, iter(step_items(given, parallel, 2)), given.lr)
    trained_on = {key: one.data_ptr() for key, one in moments().items()}
    load_checkpoint(engine, found)
    seen = [bool((one == loaded[key]).all()) for key, one in moments().items()]
    seen += [one.data_ptr() == trained_on[key] for key, one in moments().items()]
    for parameter in engine.module.parameters():
        mapping: Any = parameter._hp_mapping
        for which in names:
            whole = moments()[mapping.param_group_index, which].untyped_storage().data_ptr()
            seen.append(mapping.optim_fragment[which].untyped_storage().data_ptr() == whole)
    return seen


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_going_back_in_the_midst_of_a_training_keeps_no_second_copy_of_the_moments(
    pool: Pool, saved: Callable[[str], dict[str, Any]], precision: str
) -> None:
    (seen,) = pool.run(1, moments_after_going_back, saved(precision))
    assert len(seen) > 8 and all(seen)
