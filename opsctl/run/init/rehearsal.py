"""Rehearsals: the small twin of a run, on two nodes.

Whatever decides how much there is to compute is scaled; all else is the run's: options, data, tokenizer, environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.run.config.schema import ExpectTable, RunFile
from opsctl.run.config.toml_file import toml_value
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING

NODES = 2
#: Iterations that a rehearsal trains, and after how many it saves and evaluates: so that it does each twice.
ITERATIONS, EVERY = 20, 10
_HIDDEN_MOST, _HEADS_MOST = 1024, 8
#: The limit, and how long before it the trainer leaves, at most: a shorter limit of the run is the twin's too.
_LIMIT_S, _MARGIN_S = 1800, 300
#: Options by which a run and its twin may differ.
SCALED = frozenset(
    (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size"),
        *("num_attention_heads", "num_query_groups", "ffn_hidden_size", "global_batch_size", "rampup_batch_size"),
        *("train_samples", "train_iters", "train_tokens", "lr_decay_samples", "lr_decay_iters", "lr_decay_tokens"),
        *("lr_warmup_samples", "lr_warmup_iters", "lr_warmup_tokens", "save_interval", "save_schedule"),
        *("save_iterations", "eval_interval", "eval_iters", "log_interval", "exit_interval", "exit_samples"),
        *("exit_after_iters", "exit_duration_in_mins"),
        *("lr_wsd_decay_samples", "lr_wsd_decay_iters"),
    )
)
#: Those of them that a twin does without: what they say of a long training says nothing of twenty iterations.
_DROPPED = (
    *("rampup_batch_size", "save_schedule", "save_iterations", "exit_interval", "exit_samples", "exit_after_iters"),
    *("exit_duration_in_mins", "lr_decay_tokens", "lr_warmup_tokens"),
)


@dataclass(frozen=True)
class Twin:
    """A rehearsal's run file, and what of it is scaled."""

    text: str
    scaled: tuple[str, ...]  # one line each


def twin_of(file: RunFile, run_file: str, name: str) -> Twin:
    """Return the twin called `name` of the expanded `file` at `run_file`. Raises RunFileError if none fits."""
    nodes = min(NODES, file.slurm.nodes)
    changed = _sizes(file.trainer, nodes * file.slurm.gpus_per_node, run_file)
    trainer = {key: value for key, value in {**file.trainer, **changed}.items() if key not in _DROPPED}
    checkpoints = {key: value for key, value in file.checkpoints.items() if key not in _DROPPED}
    checkpoints["save_interval"] = EVERY
    times = _times(file)
    slurm = {key: value for key, value in msgspec.to_builtins(file.slurm).items() if value not in (None, [])}
    slurm.pop("min_nodes")
    slurm.pop("spare")  # a twin that loses a node is tried again
    run = {key: value for key, value in msgspec.to_builtins(file.run).items() if value is not None}
    tables: dict[str, Mapping[str, Any]] = {
        "run": {**run, "name": name, "output": "output", "rehearses": run_file},
        "slurm": {**slurm, "nodes": nodes, **times},
        "array": {"tasks": "1", "keep_queued": 0},
        "trainer": trainer,
        "data": file.data,
        "checkpoints": checkpoints,
        "env": file.env,
    }
    head = (
        f"# A rehearsal of {json.dumps(run_file)}: a small copy on few nodes.\n"
        "# Try a change here first. Scaled values say nothing about those of the run.\n"
    )
    body = "\n".join(f"[{table}]\n{_lines(values)}" for table, values in tables.items())
    before = {**file.trainer, **file.checkpoints, "nodes": file.slurm.nodes, **{key: slurm[key] for key in times}}
    after = {**trainer, **checkpoints, "nodes": nodes, **times}
    keys = [key for key in ("nodes", *times, *sorted(SCALED)) if before.get(key) != after.get(key)]
    scaled = [f"{key} = {_said(after, key)} ({_said(before, key)})" for key in keys]
    if file.expect != ExpectTable():
        scaled.append("[expect]: left out, because the run's values do not apply to so small a run")
    return Twin(f"{head}\n{body}", tuple(scaled))


