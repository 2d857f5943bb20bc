"""Read DeepSpeed's JSON file as options: as in DeepSpeed, it counts where it and the command line differ. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from opsctl.run.init.draft import Draft
from trainer.recipe.options import BY_KEY

#: The file's sizes of a batch, and the options for the same.
_BATCHES = {"train_micro_batch_size_per_gpu": "micro_batch_size", "train_batch_size": "global_batch_size"}
_SCALING = ("loss_scale_window", "hysteresis", "min_loss_scale")
_BUCKETS = {"reduce_bucket_size": "zero_reduce_bucket_size", "allgather_bucket_size": "zero_allgather_bucket_size"}
#: Read below, following from the options, or printed only.
_READ = frozenset(
    (
        *("gradient_clipping", "zero_optimization", "fp16", "bf16", "curriculum_learning", *_BATCHES),
        *("gradient_accumulation_steps", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"),
        *("prescale_gradients", "communication_data_type", "data_types"),
    )
)
_ZERO_READ = frozenset(
    ("stage", "contiguous_gradients", "overlap_comm", "reduce_scatter", "allgather_partitions", *_BUCKETS)
)


def take_engine(draft: Draft, text: str, line: int) -> None:
    """Set the options of the file, whose text begins on `line`; note entries that are not taken."""
    try:
        given = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        draft.note(line, f"DeepSpeed's file is no JSON once variables are put in ({error}): none of it is taken")
        return
    if not isinstance(given, Mapping):
        draft.note(line, "DeepSpeed's file is no JSON object: none of it is taken")
        return
    remark = f"line {line}: DeepSpeed's file"
    for name, key in _BATCHES.items():
        size, own = given.get(name), draft.value("trainer", key)
        if isinstance(size, int) and own is None:
            draft.set("trainer", key, size, remark)
        elif isinstance(size, int) and own != size:
            draft.note(line, f"{name} {size} in DeepSpeed's file: {BY_KEY[key].name} {own} counts")
    clip = given.get("gradient_clipping")
    if isinstance(clip, (int, float)) and clip != draft.value("trainer", "clip_grad"):
        draft.set("trainer", "clip_grad", float(clip), remark)
    for name in ("fp16", "bf16"):
        if _section(given, name).get("enabled") and not draft.value("trainer", name):
            draft.set("trainer", name, True, remark)
    if draft.value("trainer", "fp16") and isinstance(given.get("fp16"), Mapping):
        _loss_scale(draft, given["fp16"], line)
    _zero(draft, _section(given, "zero_optimization"), line)
    if _section(given, "curriculum_learning").get("enabled"):
        draft.note(line, "curriculum_learning in DeepSpeed's file: every sequence has its whole length here at once")
    if rest := [name for name in given if name not in _READ]:
        draft.note(line, f"DeepSpeed's file has entries that are not needed or not known here: {', '.join(rest)}")


def _number(text: str) -> float | int:
    """Raise ValueError for a number that a run file cannot hold."""
    number = int(text) if text.lstrip("-").isdigit() and len(text) < 19 else float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name)
    return found if isinstance(found, Mapping) else {}


def _loss_scale(draft: Draft, section: Mapping[str, Any], line: int) -> None:
    remark = f"line {line}: DeepSpeed's file"
    for key in _SCALING:
        if isinstance(section.get(key), (int, float)):
            draft.set("trainer", key, BY_KEY[key].type(section[key]), remark)
    # DeepSpeed's default is 0, a dynamic scale, whatever the script's option is.
    scale, power = section.get("loss_scale", 0 if section.get("enabled") else None), section.get("initial_scale_power")
    if scale == 0:
        given = draft.tables["trainer"].pop("loss_scale", None)
        if given is not None:
            draft.note(line, f"--loss-scale {given.value:g}: DeepSpeed's file has a dynamic one, which counted")
    elif isinstance(scale, (int, float)):
        draft.set("trainer", "loss_scale", float(scale), remark)
    if isinstance(power, int) and 0 <= power < 64:
        draft.set("trainer", "initial_loss_scale", 2**power, f"{remark}, 2 to the power of {power}")


def _zero(draft: Draft, section: Mapping[str, Any], line: int) -> None:
    for name, key in _BUCKETS.items():
        if isinstance(section.get(name), (int, float)) and section[name] >= 1:
            draft.set("trainer", key, int(section[name]), f"line {line}: DeepSpeed's file")
    stage = section.get("stage")
    if isinstance(stage, int) and stage > 1:
        text = "optimizer states are sharded over DP here, gradients and weights are not"
        draft.note(line, f"ZeRO stage {stage}: {text}")
    if rest := [name for name in section if name not in _ZERO_READ]:
        draft.note(line, f"of zero_optimization in DeepSpeed's file: {', '.join(rest)}")
