"""DeepSpeed's JSON file as options: what it says counts in DeepSpeed, whatever the command line says. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from opsctl.run.init.draft import Begun
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


def take_engine(begun: Begun, text: str, line: int) -> None:
    """Let the file, whose text begins on `line`, count where it and the options speak of the same."""
    remark = f"line {line}: DeepSpeed's file"
    try:
        said = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except RecursionError:
        begun.note(line, "DeepSpeed's file has brackets within brackets without end: none of it is taken")
        return
    except ValueError as error:
        begun.note(line, f"DeepSpeed's file is no JSON once variables are put in ({error}): none of it is taken")
        return
    if not isinstance(said, Mapping):
        begun.note(line, "DeepSpeed's file is no JSON object: none of it is taken")
        return
    taken = {"gradient_clipping", "zero_optimization", "fp16", "bf16", *_BATCHES, *_FOLLOWS}
    for name, key in _BATCHES.items():
        own = begun.value("trainer", key)
        if isinstance(said.get(name), int) and own is None:
            begun.set("trainer", key, said[name], remark)
        elif isinstance(said.get(name), int) and own != said[name]:
            begun.note(line, f"{name} {said[name]} in DeepSpeed's file: {BY_KEY[key].name} {own} counts")
    clip = said.get("gradient_clipping")
    if isinstance(clip, (int, float)) and clip != begun.value("trainer", "clip_grad"):
        begun.set("trainer", "clip_grad", float(clip), remark)
    _precision(begun, said, line)
    _zero(begun, said.get("zero_optimization"), line)
    if isinstance(said.get("curriculum_learning"), Mapping) and said["curriculum_learning"].get("enabled"):
        begun.note(line, "curriculum_learning in DeepSpeed's file: every sequence has its whole length here at once")
    rest = [name for name in said if name not in taken and name != "curriculum_learning"]
    if rest:
        begun.note(line, f"of DeepSpeed's file nobody needs or knows here: {', '.join(rest)}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _precision(begun: Begun, said: Mapping[str, Any], line: int) -> None:
    remark = f"line {line}: DeepSpeed's file"
    for name in ("fp16", "bf16"):
        section = said.get(name)
        if isinstance(section, Mapping) and section.get("enabled") and not begun.value("trainer", name):
            begun.set("trainer", name, True, remark)
    section = said.get("fp16")
    if not isinstance(section, Mapping) or not begun.value("trainer", "fp16"):
        return
    for name, key in _SCALING.items():
        if isinstance(section.get(name), (int, float)):
            begun.set("trainer", key, BY_KEY[key].type(section[name]), remark)
    # Where it says none, DeepSpeed's own is 0: a dynamic one, whatever the script's option says.
    scale = section.get("loss_scale", 0 if section.get("enabled") else None)
    power = section.get("initial_scale_power")
    if scale == 0:
        given = begun.tables["trainer"].pop("loss_scale", None)
        if given is not None:
            begun.note(line, f"--loss-scale {given.value:g}: DeepSpeed's file has a dynamic one, which counted")
    elif isinstance(scale, (int, float)):
        begun.set("trainer", "loss_scale", float(scale), remark)
    if isinstance(power, int) and 0 <= power < 64:
        begun.set("trainer", "initial_loss_scale", 2**power, f"{remark}, 2 to the power of {power}")


def _zero(begun: Begun, section: object, line: int) -> None:
    if not isinstance(section, Mapping):
        return
    for name, key in _BUCKETS.items():
        if isinstance(section.get(name), (int, float)) and section[name] >= 1:
            begun.set("trainer", key, int(section[name]), f"line {line}: DeepSpeed's file")
    stage = section.get("stage")
    if isinstance(stage, int) and stage > 1:
        begun.note(
            line, f"ZeRO stage {stage}: optimizer states are sharded over DP here, gradients and weights are not"
        )
    rest = [name for name in section if name not in _ZERO_FOLLOWS and name not in _BUCKETS]
    if rest:
        begun.note(line, f"of zero_optimization in DeepSpeed's file: {', '.join(rest)}")
