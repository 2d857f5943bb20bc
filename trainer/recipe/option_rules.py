"""Rules for combinations of options. Pure functions; every error is one line with the correction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer.recipe.data_options import SPLITS, weight, weighted_file_key, weighted_key
from trainer.recipe.layout import (
    BY_BLOCK,
    BY_BLOCK_AND_EMBEDDING,
    EmptyStage,
    UnevenStages,
    check_stages,
    layout_if_any,
    listed_stages,
    sequence_errors,
    stage_sizes,
)
from trainer.recipe.lengths import EVALUATE_ONLY
from trainer.recipe.model_options import indivisible_padding, model_errors, option_name, recomputation_errors
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import BatchRamp, SkippedIterations, shown_iterations
from trainer.recipe.schedule_rules import schedule_errors
from trainer.recipe.spike_guard import ROLLBACK, SKIP, SpikeDrill

_ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "lr")
#: Options that exclude each other, with the correction.
_EXCLUSIVE = (
    ("fp16", "bf16", "choose one"),
    ("save_interval", "save_schedule", "choose one"),
    ("override_lr_scheduler", "use_checkpoint_lr_scheduler", "choose one"),
    ("load_step", "load_fallback", "a checkpoint that is named has none in its place; leave one out"),
)


def missing_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the options that are required and missing."""
    errors = [f"{option_name(key)} is missing" for key in _REQUIRED if options[key] is None]
    if not any(options[key] for key in ("train_iters", "train_samples", "train_tokens")):
        errors.append(
            "--train-iters, --train-samples or --train-tokens is missing: one of them gives the training its length"
        )
    # Prepared data may have a noted vocabulary size. Without data there is no other source.
    if not any(options[key] for key in ("vocab_size", "vocab_file", "tokenizer_name_or_path", "data_path")):
        errors.append("no vocabulary: give --vocab-size, --vocab-file with --merge-file, or --tokenizer-name-or-path")
    return errors


def combination_errors(
    options: Mapping[str, Any], world_size: int | None, consumed_samples: int | None = 0
) -> list[str]:
    """Return the contradictions between options; with `world_size` (ranks) also sizes that the layout cannot divide.

    consumed_samples: a ramp-up is checked from there on; None: not here, because `ramp_errors` does it when that is
    known.
    """
    return [
        *model_errors(options),
        *_layout_errors(options, world_size),
        *_batch_errors(options, world_size),
        *([] if consumed_samples is None else ramp_errors(options, world_size, consumed_samples)),
        *schedule_errors(options),
        *_exclusive_errors(options),
        *recomputation_errors(options),
        *sequence_errors(options),
        *_vocabulary_errors(options),
        *_data_errors(options),
        *_parsed_errors(options),
        *_evaluation_errors(options),
        *_carbon_errors(options),
        *_guard_errors(options),
    ]


