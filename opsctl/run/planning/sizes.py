"""The model, the layout of its ranks, and the memory of the fullest GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from opsctl.run.planning import arithmetic
from opsctl.run.planning.plan import (
    InitStd,
    PipelinePartition,
    PlannedLayout,
    PlannedMemory,
    PlannedModel,
    PlannedPeak,
    ProcessGroups,
)
from opsctl.run.planning.section import Section, billions, gb_text, whole
from trainer.recipe.layout import Layout, blocks_per_stage
from trainer.recipe.memory import RankMemory, fullest_rank
from trainer.recipe.model_options import NONE, Vocabulary, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import output_parameters, word_embedding
from trainer.recipe.sizes import TRAINING_BYTES_PER_PARAMETER, formula_parameters, parameters, parameters_of_block

#: The usual formula of parameters in JSON.
FORMULA = "l*(12h^2+13h)+v*h+s*h+2h"


def model_shape(options: Mapping[str, Any]) -> ModelShape | None:
    """Return the model's shape; None if the options do not define all of it."""
    needed = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
    vocabulary = options["vocab_size"] or options["pad_vocab_size_to"]
    if vocabulary is None or any(options[key] is None for key in needed):
        return None
    try:
        return ModelShape.of(options, Vocabulary.of(vocabulary, options))
    except ValueError:
        return None


def model_sections(options: Mapping[str, Any], shape: ModelShape) -> Iterator[Section]:
    """Yield the actual parameters compared with the usual formula, and the spread of initial weights."""
    real = parameters(shape)
    vocabulary = options["vocab_size"] or shape.vocabulary
    formula = formula_parameters(shape.layers, shape.hidden, options["seq_length"], vocabulary)
    block, embedding = parameters_of_block(shape), word_embedding(shape).size
    output = sum(one.size for one in output_parameters(shape))
    rows = f"vocabulary of {shape.vocabulary:,}, {_positions(shape)}"
    own_output = (("output layer", f"{whole(output)}, untied"),) if output else ()
    values = PlannedModel(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        key_value_heads=shape.groups,
        sequence_length=options["seq_length"],
        vocab_size=vocabulary,
        padded_vocab_size=shape.vocabulary,
        params=real,
        formula=FORMULA,
        formula_params=formula,
        billion_rounded=round(formula / 1e9),
        layer_params=block,
        embedding_params=embedding,
        output_params=output,
        hidden_per_layer=shape.hidden // shape.layers,
        hidden_per_head=shape.head_size,
    )
    yield Section(
        "model",
        "Model",
        values,
        (
            ("shape", f"{shape.layers} layers, hidden size {shape.hidden:,}, {_heads(shape)}"),
            ("parameters", f"{whole(real)} ({billions(real)}): {rows}"),
            (
                "by the usual formula",
                f"{whole(formula)} ({billions(formula)}): l(12h^2+13h) + vh + sh + 2h, v = {vocabulary:,}",
            ),
            ("one block", f"{whole(block)}"),
            ("word embedding", f"{whole(embedding)}"),
            *own_output,
            ("hidden size per layer", f"{values.hidden_per_layer}, per head {values.hidden_per_head}"),
        ),
    )
    yield init_std_section(shape.hidden, options["init_method_std"])


def init_std_section(hidden: int, given: float | None = None) -> Section:
    """Return usual spreads of the initial weights, and the run's."""
    third, fifths = arithmetic.init_std_third(hidden), arithmetic.init_std_two_fifths(hidden)
    text = f"sqrt(1/(3h)) is {third:.6f}, sqrt(2/(5h)) is {fifths:.6f}"
    values = InitStd(init_method_std=given, sqrt_1_over_3h=third, sqrt_2_over_5h=fifths)
    rows = (("standard deviation", text if given is None else f"{given:g}; {text}"),)
    return Section("init_std", "Initial weights", values, rows)


def _positions(shape: ModelShape) -> str:
    if shape.positions:
        return f"{shape.positions:,} learned positions"
    scaled = f", {shape.rotary_scaling}" if shape.rotary_scaling else ""
    return f"rotary positions{scaled}" if shape.rotary_size else "no learned positions"


def _heads(shape: ModelShape) -> str:
    """Describe the heads and MLP, without defaults of a plain model."""
    shared = f", {shape.groups} of keys and values" if shape.groups < shape.heads else ""
    width = f" of {shape.head_size}" if shape.kv_channels else ""
    window = f", a window of {shape.window:,}" if shape.window else ""
    return f"{shape.heads} heads{width}{shared}{window}" + (
        f", {shape.gate} of {shape.ffn_hidden:,}" if shape.gate else ""
    )


#: With more ranks, no lists of ranks are printed.
MOST_RANKS_LISTED = 65_536