def _times(file: RunFile) -> dict[str, str]:
    """Limit and margin: the run's own where they are shorter, and never more than a quarter of the time for leaving."""
    limit_s, margin_s = parse_duration_s(file.slurm.time), parse_duration_s(file.slurm.exit_margin)
    small_s = min(limit_s, _LIMIT_S)
    leaves_s = min(margin_s, _MARGIN_S, small_s // 4)
    return {
        "time": file.slurm.time if small_s == limit_s else format_duration(small_s),
        "exit_margin": file.slurm.exit_margin if leaves_s == margin_s else format_duration(leaves_s),
    }


def _sizes(trainer: Mapping[str, Any], ranks: int, run_file: str) -> dict[str, Any]:
    tensor = _largest_divisor(trainer.get("tensor_model_parallel_size", 1), ranks)
    stages = trainer.get("pipeline_model_parallel_size", 1)
    # Two replicas where there is room for them, so that what they do together is tried too.
    pipeline = max(_largest_divisor(stages, ranks // tensor // 2 or 1), 1)
    if ranks % (tensor * pipeline):
        pipeline = _largest_divisor(stages, ranks // tensor)
    replicas = ranks // (tensor * pipeline)
    heads = trainer.get("num_attention_heads", 0)
    hidden = trainer.get("hidden_size", 0)
    if not heads or not hidden or (hidden % heads and not trainer.get("kv_channels")):
        raise RunFileError(f"{run_file}: no rehearsal can be made without [trainer] hidden_size, num_attention_heads")
    few = max(tensor, min(heads, _HEADS_MOST) // tensor * tensor)
    small = hidden // heads * few
    if small > _HIDDEN_MOST and few > tensor:
        few = max(tensor, _HIDDEN_MOST // (hidden // heads) // tensor * tensor)
        small = hidden // heads * few
    with_embeddings = trainer.get("pp_partition_method") == BY_BLOCK_AND_EMBEDDING and pipeline > 1
    batch = trainer.get("micro_batch_size", 1) * replicas * max(2, pipeline)
    changed: dict[str, Any] = {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "num_layers": 2 * pipeline - 2 * with_embeddings or 2,
        "hidden_size": small,
        "num_attention_heads": few,
        "global_batch_size": batch,
        "eval_interval": EVERY,
        "eval_iters": min(1, trainer.get("eval_iters", 1)),
        "log_interval": 1,
    }
    if groups := trainer.get("num_query_groups"):
        changed["num_query_groups"] = _groups(few, tensor, groups * few // heads)
    if "ffn_hidden_size" in trainer:
        changed["ffn_hidden_size"] = max(tensor, trainer["ffn_hidden_size"] * small // hidden // tensor * tensor)
    if "," in trainer.get("pp_partition_method", ""):
        changed["pp_partition_method"] = BY_BLOCK
    for end in ("first", "last"):
        if (key := f"decoder_{end}_pipeline_num_layers") in trainer:
            changed[key] = 2
    units = {"samples": batch, "iters": 1, "tokens": batch * trainer.get("seq_length", 1)}
    for unit, each in units.items():
        if f"train_{unit}" in trainer:
            changed[f"train_{unit}"] = ITERATIONS * each
        if f"lr_decay_{unit}" in trainer:
            changed[f"lr_decay_{unit}"] = ITERATIONS * each
        if f"lr_wsd_decay_{unit}" in trainer:
            changed[f"lr_wsd_decay_{unit}"] = ITERATIONS // 4 * each
        if trainer.get(f"lr_warmup_{unit}"):
            changed[f"lr_warmup_{unit}"] = 2 * each
    return changed


def _groups(heads: int, tensor: int, at_most: int) -> int:
    """So many groups that they divide the heads and the ranks divide them; more than `at_most` only where none else."""
    fitting = [one for one in range(tensor, heads + 1, tensor) if heads % one == 0]
    return max((one for one in fitting if one <= at_most), default=fitting[0])


def _largest_divisor(number: int, of: int) -> int:
    """Return the largest divisor of `of` that is no larger than `number` and divides it, or 1."""
    return max((one for one in range(1, min(number, of) + 1) if of % one == 0 and number % one == 0), default=1)


def _said(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "none"


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