def _layout_errors(options: Mapping[str, Any], world_size: int | None) -> list[str]:
    tensor, pipeline = options["tensor_model_parallel_size"], options["pipeline_model_parallel_size"]
    errors = [
        f"{option_name(key)} {options[key]} is not divisible by --tensor-model-parallel-size {tensor}"
        for key in ("num_attention_heads", "hidden_size", "ffn_hidden_size")
        if options[key] is not None and options[key] % tensor
    ]
    groups = options["num_query_groups"]
    if groups is not None and groups % tensor and tensor % groups:
        errors.append(
            f"--num-query-groups {groups} with --tensor-model-parallel-size {tensor}: one must divide the other"
        )
    elif groups is not None and options["kv_channels"] and 2 * groups * options["kv_channels"] % tensor:
        errors.append(
            f"--num-query-groups {groups} x --kv-channels {options['kv_channels']}, twice, is not divisible by "
            f"--tensor-model-parallel-size {tensor}"
        )
    layers = options["num_layers"]
    if layers is not None:
        method = options["pp_partition_method"]
        what = f"--num-layers {layers}" + (" + 2 embeddings" if method == BY_BLOCK_AND_EMBEDDING else "")
        sizes = stage_sizes(method)
        if sizes is None and method not in (BY_BLOCK, BY_BLOCK_AND_EMBEDDING):
            return [*errors, f"--pp-partition-method {method}: give {BY_BLOCK}, {BY_BLOCK_AND_EMBEDDING}, or 3,4,4,3"]
        ends = [key for key in _ENDS if options[key] is not None]
        if ends and method != listed_stages(options):
            other = f"the other ones of {pipeline} stages cannot share the rest of {what} evenly"
            conflict = f"--pp-partition-method {method} has other stages, give one of them"
            why = conflict if listed_stages(options) else other
            return [*errors, f"{option_name(ends[0])} {options[ends[0]]}: {why}"]
        try:
            check_stages(layers, pipeline, method)
        except UnevenStages as uneven:
            wrong = f"{what} is not divisible by --pipeline-model-parallel-size {pipeline}"
            if layers >= pipeline:
                each = [layers // pipeline + (stage < layers % pipeline) for stage in range(pipeline)]
                wrong += f": list the blocks of each stage, --pp-partition-method {','.join(map(str, each))}"
            errors.append(wrong if sizes is None else f"{what}: {uneven}")
        except EmptyStage:
            errors.append(f"{what} leave one of {pipeline} pipeline stages without a block")
    if world_size is not None and layout_if_any(options, world_size) is None:
        errors.append(f"{world_size} ranks are not divisible by TP {tensor} x PP {pipeline}")
    return errors


def _batch_errors(options: Mapping[str, Any], world_size: int | None) -> list[str]:
    errors = []
    micro, batch, ramp = options["micro_batch_size"], options["global_batch_size"], options["rampup_batch_size"]
    if ramp is not None:
        start, increment, _ = ramp
        if options["train_iters"] is not None or not (options["train_samples"] or options["train_tokens"]):
            errors.append("--rampup-batch-size needs --train-samples: with --train-iters the batch cannot grow")
        if batch is None:
            errors.append("--rampup-batch-size needs --global-batch-size, the batch it grows to")
        elif start >= batch:
            errors.append(f"--rampup-batch-size starts at {start}, not below --global-batch-size {batch}")
        elif (batch - start) % increment:
            errors.append(
                f"--rampup-batch-size: from {start} to {batch} is no whole number of increments of {increment}"
            )
    layout = layout_if_any(options, world_size)
    if micro is not None and batch is not None and layout is not None and batch % (micro * layout.data):
        errors.append(_indivisible("--global-batch-size", batch, micro, layout.data))
    return errors


def ramp_errors(options: Mapping[str, Any], world_size: int | None, consumed_samples: int = 0) -> list[str]:
    """Return the errors for batch sizes of a ramp-up after `consumed_samples` that the replicas cannot divide."""
    micro, layout = options["micro_batch_size"], layout_if_any(options, world_size)
    if micro is None or layout is None or options["rampup_batch_size"] is None:
        return []
    start, increment, _ = options["rampup_batch_size"]
    named = {"the start of --rampup-batch-size,": start}
    if consumed_samples:
        try:
            batch = BatchRamp.of(options).batch_at(consumed_samples)
        except (TypeError, ValueError):
            return []  # another rule reports an impossible ramp-up
        if batch == options["global_batch_size"]:
            return []  # the ramp is over
        named = {f"the batch of --rampup-batch-size at sample {consumed_samples},": batch}
    named["the increment of --rampup-batch-size,"] = increment
    wrong = {what: samples for what, samples in named.items() if samples % (micro * layout.data)}
    return [_indivisible(what, samples, micro, layout.data) for what, samples in wrong.items()]


def _indivisible(what: str, samples: int, micro: int, copies: int) -> str:
    return f"{what} {samples} is not divisible by --micro-batch-size {micro} x DP {copies} = {micro * copies}"


def _exclusive_errors(options: Mapping[str, Any]) -> list[str]:
    errors = [
        f"{option_name(one)} with {option_name(other)}: {advice}"
        for one, other, advice in _EXCLUSIVE
        if options[one] not in (None, False) and options[other]
    ]
    scale = options["initial_loss_scale"]
    if scale & (scale - 1):
        errors.append(f"--initial-loss-scale {scale} is no power of two")
    if (options["lease_path"] is None) != (options["lease_number"] is None):
        errors.append("--lease-path and --lease-number go together: the file, and this job's number in it")
    return errors


def _vocabulary_errors(options: Mapping[str, Any]) -> list[str]:
    errors = []
    padded = options["pad_vocab_size_to"]
    if padded is not None and options["vocab_size"] is not None and padded < options["vocab_size"]:
        errors.append(f"--pad-vocab-size-to {padded} is smaller than --vocab-size {options['vocab_size']}")
    errors += filter(None, [indivisible_padding(options)])
    if bool(options["vocab_file"]) != bool(options["merge_file"]):
        given, absent = ("--vocab-file", "--merge-file") if options["vocab_file"] else ("--merge-file", "--vocab-file")
        errors.append(f"{given} without {absent}: a GPT-2 vocabulary needs both")
    kind = options["tokenizer_type"]
    source = "vocab_file" if kind == "GPT2BPETokenizer" else "tokenizer_name_or_path"
    if kind is not None and not options[source]:
        errors.append(f"--tokenizer-type {kind} without {option_name(source)}: give where it is, or leave the type out")
    return errors


def _data_errors(options: Mapping[str, Any]) -> list[str]:
    keys = [key for split in SPLITS for key in (weighted_key(split), weighted_file_key(split))]
    weighted = [key for key in keys if options[key]]
    path = options["data_path"]
    errors = []
    if path and weighted:
        errors.append(f"--data-path with {option_name(weighted[0])}: give the data once")
    errors += [
        f"{option_name(weighted_key(split))} with {option_name(weighted_file_key(split))}: give the groups once"
        for split in SPLITS
        if options[weighted_key(split)] and options[weighted_file_key(split)]
    ]
    if path and len(path) > 1:
        if len(path) % 2:
            errors.append(f"--data-path with {len(path)} values: give one prefix, or WEIGHT PREFIX pairs")
        elif any(weight(word) is None for word in path[::2]):
            errors.append("--data-path: every first of two values must be a weight above 0")
    return errors


def _carbon_errors(options: Mapping[str, Any]) -> list[str]:
    country, region = options["carbon_country"], options["carbon_region"]
    if country is not None and not re.fullmatch("[A-Z]{3}", country):
        return [f"--carbon-country {country!r}: allowed are the three letters of ISO 3166, such as FRA"]
    return ["--carbon-region without --carbon-country: give the country too"] if region and country is None else []


def _guard_errors(options: Mapping[str, Any]) -> list[str]:
    tiers, errors = options["spike_guard"] or (), []
    if ROLLBACK in tiers and options["no_save_optim"]:
        errors.append(
            f"--spike-guard {ROLLBACK} with --no-save-optim: going back needs the optimizer's states; choose one"
        )
    most, patience = options["max_skipped_iterations"], options["spike_guard_patience"]
    if {SKIP, ROLLBACK} <= set(tiers) and 0 < most < patience:
        errors.append(
            f"--max-skipped-iterations {most} with --spike-guard-patience {patience}: so many skipped ones end the "
            f"training before it goes back; give at least {patience}"
        )
    return errors


def _parsed_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the errors of options whose words have a form of their own."""
    errors = []
    for parse, prefix in (
        (SaveSchedule.of, "--save-schedule: "),
        (SkippedIterations.of, ""),
        (shown_iterations, ""),
        (SpikeDrill.of, ""),
    ):
        try:
            parse(options)
        except ValueError as error:
            errors.append(f"{prefix}{error}")
    return errors


def _evaluation_errors(options: Mapping[str, Any]) -> list[str]:
    given = [option_name(key) for key in EVALUATE_ONLY if options[key]]
    if not given:
        return []
    if not options["load"]:
        return [f"{given[0]} without --load: give the folder of the checkpoint to evaluate"]
    if not options["eval_iters"]:
        return [f"{given[0]} with --eval-iters 0: give how many batches of each set to evaluate"]
    return []
