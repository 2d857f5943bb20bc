"""The identity of a training: which options must not change, and which may, with their values.

`ModelShape.facts` (names and sizes of the weights), `formats.resumable.layout_facts` (the split into files) and
`schedule` (the learning rate) are separate parts of a manifest. Pure, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.model_options import has_tanh_gelu, is_rotary, rotary_scaling, uses_gelu


@dataclass(frozen=True)
class Fact:
    """One fact about a training in its manifest."""

    name: str  # in a manifest, and for --allow-changed
    said: str  # its name in messages: the option that sets it
    why: str  # why a change makes it another training, in a sentence


#: A change of one of these makes another training: refused, unless --allow-changed names it.
TRAINING: tuple[Fact, ...] = (
    Fact("seed", "--seed", "It decides the order of the samples and dropout."),
    Fact("seq_length", "--seq-length", "It decides what a sample is: all counters are in samples."),
    Fact("gelu", "the GeLU form (--openai-gelu, --no-bias-gelu-fusion)", "The weights were trained for the other."),
    Fact("layernorm_epsilon", "--layernorm-epsilon", "The weights were trained for the other."),
    Fact(
        "apply_residual_connection_post_layernorm",
        "--apply-residual-connection-post-layernorm",
        "The weights were trained for the other.",
    ),
    Fact("rotary_base", "--rotary-base", "The weights were trained for the other."),
    Fact("rotary_percent", "--rotary-percent", "The weights were trained for the other."),
    Fact("rotary_scaling", "the stretch of rotary positions", "The weights were trained for the other."),
    Fact("window_size", "--window-size", "The weights were trained for the other."),
    Fact("reset_attention_mask", "--reset-attention-mask", "It decides what a token attends to."),
    Fact("reset_position_ids", "--reset-position-ids", "It decides the positions of tokens."),
    Fact("apply_layernorm_1p", "--apply-layernorm-1p", "The weights were trained for the other."),
    Fact("embedding_scale", "--embedding-scale", "The weights were trained for the other."),
    Fact("eod_mask_loss", "--eod-mask-loss", "It decides which tokens the loss is of."),
    Fact(
        "train_data",
        "the training data",
        "By content, not by path: which documents of which files, in which proportions.",
    ),
    Fact("tokenizer", "the tokenizer", "By content, not by path: the same tokens would mean something else."),
    Fact(
        "sample_order",
        "the order of the samples",
        "All that decides it together: a length that needs more passes over the data shuffles the samples differently.",
    ),
)

#: Later facts that are also in the checkpoint of an imported model.
OF_MODEL = ("rotary_base", "rotary_percent", "rotary_scaling", "window_size", "apply_layernorm_1p", "embedding_scale")

#: Settings that may change. A change is printed and recorded. By option, in the order of the messages.
SETTINGS: tuple[str, ...] = (
    "clip_grad",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "sgd_momentum",
    "loss_scale",
    "initial_loss_scale",
    "min_loss_scale",
    "loss_scale_window",
    "hysteresis",
    "accumulate_allreduce_grads_in_fp32",
    "z_loss_coeff",
    "attention_dropout",
    "hidden_dropout",
    "sync_tp_duplicated_parameters",
    "deterministic",
    "micro_batch_size",
    "global_batch_size",
    "rampup_batch_size",
    "train_samples",
    "train_iters",
    "train_tokens",
    "eval_interval",
    "eval_iters",
    "separate_last_epoch_threshold",
    "train_range_to_skip",
    "skip_train_iteration_range",
    "spike_guard",
    "spike_guard_deviations",
    "spike_guard_window",
    "spike_guard_patience",
    "spike_guard_margin",
    "spike_guard_rollbacks",
)
#: Later settings, with their values in older trainers, whose checkpoints do not have them.
ONCE_UNKNOWN: dict[str, Any] = {
    "z_loss_coeff": 0.0,
    "train_range_to_skip": None,
    "skip_train_iteration_range": None,
    "spike_guard": None,
}
#: Data that is evaluated on: identified by content like the training data, printed like a setting.
EVALUATION_DATA: tuple[str, ...] = ("valid_data", "test_data")

#: Settings that apply only with these options.
_ONLY_WITH = {
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_eps"), ("optimizer", "adam")),
    "sgd_momentum": ("optimizer", "sgd"),
    **dict.fromkeys(
        (
            *("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"),
            "accumulate_allreduce_grads_in_fp32",
        ),
        ("fp16", True),
    ),
}


def training_facts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of TRAINING that follow from the options alone."""
    return {
        "seed": options["seed"],
        "seq_length": options["seq_length"],
        **({"gelu": "tanh" if has_tanh_gelu(options) else "erf"} if uses_gelu(options) else {}),
        **(_rotary_facts(options) if is_rotary(options) else {}),
        **{
            name: options[name]
            for name in ("layernorm_epsilon", "apply_residual_connection_post_layernorm", "eod_mask_loss")
        },
        "window_size": options["window_size"] or "none",
        **{name: options[name] for name in ("reset_attention_mask", "reset_position_ids")},
        **{name: options[name] for name in ("apply_layernorm_1p", "embedding_scale")},
    }


def _rotary_facts(options: Mapping[str, Any]) -> dict[str, Any]:
    scaling = str(rotary_scaling(options) or "none")
    return {**{name: options[name] for name in ("rotary_base", "rotary_percent")}, "rotary_scaling": scaling}


def settings_in_force(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of SETTINGS that apply with the options."""
    found = {}
    for name in SETTINGS:
        key, value = _ONLY_WITH.get(name, (None, None))
        if key is None or options[key] == value:
            found[name] = options[name]
    return found
