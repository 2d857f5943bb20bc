"""DeepSpeed's JSON file as options: what it says counts in DeepSpeed, whatever the command line says. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from opsctl.run.init.draft import Draft
from trainer.recipe.options import BY_KEY

#: The file's sizes of a batch, and the options that say the same.
_BATCHES = {"train_micro_batch_size_per_gpu": "micro_batch_size", "train_batch_size": "global_batch_size"}
_SCALING = {"loss_scale_window": "loss_scale_window", "hysteresis": "hysteresis", "min_loss_scale": "min_loss_scale"}
_BUCKETS = {"reduce_bucket_size": "zero_reduce_bucket_size", "allgather_bucket_size": "zero_allgather_bucket_size"}
_DIGITS = 18  # of whole numbers: more is said of nothing
#: What follows from the options here, or is printed only.
_FOLLOWS = frozenset(
    (
        *("gradient_accumulation_steps", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer"),
        *("prescale_gradients", "communication_data_type", "data_types"),
    )
)
_ZERO_FOLLOWS = frozenset(("stage", "contiguous_gradients", "overlap_comm", "reduce_scatter", "allgather_partitions"))


def take_engine(draft: Draft, text: str, line: int) -> None:
    """Let the file, whose text begins on `line`, count where it and the options speak of the same."""
    remark = f"line {line}: DeepSpeed's file"
    try:
        said = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except RecursionError:
        draft.note(line, "DeepSpeed's file has brackets within brackets without end: none of it is taken")
        return
    except ValueError as error:
        draft.note(line, f"DeepSpeed's file is no JSON once variables are put in ({error}): none of it is taken")
        return
    if not isinstance(said, Mapping):
        draft.note(line, "DeepSpeed's file is no JSON object: none of it is taken")
        return
    taken = {"gradient_clipping", "zero_optimization", "fp16", "bf16", *_BATCHES, *_FOLLOWS}
    for name, key in _BATCHES.items():
        own = draft.value("trainer", key)
        if isinstance(said.get(name), int) and own is None:
            draft.set("trainer", key, said[name], remark)
        elif isinstance(said.get(name), int) and own != said[name]:
            draft.note(line, f"{name} {said[name]} in DeepSpeed's file: {BY_KEY[key].name} {own} counts")
    clip = said.get("gradient_clipping")
    if isinstance(clip, (int, float)) and clip != draft.value("trainer", "clip_grad"):
        draft.set("trainer", "clip_grad", float(clip), remark)
    _precision(draft, said, line)
    _zero(draft, said.get("zero_optimization"), line)
    if isinstance(said.get("curriculum_learning"), Mapping) and said["curriculum_learning"].get("enabled"):
        draft.note(line, "curriculum_learning in DeepSpeed's file: every sequence has its whole length here at once")
    rest = [name for name in said if name not in taken and name != "curriculum_learning"]
    if rest:
        draft.note(line, f"of DeepSpeed's file nobody needs or knows here: {', '.join(rest)}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _precision(draft: Draft, said: Mapping[str, Any], line: int) -> None:
    remark = f"line {line}: DeepSpeed's file"
    for name in ("fp16", "bf16"):
        section = said.get(name)
        if isinstance(section, Mapping) and section.get("enabled") and not draft.value("trainer", name):
            draft.set("trainer", name, True, remark)
    section = said.get("fp16")
    if not isinstance(section, Mapping) or not draft.value("trainer", "fp16"):
        return
    for name, key in _SCALING.items():
        if isinstance(section.get(name), (int, float)):
            draft.set("trainer", key, BY_KEY[key].type(section[name]), remark)
    # Where it says none, DeepSpeed's own is 0: a dynamic one, whatever the script's option says.
    scale = section.get("loss_scale", 0 if section.get("enabled") else None)
    power = section.get("initial_scale_power")
    if scale == 0:
        given = draft.tables["trainer"].pop("loss_scale", None)
        if given is not None:
            draft.note(line, f"--loss-scale {given.value:g}: DeepSpeed's file has a dynamic one, which counted")
    elif isinstance(scale, (int, float)):
        draft.set("trainer", "loss_scale", float(scale), remark)
    if isinstance(power, int) and 0 <= power < 64:
        draft.set("trainer", "initial_loss_scale", 2**power, f"{remark}, 2 to the power of {power}")


def _zero(draft: Draft, section: object, line: int) -> None:
    if not isinstance(section, Mapping):
        return
    for name, key in _BUCKETS.items():
        if isinstance(section.get(name), (int, float)) and section[name] >= 1:
            draft.set("trainer", key, int(section[name]), f"line {line}: DeepSpeed's file")
    stage = section.get("stage")
    if isinstance(stage, int) and stage > 1:
        draft.note(
            line, f"ZeRO stage {stage}: optimizer states are sharded over DP here, gradients and weights are not"
        )
    rest = [name for name in section if name not in _ZERO_FOLLOWS and name not in _BUCKETS]
    if rest:
        draft.note(line, f"of zero_optimization in DeepSpeed's file: {', '.join(rest)}")
