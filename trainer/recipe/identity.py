"""What among the options makes a training this one, and what may change on its way: the tables, and their values.

What decides the weights' names and sizes is `ModelShape.facts`, the cut into files `formats.resumable.layout_facts`,
and the learning rate `schedule`: all of them stand in a manifest by themselves. Pure, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.model_options import has_tanh_gelu, is_rotary, uses_gelu


@dataclass(frozen=True)
class Fact:
    """One thing that a manifest says of its training."""

    name: str  # in a manifest, and for --allow-changed
    said: str  # how a person is told of it: the option that sets it
    why: str  # another training with another one, in a sentence


#: Another one of these is another training: refused, unless --allow-changed names it.
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
        "All that decides it together: a length that needs more passes over the data shuffles them anew.",
    ),
)

#: What may change on the way; a change is said and recorded. By option, in the order in which they are said.
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
#: Settings that trainers once had not, and what they did: a checkpoint of theirs does not say it.
ONCE_UNKNOWN: dict[str, Any] = {
    "train_range_to_skip": None,
    "skip_train_iteration_range": None,
    "spike_guard": None,
}
#: Evaluated on, not trained on: by content like the training data, and said like a setting.
EVALUATION_DATA: tuple[str, ...] = ("valid_data", "test_data")

#: Settings that count only under these options.
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
    """Those of TRAINING that the options alone decide."""
    return {
        "seed": options["seed"],
        "seq_length": options["seq_length"],
        **({"gelu": "tanh" if has_tanh_gelu(options) else "erf"} if uses_gelu(options) else {}),
        **({name: options[name] for name in ("rotary_base", "rotary_percent")} if is_rotary(options) else {}),
        **{
            name: options[name]
            for name in ("layernorm_epsilon", "apply_residual_connection_post_layernorm", "eod_mask_loss")
        },
    }


def settings_in_force(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of SETTINGS that count under the options."""
    found = {}
    for name in SETTINGS:
        key, value = _ONLY_WITH.get(name, (None, None))
        if key is None or options[key] == value:
            found[name] = options[name]
    return found
