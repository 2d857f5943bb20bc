"""DeepSpeed's configuration from the trainer's options. `opsctl` stores it as engine.json for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: DeepSpeed's switches that move parameters to other places of a partition, where a checkpoint's reader does not
#: look.
_OTHER_CUTS = ("round_robin_gradients", "elastic_checkpoint")


def engine_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's JSON configuration for an `Options`, or a mapping of all keys with `global_batch_size`.

    Gradients are accumulated in fp32 for bf16, which selects DeepSpeed's BF16_Optimizer with ZeRO stage 1. The
    training loop sets the learning rate, so there is no scheduler.
    """
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": options["micro_batch_size"],
        # During a ramp-up the training loop sets the size from the samples consumed: its start may fit fewer
        # replicas.
        "train_batch_size": options["global_batch_size"],
        "gradient_clipping": float(options["clip_grad"]),
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 1,  # --zero-stage 0 means the same
            "reduce_bucket_size": options["zero_reduce_bucket_size"],
            "allgather_bucket_size": options["zero_allgather_bucket_size"],
        },
    }
    if options["bf16"]:
        # Each gradient is added to the fp32 sum at once and freed: never all of them in both types.
        config["bf16"] = {"enabled": True, "immediate_grad_update": True}
        config |= _gradients_in_fp32()
    if options["fp16"]:
        config["fp16"] = _loss_scaling(options)
        if options["accumulate_allreduce_grads_in_fp32"]:
            config |= _gradients_in_fp32()
    return config


def merged_with_file(options: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options' configuration, extended by a DeepSpeed file.

    For batch, precision, clipping and the ZeRO stage, the options take precedence. Raises ValueError (one line) if the
    file enables another precision, or a setting that changes the partitions of a checkpoint.
    """
    for precision in ("bf16", "fp16"):
        section = loaded.get(precision)
        if isinstance(section, Mapping) and section.get("enabled") and not options[precision]:
            raise ValueError(f"it enables {precision}, but --{precision} is not given: give it, or change the file")
    section = loaded.get("zero_optimization")
    for switch in _OTHER_CUTS:
        if isinstance(section, Mapping) and section.get(switch):
            raise ValueError(
                f"zero_optimization.{switch} distributes states in a way that our checkpoints do not support: remove it"
            )
    made = engine_config(options)
    merged = {**made, **loaded}
    for key in ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping", "pipeline"):
        merged[key] = made[key]
    merged.pop("gradient_accumulation_steps", None)  # follows from the three above; a ramp changes it
    for key in ("bf16", "fp16", "data_types", "zero_optimization"):
        from_file = loaded.get(key)
        if key in made or from_file is not None:
            merged[key] = {**(from_file or {}), **made.get(key, {})}
    return merged


def stage_notices(options: Mapping[str, Any], loaded: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line for each ZeRO stage, by option or by the DeepSpeed file `loaded`, that is trained as stage 1.

    BigScience's configurations for bf16 request stage 0, at which its DeepSpeed sharded optimizer states nevertheless.
    """
    section = (loaded or {}).get("zero_optimization")
    in_file = section.get("stage") if isinstance(section, Mapping) else None
    asked = {"--zero-stage": options["zero_stage"], f"--deepspeed-config {options['deepspeed_config']}: stage": in_file}
    sharded = "optimizer states are sharded over DP at stage 0 too, so it is trained as stage 1, with the same results"
    return [
        f"{what} {stage}: {sharded if stage == 0 else 'it is trained as stage 1'}"
        for what, stage in asked.items()
        if stage not in (1, None)
    ]


def _gradients_in_fp32() -> dict[str, Any]:
    """Return settings for fp32 gradients over micro-batches and replicas. DeepSpeed's default communicates 16 bits."""
    return {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}


def _loss_scaling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's fp16 section. A scale of 0 is dynamic and starts at 2 to the given power."""
    return {
        "enabled": True,
        "loss_scale": options["loss_scale"] or 0,
        "initial_scale_power": options["initial_loss_scale"].bit_length() - 1,
        "min_loss_scale": options["min_loss_scale"],
        "loss_scale_window": options["loss_scale_window"],
        "hysteresis": options["hysteresis"],
    }