def layout_sections(per_node: int, options: Mapping[str, Any], layout: Layout) -> Iterator[Section]:
    """Yield the layout for text and JSON, and every rank of every process group for JSON."""
    nodes, replica = layout.world_size // per_node, layout.tensor * layout.pipeline
    groups: dict[str, list[list[int]]] = {}
    if layout.world_size <= MOST_RANKS_LISTED:
        groups = {
            "tensor_groups": layout.tensor_groups(),
            "pipeline_groups": layout.pipeline_groups(),
            "data_groups": layout.data_groups(),
            "model_parallel_groups": layout.model_groups(),
        }
    divided = f"{layout.tensor} x {layout.pipeline} x {layout.data}"
    replicas = f"{layout.data} replica{'s' * (layout.data > 1)} of {replica} GPU{'s' * (replica > 1)}"
    rows = [
        ("ranks", f"{layout.world_size} = {nodes} nodes x {per_node} GPUs"),
        ("tensor x pipeline x data", f"{divided}: {replicas}"),
    ]
    stages, partition = stages_of(options, layout), None
    if stages:
        method = options["pp_partition_method"]
        partition = PipelinePartition(method=method, blocks_per_stage=stages)
        is_even = len(set(stages)) == 1 and len(stages) > 4
        text = f"{stages[0]} in each of {len(stages)}" if is_even else " ".join(map(str, stages))
        rows.append(("blocks per stage", f"{text} ({method})"))
    for key, found in groups.items():
        rows.append((key.removesuffix("_groups").replace("_", " ") + " groups", _groups_text(found)))
    values = PlannedLayout(
        nodes=nodes,
        gpus_per_node=per_node,
        world_size=layout.world_size,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        pipeline_partition=partition,
    )
    yield Section("layout", "Layout", values, tuple(rows))
    yield Section("process_groups", "", ProcessGroups(**groups))


def stages_of(options: Mapping[str, Any], layout: Layout) -> list[int] | None:
    """Return the blocks of each pipeline stage; None if they do not divide."""
    if options["num_layers"] is None:
        return None
    try:
        return blocks_per_stage(options["num_layers"], layout.pipeline, options["pp_partition_method"])
    except ValueError:
        return None


def _groups_text(groups: list[list[int]]) -> str:
    def members(group: list[int]) -> str:
        if len(group) <= 5:
            return " ".join(str(rank) for rank in group)
        return f"{' '.join(str(rank) for rank in group[:3])} ... {group[-1]}"

    shown = ", ".join(members(group) for group in groups[:2])
    return f"{len(groups)} of {len(groups[0])}: {shown}{', ...' if len(groups) > 2 else ''}"


_NOTE = "The GPU's libraries, about 1 to 2 GB, and fragmentation of the allocator are not included."


def memory_section(
    options: Mapping[str, Any], shape: ModelShape, layout: Layout | None, before_ampere: bool = False
) -> Section:
    """Return a replica's states, and the fullest GPU's peak if the run's layout and micro-batch are known."""
    section = replica_memory(parameters(shape))
    if layout is None or not options["micro_batch_size"]:
        return section
    try:
        stage, found = fullest_rank(options, shape, layout, before_ampere)
    except ValueError:  # blocks or heads do not divide, which is among the problems
        return section
    peak = planned_peak(stage, found)
    values = structs.replace(section.values, per_gpu_gb=peak.total_gb, peak=peak)
    return replace(section, values=values, rows=(*section.rows, *_rows(peak, options, layout)), note=_NOTE)


def replica_memory(count: int) -> Section:
    """Return a replica's weights, gradients and optimizer states, at 18 bytes per parameter."""
    total = arithmetic.memory_gb(count)
    values = PlannedMemory(bytes_per_param=TRAINING_BYTES_PER_PARAMETER, replica_gb=total)
    rows = (("a replica", f"{gb_text(total)}: 18 bytes a parameter, activations not counted"),)
    return Section("memory", "Memory for weights, gradients and optimizer", values, rows)


def planned_peak(stage: int, found: RankMemory) -> PlannedPeak:
    """Convert to GB (10^9 bytes)."""
    parts = ("weights", "gradients", "optimizer", "buckets", "activations", "working", "pipeline")
    values = {f"{part}_gb": getattr(found, f"{part}_bytes") / 1e9 for part in parts}
    return PlannedPeak(stage=stage, moment=found.moment, **values, total_gb=found.peak_bytes / 1e9)


_MOMENTS = {"backward": "in the backward pass", "reduction": "when gradients are reduced"}


def _rows(peak: PlannedPeak, options: Mapping[str, Any], layout: Layout) -> list[tuple[str, str]]:
    where = f", of stage {peak.stage + 1} of {layout.pipeline}" if layout.pipeline > 1 else ""
    shared = f", shared by {layout.data} replicas" if layout.data > 1 else ""
    recomputes = recomputed(options)
    kept = "nothing recomputed" if recomputes == NONE else f"--recompute {recomputes}"
    parts = [
        ("weights", peak.weights_gb, ""),
        ("gradients", peak.gradients_gb, ""),
        ("optimizer", peak.optimizer_gb, f"fp32 weights and two moments{shared}"),
        ("reduction", peak.buckets_gb, "buckets for copies of gradients"),
        ("activations", peak.activations_gb, f"of the micro-batches in flight; {kept}"),
        ("at work", peak.working_gb, "gradients of a block or of the loss, and recomputed values"),
        ("between stages", peak.pipeline_gb, ""),
    ]
    rows = [("the fullest GPU", f"{gb_text(peak.total_gb)}{where}, {_MOMENTS[peak.moment]}:")]
    return rows + [(f"  {name}", gb_text(gb) + (f": {what}" if what else "")) for name, gb, what in parts if gb]
