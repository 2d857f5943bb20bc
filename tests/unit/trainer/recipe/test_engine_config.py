"""DeepSpeed's configuration from options."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.facts import missing
from trainer.formats.checkpoint.changes import layout_facts
from trainer.recipe.engine_config import engine_config, merged_with_file, stage_notices
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.options import Options, parse, to_arguments


def options(**changes: Any) -> Options:
    small = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 32, "micro_batch_size": 2}
    rest = {"lr": 1e-3, "train_samples": 1000, "vocab_size": 100, "global_batch_size": 64}
    return parse(to_arguments({**small, **rest, **changes}), world_size=2)


def test_the_batch_is_the_one_after_the_ramp_whose_own_the_loop_sets() -> None:
    assert engine_config(options())["train_batch_size"] == 64
    assert engine_config(options(rampup_batch_size=[16, 16, 100]))["train_batch_size"] == 64


def test_bf16_accumulates_in_fp32_and_shards() -> None:
    config = engine_config(options(bf16=True, clip_grad=0.5))
    assert config["bf16"] == {"enabled": True, "immediate_grad_update": True}
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["communication_data_type"] == "fp32"
    assert config["zero_optimization"]["stage"] == 1
    assert config["gradient_clipping"] == 0.5
    assert "fp16" not in config


def test_fp16_scales_the_loss_dynamically_unless_told() -> None:
    assert engine_config(options(fp16=True))["fp16"]["loss_scale"] == 0
    assert engine_config(options(fp16=True))["fp16"]["initial_scale_power"] == 32
    fixed = engine_config(options(fp16=True, loss_scale=1024.0, initial_loss_scale=4096))["fp16"]
    assert (fixed["loss_scale"], fixed["initial_scale_power"]) == (1024.0, 12)


def scales(given: Options, overflows: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """DeepSpeed's scale after each step, with the engine's configuration; `x` overflows, `.` does not."""
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    monkeypatch.setattr(loss_scaler, "dist", SimpleNamespace(get_rank=lambda: 1))  # rank 0 logs what happens
    config = DeepSpeedFP16Config(**engine_config(given)["fp16"])
    dynamic = config.loss_scale == 0
    scaler = loss_scaler.CreateLossScaler(torch.half, config.loss_scale, dynamic, config.dynamic_loss_scale_args())
    found = []
    for step in overflows:
        scaler.update_scale(step == "x")
        found.append(float(scaler.loss_scale))
    return found


def test_the_loss_scale_goes_through_its_states_as_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first overflows up to the hysteresis are forgiven, then each halves; so many steps without one double it."""
    quick = options(fp16=True, initial_loss_scale=64, loss_scale_window=3, hysteresis=2, min_loss_scale=4)
    assert scales(quick, "xxx", monkeypatch) == [64, 32, 16]
    assert scales(quick, "...", monkeypatch)[:2] == [64, 64]
    grown = scales(quick, "x.....", monkeypatch)
    assert grown == [64, 64, 64, 64, 128, 128]
    assert scales(quick, "xxxxx", monkeypatch) == [64, 32, 16, 8, 4]
    strict = options(fp16=True, initial_loss_scale=64, loss_scale_window=3, hysteresis=1)
    assert scales(strict, "xx", monkeypatch) == [32, 16]


def test_a_fixed_loss_scale_never_changes_and_one_at_its_least_ends_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed = options(fp16=True, loss_scale=128.0)
    assert scales(fixed, "x.x", monkeypatch) == [128, 128, 128]
    least = options(fp16=True, initial_loss_scale=8, hysteresis=1, min_loss_scale=8)
    with pytest.raises(Exception, match="minimum"):
        scales(least, "x", monkeypatch)


def test_fp16_adds_gradients_up_in_fp32_when_asked() -> None:
    assert not {"data_types", "communication_data_type"} & engine_config(options(fp16=True)).keys()
    config = engine_config(options(fp16=True, accumulate_allreduce_grads_in_fp32=True))
    assert config["data_types"] == {"grad_accum_dtype": "fp32"} and config["communication_data_type"] == "fp32"


def test_the_configuration_is_plain_json() -> None:
    config = engine_config(options(bf16=True))
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize(
    ("vocab_size", "changes", "padded"),
    [
        (50257, {}, 50304),  # 393 x 128
        (50257, {"tensor_model_parallel_size": 2}, 50432),  # 197 x 256
        (250680, {"pad_vocab_size_to": 250880, "vocab_size": None, "tokenizer_name_or_path": "t"}, 250880),
    ],
)
def test_the_vocabulary_is_padded_for_every_rank_alike(vocab_size: int, changes: dict[str, Any], padded: int) -> None:
    assert Vocabulary.of(vocab_size, options(**changes)) == Vocabulary(vocab_size, padded)


def test_a_vocabulary_larger_than_its_padded_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--pad-vocab-size-to 128\b.*\b300\b"):
        Vocabulary.of(300, options(pad_vocab_size_to=128))


def test_a_deepspeed_file_adds_to_the_options_and_does_not_overrule_them() -> None:
    loaded = {
        "train_micro_batch_size_per_gpu": 7,
        "train_batch_size": 7,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 9.0,
        "zero_optimization": {"stage": 0, "overlap_comm": True},
        "bf16": {"enabled": True},
        "steps_per_print": 5,
        "wall_clock_breakdown": True,
    }
    merged = merged_with_file(options(bf16=True), loaded)
    assert (merged["train_micro_batch_size_per_gpu"], merged["train_batch_size"]) == (2, 64)
    assert merged["gradient_clipping"] == 1.0
    assert "gradient_accumulation_steps" not in merged
    assert merged["zero_optimization"]["stage"] == 1 and merged["zero_optimization"]["overlap_comm"]
    assert (merged["steps_per_print"], merged["wall_clock_breakdown"]) == (5, True)
    with pytest.raises(ValueError, match=r"\bbf16\b.*--bf16"):
        merged_with_file(options(), loaded)


@pytest.mark.parametrize("precision", [{"bf16": True}, {"fp16": True}, {}], ids=["bf16", "fp16", "fp32"])
def test_stage_0_is_the_training_of_stage_1(precision: dict[str, Any]) -> None:
    asked, usual = (options(zero_stage=stage, **precision) for stage in (0, 1))
    assert engine_config(asked) == engine_config(usual)
    assert layout_facts(asked, 4) == layout_facts(usual, 4)
    (said,) = stage_notices(asked)
    assert said.startswith("--zero-stage 0: ")


def test_stage_0_of_the_file_is_printed_too() -> None:
    bloom = options(bf16=True, zero_stage=0)
    file = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
    assert merged_with_file(bloom, file)["zero_optimization"]["stage"] == 1
    said = stage_notices(bloom, file)
    assert len(said) == 2
    assert all(not missing(line, "stage 0", "stage 1") for line in said)
    assert stage_notices(options(bf16=True), {"bf16": {"enabled": True}}) == []
    (notice,) = stage_notices(options(), {"zero_optimization": {"stage": 2}})
    assert not missing(notice, "stage 2", "stage 1")


@pytest.mark.parametrize("switch", ["round_robin_gradients", "elastic_checkpoint"])
def test_a_deepspeed_file_that_cuts_states_another_way_is_refused_by_the_switch(switch: str) -> None:
    with pytest.raises(ValueError, match=rf"zero_optimization\.{switch}"):
        merged_with_file(options(), {"zero_optimization": {"stage": 1, switch: True}})
    assert merged_with_file(options(), {"zero_optimization": {"stage": 1, switch: False}})
