"""The engine's promises beyond layouts: recomputation, dropout, precision, evaluation, what the options switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.tiny_training import batch_items, step_items, tiny_engine, train
from trainer.core.uncompiled import COMPILER

pytestmark = pytest.mark.distributed
RANKS_IMPORT = COMPILER  # recomputation loads it

DROPOUT = {"attention_dropout": 0.1, "hidden_dropout": 0.1}
ALIBI = {"position_embedding_type": "alibi", "embed_layernorm": True}


def losses(pool: Pool, ranks: int, steps: int, **changes: Any) -> list[float]:
    return [loss for loss, _ in pool.run(ranks, train, steps, changes)[0]]


@pytest.fixture(scope="module")
def with_dropout(pool: Pool) -> list[float]:
    return losses(pool, 1, 4, **DROPOUT)


@pytest.mark.parametrize(
    "recomputation",
    [
        {"deepspeed_activation_checkpointing": True, "checkpoint_num_layers": 1},
        {"recompute": "block", "checkpoint_num_layers": 2},
        {"recompute": "attention"},
    ],
    ids=str,
)
def test_recomputation_gives_the_same_losses(
    pool: Pool, with_dropout: list[float], recomputation: dict[str, Any]
) -> None:
    assert losses(pool, 1, 4, **DROPOUT, **recomputation) == with_dropout


def test_recomputed_attention_gives_the_same_bits_with_all_that_it_can_have(pool: Pool) -> None:
    changes = {**WITH_NORMS, **DROPOUT, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    whole = pool.run(4, train, 2, changes)
    assert pool.run(4, train, 2, {**changes, "recompute": "attention"}) == whole


def core_runs(changes: dict[str, Any]) -> list[int]:
    """Return how many times one step runs each block's attention core, and its MLP."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    runs = {"core": 0, "mlp": 0}

    def counting(what: str, run: Any) -> Any:
        def counted(x: Any) -> Any:
            runs[what] += 1
            return run(x)

        return counted

    for layer in engine.module.forward_funcs:
        if type(layer).__name__ == "TransformerBlock":
            layer.self_attention._core = counting("core", layer.self_attention._core)
            layer.mlp.forward = counting("mlp", layer.mlp.forward)
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    each = options.num_layers * engine.micro_batches
    return [runs["core"] // each, runs["mlp"] // each]


@pytest.mark.parametrize(("recompute", "runs"), [("none", [1, 1]), ("attention", [2, 1]), ("block", [2, 2])])
def test_what_is_recomputed_is_run_twice(pool: Pool, recompute: str, runs: list[int]) -> None:
    assert pool.run(1, core_runs, {"recompute": recompute}) == [runs]


def train_deterministically(steps: int, changes: dict[str, Any]) -> tuple[list[tuple[float, float]], list[Any]]:
    """Return the results of `train` in a rank, and the modes that were on meanwhile."""
    import os

    import torch

    measured = train(steps, {**changes, "deterministic": True})
    on = [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()]
    return measured, [*on, os.environ["CUBLAS_WORKSPACE_CONFIG"], os.environ["NCCL_ALGO"].startswith("^NVLS")]


def test_deterministic_runs_everything_a_training_does_and_gives_the_same_bits_again(pool: Pool) -> None:
    layout = {"tensor_model_parallel_size": 2, "checkpoint_activations": True, "bf16": True, **DROPOUT}
    first = pool.run(2, train_deterministically, 2, layout)
    assert pool.run(2, train_deterministically, 2, layout) == first
    assert first[0][1] == [True, False, ":4096:8", True]
    assert pool.run(2, train, 2, layout) == [measured for measured, _ in first]  # on a CPU nothing is slower for it


@pytest.mark.parametrize("pipeline", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_split_recomputation_inputs_give_the_same_bits(pool: Pool, pipeline: int) -> None:
    layout = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": pipeline, "checkpoint_activations": True}
    whole = pool.run(2 * pipeline, train, 2, {**DROPOUT, **layout})
    assert pool.run(2 * pipeline, train, 2, {**DROPOUT, **layout, "partition_activations": True}) == whole


def bytes_kept(options: dict[str, Any], activations: int) -> list[int]:
    """Bytes of tensors that one forward pass of blocks leaves alive for the backward pass: all, and one activation.

    gloo's threads let go of what they have summed a moment after they say that it is summed: what is more than so many
    `activations` is given a minute to go.
    """
    import time
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    _, _, engine = tiny_engine(checkpoint_activations=True, num_layers=8, **options)
    made: dict[int, Any] = {}

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(one, torch.Tensor):
                    storage = one.untyped_storage()
                    made[storage._cdata] = (weakref.ref(storage), storage.nbytes())
            return out

    x = torch.zeros(2, 16, 32, requires_grad=True)
    blocks = [layer for layer in engine.module.forward_funcs if type(layer).__name__ == "TransformerBlock"]
    watching: Any = Watching
    with watching():
        out = x
        for block in blocks:
            out = engine.module._checkpointed(block, out)
    others = {one.untyped_storage()._cdata for one in (x, *engine.module.parameters())}
    activation = x.untyped_storage().nbytes()

    def alive() -> int:
        return sum(size for at, (storage, size) in made.items() if storage() is not None and at not in others)

    until = time.monotonic() + 60
    while alive() > activations * activation and time.monotonic() < until:
        time.sleep(0.01)
    assert out.requires_grad
    return [alive(), activation]


def test_split_recomputation_inputs_take_each_rank_its_part_of_the_memory(pool: Pool) -> None:
    layout = {"tensor_model_parallel_size": 2}
    for whole, activation in pool.run(2, bytes_kept, layout, 8):
        assert whole == 8 * activation  # what enters blocks 2 to 8, and the output; the first input is the caller's
    for split, activation in pool.run(2, bytes_kept, {**layout, "partition_activations": True}, 5):
        assert split == 5 * activation  # half of what enters each of 8 blocks, and the output


@pytest.mark.parametrize("layout", [{"pipeline_model_parallel_size": 2, "checkpoint_activations": True}, {}], ids=str)
def test_dropout_depends_neither_on_pipeline_nor_on_data_parallelism(
    pool: Pool, with_dropout: list[float], layout: dict[str, Any]
) -> None:
    assert losses(pool, 2, 4, **DROPOUT, **layout) == pytest.approx(with_dropout, rel=1e-6)


def places_of_dropout() -> tuple[int, int]:
    """How often a step draws masks, and how many different places it draws them for."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**DROPOUT)
    clock, drawn = engine.module.clock, []
    seed = clock.seed_of

    def recorded(row: int, *place: Any) -> int:
        drawn.append((clock.sample + row, *place))
        return int(seed(row, *place))

    clock.seed_of = recorded
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    return len(drawn), len(set(drawn))


def test_every_place_of_dropout_has_masks_of_its_own(pool: Pool) -> None:
    blocks, heads, samples = 2, 4, 8
    each_once = samples * ((heads + 2) * blocks + 1)  # attention's heads, its output, the MLP's; the embedding
    assert pool.run(1, places_of_dropout)[0] == (each_once, each_once)


def losses_where_the_kernel_drops(changes: dict[str, Any]) -> list[float]:
    """Losses of two steps with the path of GPUs, where attention's kernel draws its masks: torch's own on a CPU."""
    from trainer.model import attention

    setattr(attention, "draws_its_own_masks", lambda _device: True)  # noqa: B010 - in this rank alone
    return [loss for loss, _ in train(2, {"attention_dropout": 0.1, **changes})]


@pytest.mark.parametrize("changes", [{"pipeline_model_parallel_size": 2, "micro_batch_size": 4}, {}], ids=str)
def test_masks_that_the_kernel_draws_depend_neither_on_pipeline_nor_on_micro_batch_nor_data_parallelism(
    pool: Pool, changes: dict[str, Any]
) -> None:
    alone = pool.run(1, losses_where_the_kernel_drops, {})[0]
    assert pool.run(2, losses_where_the_kernel_drops, changes)[0] == pytest.approx(alone, rel=1e-6)


def test_dropout_drops_and_follows_the_seed(pool: Pool, with_dropout: list[float]) -> None:
    assert with_dropout != pytest.approx(losses(pool, 1, 4), rel=1e-4)
    assert with_dropout == losses(pool, 1, 4, **DROPOUT)


def still_losses(places: list[int]) -> list[float]:
    """Losses of the same batch at learning rate 0, at different places of the training."""
    import torch

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**DROPOUT)
    (tokens, _), labels = step_items(options, parallel, 0)[0]

    def loss_at(place: int) -> float:
        items = [((tokens, torch.tensor([place + 2 * number])), labels) for number in range(4)]
        return train_step(engine, iter(items), 0.0).loss

    return [loss_at(place) for place in places]


def test_dropout_follows_the_samples_place_in_the_training(pool: Pool) -> None:
    first, again, shifted, later = pool.run(1, still_losses, [0, 0, 2, 8])[0]
    assert first == again
    assert len({first, shifted, later}) == 3


def outputs_in_other_orders() -> list[bool]:
    """Whether each micro-batch comes out of the model alike: in order, in reverse order, and asked for twice."""
    import torch

    options, parallel, engine = tiny_engine(**DROPOUT)
    model = engine.module.train()
    inputs = [item[0] for item in step_items(options, parallel, 0)]
    tokens = inputs[0][0]
    inputs = [(tokens, first_sample) for _, first_sample in inputs]  # which differ in their masks alone
    with torch.no_grad():
        in_order = [model(one)[0] for one in inputs]
        reversed_order = [model(one)[0] for one in reversed(inputs)][::-1]
        twice = [(model(one)[0], model(one)[0])[1] for one in inputs]
    assert not torch.equal(in_order[0], in_order[1])
    return [torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(in_order, reversed_order, twice, strict=True)]


def test_a_sample_has_its_masks_in_whatever_order_and_however_often_it_comes(pool: Pool) -> None:
    assert pool.run(1, outputs_in_other_orders)[0] == [True] * 4


def untold_place() -> None:
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**DROPOUT)
    train_step(engine, iter(step_items(options, parallel, 0, training=False)), options.lr)


def test_a_model_with_dropout_does_not_train_on_samples_that_do_not_say_where_they_lie(pool: Pool) -> None:
    with pytest.raises(RanksFailed, match="first sample"):
        pool.run(1, untold_place)


def indices_sent(changes: dict[str, Any]) -> tuple[int, int]:
    """Return the integers that this stage sends to the next one in a training step, and in an evaluation."""
    import torch

    from trainer.engine.build import evaluate_step, train_step

    dist: Any = torch.distributed
    options, parallel, engine = tiny_engine(**changes, pipeline_model_parallel_size=2)
    send, sent = dist.isend, []

    def counted(tensor: Any, rank: int) -> Any:
        sent.append(tensor.dtype == torch.int64)
        return send(tensor, rank)

    dist.isend = counted
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    in_training = sum(sent)
    evaluate_step(engine, iter(step_items(options, parallel, 0, training=False)))
    return in_training, sum(sent) - in_training


@pytest.mark.parametrize(
    ("changes", "in_training"), [({}, 0), (DROPOUT, 4), ({"hidden_dropout": 0.1}, 4), ({"attention_dropout": 0.1}, 4)]
)
def test_the_index_travels_between_stages_only_where_masks_are_drawn(
    pool: Pool, changes: dict[str, Any], in_training: int
) -> None:
    assert pool.run(2, indices_sent, changes)[0] == (in_training, 0)


def interrupted_by_evaluation(changes: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Training losses with evaluations between the steps, and what the evaluations measured."""
    from trainer.engine.build import evaluate_step, train_step

    options, parallel, engine = tiny_engine(**DROPOUT, **changes)
    trained, evaluated = [], []
    for step in range(4):
        evaluated += [evaluate_step(engine, iter(step_items(options, parallel, 0, training=False))) for _ in range(2)]
        items = iter(step_items(options, parallel, step))
        trained.append(train_step(engine, items, options.lr).loss)
    return trained, evaluated


@pytest.mark.parametrize("stages", [1, 2])
def test_evaluation_has_no_dropout_and_changes_nothing(pool: Pool, stages: int) -> None:
    layout = {"pipeline_model_parallel_size": stages}
    trained, evaluated = pool.run(stages, interrupted_by_evaluation, layout)[0]
    assert trained == losses(pool, stages, 4, **DROPOUT, **layout)
    assert evaluated[0::2] == evaluated[1::2]
    assert evaluated[0] == pytest.approx(losses(pool, 1, 1)[0], rel=1e-6)


def evaluated_with_masked_labels(changes: dict[str, Any]) -> float:
    from trainer.engine.build import evaluate_step

    options, parallel, engine = tiny_engine(eod_mask_loss=True, **changes)
    items = step_items(options, parallel, 0, training=False)
    return evaluate_step(engine, iter(items), len(items))


def test_an_evaluation_weighs_every_label_that_counts_alike(pool: Pool) -> None:
    alone = pool.run(1, evaluated_with_masked_labels, {"micro_batch_size": 8})[0]
    split = {"micro_batch_size": 1, "pipeline_model_parallel_size": 2}
    assert pool.run(4, evaluated_with_masked_labels, split) == pytest.approx([alone] * 4, rel=1e-6)


def differing_replicas() -> tuple[list[str], list[str]]:
    """Parameters that tensor ranks should hold alike and do not: after training; after one was spoilt and fixed."""
    import torch
    import torch.distributed as dist

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(
        **ALIBI, **DROPOUT, tensor_model_parallel_size=2, sync_tp_duplicated_parameters=True
    )

    def differing() -> list[str]:
        names = []
        for name, parameter in engine.module.named_parameters():
            if not getattr(parameter, "tensor_model_parallel", False):
                both = [torch.empty_like(parameter) for _ in range(2)]
                dist.all_gather(both, parameter.detach(), group=parallel.tensor_group)
                names += [name] if not torch.equal(*both) else []
        return names

    for step in range(3):
        train_step(engine, iter(step_items(options, parallel, step)), options.lr)
    after_training = differing()
    with torch.no_grad():
        engine.module.get_parameter("3.input_layernorm.weight").add_(float(parallel.tensor_rank))
    assert differing() == ["3.input_layernorm.weight"]
    engine.module.begin_step()
    return after_training, differing()


def test_tensor_ranks_stay_alike_and_are_averaged_when_asked(pool: Pool) -> None:
    assert pool.run(2, differing_replicas) == [([], []), ([], [])]


def steps_at_rate(rate: float, changes: dict[str, Any]) -> list[float]:
    """Losses of three steps on the same batch."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    return [train_step(engine, iter(step_items(options, parallel, 0)), rate).loss for _ in range(3)]


@pytest.mark.parametrize("changes", [{"bf16": True}, {}, {"optimizer": "sgd", "lr": 1.0}], ids=str)
def test_the_learning_rate_is_the_one_given_to_the_step(pool: Pool, changes: dict[str, Any]) -> None:
    still = pool.run(1, steps_at_rate, 0.0, changes)[0]
    assert still[0] == still[1] == still[2]
    moving = pool.run(1, steps_at_rate, 1e-2, changes)[0]
    assert moving[0] == still[0] and moving[2] < still[2]


def test_bf16_trains_like_fp32_in_every_kind_of_parallelism(pool: Pool) -> None:
    layout = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "checkpoint_activations": True}
    half = losses(pool, 8, 5, **ALIBI, **layout, bf16=True)
    full = losses(pool, 1, 5, **ALIBI)
    assert half == pytest.approx(full, rel=2e-2)
    assert half[-1] < half[0] - 0.05


def test_fp16_without_a_gpu_is_refused_by_name(pool: Pool) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    with pytest.raises(RanksFailed, match="--fp16 needs a GPU"):
        pool.run(1, train, 1, {"fp16": True})


@pytest.mark.gpu
def test_fp16_trains_with_loss_scaling(pool: Pool) -> None:
    measured = losses(pool, 1, 40, fp16=True, initial_loss_scale=65536)
    assert measured[-1] < measured[0] - 0.3


def growing_losses(batches: list[int], changes: dict[str, Any]) -> list[float]:
    """Losses of steps whose batch grows, as with --rampup-batch-size."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    consumed, measured = 0, []
    for batch in batches:
        engine.set_train_batch_size(batch)
        items = iter(batch_items(options, parallel, consumed, batch))
        measured.append(train_step(engine, items, options.lr).loss)
        consumed += batch
    return measured


def test_a_growing_batch_has_the_same_losses_in_every_layout(pool: Pool) -> None:
    batches = [4, 4, 8, 12, 12]
    alone = pool.run(1, growing_losses, batches, DROPOUT)[0]
    split = pool.run(4, growing_losses, batches, {**DROPOUT, "pipeline_model_parallel_size": 2})
    assert all(measured == pytest.approx(alone, rel=1e-6) for measured in split)


SWITCHES: list[dict[str, Any]] = [
    {},
    {"apply_residual_connection_post_layernorm": True},
    {"no_bias_gelu_fusion": True},
    {"layernorm_epsilon": 1e-3},
    {"embed_layernorm": True},
    {"seed": 7},
]


def first_losses() -> list[float]:
    """Loss of the first step under each switch; weights large enough to see it."""
    return [train_step_once(*tiny_engine(init_method_std=0.5, **changes)) for changes in SWITCHES]


def train_step_once(options: Any, parallel: Any, engine: Any) -> float:
    from trainer.engine.build import train_step

    return float(train_step(engine, iter(step_items(options, parallel, 0)), options.lr).loss)


def test_options_of_the_model_change_its_loss(pool: Pool) -> None:
    measured = pool.run(1, first_losses)[0]
    assert len(set(measured)) == len(SWITCHES)


def groups_by_name() -> dict[str, tuple[float, list[str]]]:
    from tests.distributed.tiny_training import tiny_options
    from trainer.engine.build import Vocabulary, build_model, initialize
    from trainer.optim.fused_adam import parameter_groups

    model = build_model(
        options := tiny_options(1, embed_layernorm=True, num_layers=1), initialize(options), Vocabulary.unpadded(64)
    )
    return {group["name"]: (group["weight_decay"], group["names"]) for group in parameter_groups(model, 0.1)}


def test_neither_biases_nor_layernorms_decay(pool: Pool) -> None:
    groups = pool.run(1, groups_by_name)[0]
    assert groups["decay"] == (
        0.1,
        [
            "tied_modules.embed.word_embeddings.weight",
            "tied_modules.embed.position_embeddings.weight",
            "3.self_attention.query_key_value.weight",
            "3.self_attention.dense.weight",
            "3.mlp.dense_h_to_4h.weight",
            "3.mlp.dense_4h_to_h.weight",
        ],
    )
    assert groups["no_decay"] == (
        0.0,
        [
            "tied_modules.embed.word_embeddings.norm.weight",
            "tied_modules.embed.word_embeddings.norm.bias",
            "3.input_layernorm.weight",
            "3.input_layernorm.bias",
            "3.self_attention.query_key_value.bias",
            "3.self_attention.dense.bias",
            "3.post_attention_layernorm.weight",
            "3.post_attention_layernorm.bias",
            "3.mlp.dense_h_to_4h.bias",
            "3.mlp.dense_4h_to_h.bias",
            "5.weight",
            "5.bias",
        ],
    )


def parameter_norms() -> float:
    import os

    from trainer.engine.build import parameters_norm

    size = 2 if int(os.environ["WORLD_SIZE"]) > 1 else 1
    layout = {"tensor_model_parallel_size": size, "pipeline_model_parallel_size": size}
    _, parallel, engine = tiny_engine(**layout)
    return parameters_norm(engine, parallel)


def test_the_norm_of_all_parameters_counts_each_once(pool: Pool) -> None:
    alone = pool.run(1, parameter_norms)[0]
    assert pool.run(4, parameter_norms) == pytest.approx([alone] * 4, rel=1e-6)


def saved_layers(folder: str, changes: dict[str, Any]) -> None:
    _, _, engine = tiny_engine(**changes)
    engine.save_checkpoint(folder, tag="step")


@pytest.mark.parametrize("pipeline", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_layer_files_have_megatrons_numbers_and_names(pool: Pool, tmp_path: Path, pipeline: int) -> None:
    import torch

    layout = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": pipeline}
    pool.run(2 * pipeline, saved_layers, str(tmp_path), {**layout, "embed_layernorm": True, "num_layers": 2})
    names = sorted(file.name for file in (tmp_path / "step").glob("layer_*"))
    assert names == [f"layer_{layer:02d}-model_{rank:02d}-model_states.pt" for layer in (1, 3, 4, 6) for rank in (0, 1)]

    def shapes(layer: int) -> dict[str, tuple[int, ...]]:
        loaded = torch.load(tmp_path / "step" / f"layer_{layer:02d}-model_01-model_states.pt", weights_only=True)
        return {name: tuple(value.shape) for name, value in loaded.items()}

    assert shapes(1) == {
        "word_embeddings.weight": (32, 32),
        "word_embeddings.norm.weight": (32,),
        "word_embeddings.norm.bias": (32,),
        "position_embeddings.weight": (16, 32),
    }
    assert shapes(4) == {
        "input_layernorm.weight": (32,),
        "input_layernorm.bias": (32,),
        "self_attention.query_key_value.weight": (48, 32),
        "self_attention.query_key_value.bias": (48,),
        "self_attention.dense.weight": (32, 16),
        "self_attention.dense.bias": (32,),
        "post_attention_layernorm.weight": (32,),
        "post_attention_layernorm.bias": (32,),
        "mlp.dense_h_to_4h.weight": (64, 32),
        "mlp.dense_h_to_4h.bias": (64,),
        "mlp.dense_4h_to_h.weight": (32, 64),
        "mlp.dense_4h_to_h.bias": (32,),
    }
    assert shapes(6) == {"weight": (32,), "bias": (32,)}
