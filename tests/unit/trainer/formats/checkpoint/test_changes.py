"""Every difference between a checkpoint and its resumption is found, named, and refused or printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.facts import missing
from trainer.formats.checkpoint.changes import Identity, change_text, changes, refuse_other_training, training_changes
from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.errors import CheckpointError
from trainer.recipe.identity import SETTINGS, TRAINING
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.options import BY_KEY, Options, parse, to_arguments

SHAPE = {
    **{"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16, "micro_batch_size": 1},
    **{"vocab_size": 64, "lr": 1e-3, "global_batch_size": 8, "train_samples": 800},
}
SOURCE = {"documents": 60, "tokens": 4_000, "first_document": 0, "last_document": 48, "xxh64": "a" * 16}
DATA = {"train_data": [SOURCE], "tokenizer": "b" * 16, "sample_order": {"16": "c", "64": "d"}, "valid_data": []}
SCHEDULE = LearningRateSchedule(1e-3, 0.0, 0, 800)


def options(ranks: int = 1, **changed: Any) -> Options:
    return parse(to_arguments({**SHAPE, **changed}), ranks)


def identity(data: dict[str, Any] | None = None, **changed: Any) -> Identity:
    return Identity.of(options(**changed), 1, Vocabulary.unpadded(64), DATA if data is None else data)


def manifest(of: Identity, schedule: LearningRateSchedule = SCHEDULE) -> Manifest:
    counters: dict[str, Any] = {"iteration": 1, "consumed_train_samples": 8, "consumed_train_tokens": 128}
    return Manifest(
        **counters,
        consumed_valid_samples=0,
        precision=of.precision,
        layout=of.layout,
        model=of.model,
        learning_rate=vars(schedule),
        files={},
        training=of.training,
        settings=of.settings,
    )


def test_nothing_differs_from_itself() -> None:
    assert changes(manifest(identity()), identity(), SCHEDULE) == ()


#: Another value for each fact that the options decide.
OTHERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "seq_length": {"seq_length": 8, "max_position_embeddings": 16},
    "gelu": {"no_bias_gelu_fusion": True},
    "layernorm_epsilon": {"layernorm_epsilon": 1e-6},
    "apply_residual_connection_post_layernorm": {"apply_residual_connection_post_layernorm": True},
    "eod_mask_loss": {"eod_mask_loss": True},
    "rotary_base": {"rotary_base": 500_000.0},
    "rotary_percent": {"rotary_percent": 0.5},
    "rotary_scaling": {"use_rope_scaling": True},
    "window_size": {"window_size": "3,0"},
    "reset_attention_mask": {"reset_attention_mask": True},
    "reset_position_ids": {"reset_position_ids": True},
    "apply_layernorm_1p": {"apply_layernorm_1p": True},
    "embedding_scale": {"embedding_scale": 4.0},
}
#: What a training is that has the fact at all, where not every one has.
OWNERS: dict[str, dict[str, Any]] = {
    name: {"position_embedding_type": "rope"} for name in ("rotary_base", "rotary_percent", "rotary_scaling")
}
OTHER_DATA: dict[str, dict[str, Any]] = {
    "train_data": {"train_data": [{**SOURCE, "xxh64": "0" * 16}]},
    "tokenizer": {"tokenizer": "0" * 16},
    "sample_order": {"sample_order": {"16": "c", "64": "e"}},
}


@pytest.mark.parametrize("name", [fact.name for fact in TRAINING])
def test_each_fact_of_a_training_is_refused_unless_named(name: str) -> None:
    owner = OWNERS.get(name, {})
    before, other = identity(**owner), identity({**DATA, **OTHER_DATA.get(name, {})}, **owner, **OTHERS.get(name, {}))
    (change,) = training_changes(manifest(before), other.training)
    assert (change.name, change.before, change.now) == (name, before.training[name], other.training[name])
    with pytest.raises(CheckpointError, match=rf"/c\b.*--allow-changed {name}\b") as refused:
        refuse_other_training(Path("/c"), manifest(before), other.training, ["seed"] if name != "seed" else [])
    assert change_text(change) in str(refused.value)
    refuse_other_training(Path("/c"), manifest(before), other.training, [name])


def test_what_makes_no_difference_to_a_model_is_no_fact_of_it() -> None:
    assert not {"rotary_base", "rotary_percent"} & identity().training.keys()
    assert "gelu" not in identity(glu_activation="swiglu").training
    assert "gelu" in identity(glu_activation="geglu").training


def test_all_differences_are_named_at_once() -> None:
    with pytest.raises(CheckpointError, match=r"--seed 1234 -> 1; --layernorm-epsilon .*--allow-changed seed layer"):
        refuse_other_training(Path("/c"), manifest(identity()), identity(seed=1, layernorm_epsilon=1e-6).training, ())


#: Another value for each setting; those that count only under an option, with it.
OTHER_SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "clip_grad": ({}, 0.5),
    "weight_decay": ({}, 0.1),
    "adam_beta1": ({}, 0.8),
    "adam_beta2": ({}, 0.95),
    "adam_eps": ({}, 1e-6),
    "sgd_momentum": ({"optimizer": "sgd"}, 0.5),
    "loss_scale": ({"fp16": True}, 128.0),
    "initial_loss_scale": ({"fp16": True}, 4096),
    "min_loss_scale": ({"fp16": True}, 2.0),
    "loss_scale_window": ({"fp16": True}, 500),
    "hysteresis": ({"fp16": True}, 3),
    "accumulate_allreduce_grads_in_fp32": ({"fp16": True}, True),
    "z_loss_coeff": ({}, 1e-4),
    "attention_dropout": ({}, 0.0),
    "hidden_dropout": ({}, 0.0),
    "sync_tp_duplicated_parameters": ({}, True),
    "deterministic": ({}, True),
    "micro_batch_size": ({}, 2),
    "global_batch_size": ({}, 16),
    "rampup_batch_size": ({}, [4, 4, 100]),
    "train_samples": ({}, 900),
    "train_iters": ({"train_samples": None, "train_iters": 10}, 11),
    "train_tokens": ({}, 5_000),
    "eval_interval": ({}, 500),
    "eval_iters": ({}, 5),
    "separate_last_epoch_threshold": ({}, 0.95),
    "train_range_to_skip": ({}, [10, 20]),
    "skip_train_iteration_range": ({}, ["10-20"]),
    "spike_guard": ({}, ["log"]),
    "spike_guard_deviations": ({}, 6.0),
    "spike_guard_window": ({}, 256),
    "spike_guard_patience": ({}, 4),
    "spike_guard_margin": ({}, 100),
    "spike_guard_rollbacks": ({}, 0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_may_change_and_is_told_with_its_option(name: str) -> None:
    under, value = OTHER_SETTINGS[name]
    before, now = identity(**under), identity(**{**under, name: value})
    (change,) = changes(manifest(before), now, SCHEDULE)
    assert (change.name, change.before, change.now) == (name, before.settings[name], value)
    assert change_text(change).startswith(f"{BY_KEY[name].name} ")


def test_ranges_that_are_skipped_since_a_trainer_that_could_not_are_a_change() -> None:
    now = identity(train_range_to_skip=[10, 20])
    unknown = {
        name: value
        for name, value in identity().settings.items()
        if not name.startswith(("train_range", "skip", "spike"))
    }
    older = msgspec.structs.replace(manifest(identity()), settings=unknown)
    assert [change_text(change) for change in changes(older, now, SCHEDULE)] == ["--train-range-to-skip none -> 10 20"]
    assert changes(msgspec.structs.replace(older, settings={}), now, SCHEDULE) == ()  # of the first schema


def test_layout_precision_and_schedule_are_told_too() -> None:
    before = manifest(identity(bf16=True))
    now = Identity.of(options(4, tensor_model_parallel_size=2, optimizer="sgd"), 4, Vocabulary.unpadded(64), DATA)
    told = [
        change_text(change) for change in changes(before, now, replace(SCHEDULE, max_lr=5e-4), with_optimizer=False)
    ]
    assert told == [
        "precision bf16 -> fp32",
        "--tensor-model-parallel-size 1 -> 2",
        "data parallel size 1 -> 2",
        "--optimizer adam -> sgd",
        "--lr 0.001 -> 0.0005",
        told[5],
    ]
    assert "optimizer" in told[5]


def test_what_one_side_does_not_know_is_no_difference() -> None:
    without = identity({})
    assert changes(manifest(without), identity(), SCHEDULE) == changes(manifest(identity()), without, SCHEDULE) == ()
    looked = [{key: value for key, value in SOURCE.items() if key != "xxh64"}]
    assert training_changes(manifest(identity()), {"train_data": looked, "tokenizer": None}) == ()
    assert training_changes(manifest(identity()), {"sample_order": {"16": "c"}}) == ()


def test_other_evaluation_data_is_a_change_that_is_told() -> None:
    group = [{"group": "valid", "sources": [{**SOURCE, "share": 0.25}]}]
    (change,) = changes(manifest(identity()), identity({**DATA, "valid_data": group}), SCHEDULE)
    assert not missing(
        change_text(change), "none ->", "valid: 0.25", "0", "48", "60", "4,000 tokens", f"xxh64 {'a' * 16}"
    )


def test_a_change_says_lists_and_nothing_as_people_type_them() -> None:
    assert change_text(Change("rampup_batch_size", None, [4, 4, 100])) == "--rampup-batch-size none -> 4 4 100"
