"""What a plan contains: one struct for each of its sections, printed by `opsctl plan --json` as they are.

A field without default is always printed; one that is None by default is left out if there is nothing to say.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class PlannedRun(Struct, frozen=True, kw_only=True):
    """The run that is planned."""

    name: Annotated[str, Meta(description="The run's name.")]
    file: Annotated[str, Meta(description="Absolute path of its run file.")]


class PipelinePartition(Struct, frozen=True, kw_only=True):
    """How the transformer blocks are divided over the pipeline's stages."""

    method: Annotated[str, Meta(description="The trainer's `--pp-partition-method`.")]
    blocks_per_stage: Annotated[list[int], Meta(description="Blocks of each stage, from the first to the last.")]


class PlannedLayout(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the ranks are divided."""

    nodes: Annotated[int, Meta(description="Nodes of a job.")]
    gpus_per_node: Annotated[int, Meta(description="GPUs, and so ranks, of each node.")]
    world_size: Annotated[int, Meta(description="Ranks in all.")]
    tensor: Annotated[int, Meta(description="Tensor-parallel ranks of a replica's stage.")]
    pipeline: Annotated[int, Meta(description="Pipeline stages of a replica.")]
    data: Annotated[int, Meta(description="Replicas of the model.")]
    pipeline_partition: Annotated[
        PipelinePartition | None, Meta(description="The blocks of each stage; left out where they do not divide.")
    ] = None


class ProcessGroups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every rank of every process group; empty above 65,536 ranks."""

    tensor_groups: Annotated[list[list[int]] | None, Meta(description="Ranks that share each layer.")] = None
    pipeline_groups: Annotated[list[list[int]] | None, Meta(description="Ranks of each pipeline, by stage.")] = None
    data_groups: Annotated[list[list[int]] | None, Meta(description="Ranks that hold the same weights.")] = None
    model_parallel_groups: Annotated[list[list[int]] | None, Meta(description="Ranks of each replica.")] = None


class PlannedModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's shape, and its parameters by the usual formula; from a run file also those really trained."""

    layers: Annotated[int, Meta(description="Transformer blocks.")]
    hidden: Annotated[int, Meta(description="Hidden size.")]
    heads: Annotated[int | None, Meta(description="Attention heads; null when they were not given.")]
    key_value_heads: Annotated[
        int | None, Meta(description="Of them with keys and values of their own; only from a run file.")
    ] = None
    sequence_length: Annotated[int, Meta(description="Tokens of a sample.")]
    vocab_size: Annotated[int, Meta(description="Tokens of the vocabulary, before padding.")]
    padded_vocab_size: Annotated[int | None, Meta(description="Rows of the word embedding; only from a run file.")] = (
        None
    )
    params: Annotated[int | None, Meta(description="Parameters that are really trained; only from a run file.")] = None
    formula: Annotated[str, Meta(description="The usual formula: l layers, h hidden, v vocabulary, s sequence.")]
    formula_params: Annotated[int, Meta(description="Parameters by that formula.")]
    billion_rounded: Annotated[int, Meta(description="`formula_params` in 10^9, rounded.")]
    layer_params: Annotated[int, Meta(description="Parameters of one transformer block.")]
    embedding_params: Annotated[int, Meta(description="Parameters of the word embedding.")]
    output_params: Annotated[
        int | None, Meta(description="Parameters of an output layer of its own, 0 without; only from a run file.")
    ] = None
    hidden_per_layer: Annotated[int, Meta(description="Hidden size / layers, rounded down.")]
    hidden_per_head: Annotated[int | None, Meta(description="Hidden size / heads, where heads are given.")] = None


class InitStd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Standard deviations for the initial weights."""

    init_method_std: Annotated[float | None, Meta(description="The run's; only from a run file.")] = None
    sqrt_1_over_3h: Annotated[float, Meta(description="One usual choice: sqrt(1/(3h)), h the hidden size.")]
    sqrt_2_over_5h: Annotated[float, Meta(description="Another: sqrt(2/(5h)).")]


class RampStage(Struct, frozen=True, kw_only=True):
    """One batch size of the ramp-up.

    Nominal: samples per interval / batch, rounded down. Actual: the batch follows the samples consumed.
    """

    batch_size: Annotated[int, Meta(description="Samples of a step in this stage.")]
    first_sample: Annotated[int, Meta(description="Samples consumed when it begins.")]
    nominal_steps: Annotated[int, Meta(description="Nominal steps of this stage.")]
    actual_steps: Annotated[int, Meta(description="Steps that the trainer takes in this stage.")]
    nominal_steps_through: Annotated[int, Meta(description="Nominal steps from the start through this stage.")]
    actual_steps_through: Annotated[int, Meta(description="Steps of the trainer from the start through this stage.")]


class RampUp(Struct, frozen=True, kw_only=True):
    """How the batch grows."""

    start: Annotated[int, Meta(description="Samples of the first step.")]
    increment: Annotated[int, Meta(description="Samples that each stage adds.")]
    samples: Annotated[int, Meta(description="Samples over which the batch grows.")]
    intervals: Annotated[int, Meta(description="Stages before the full batch.")]
    samples_per_interval: Annotated[int, Meta(description="Samples of each stage.")]
    stages: Annotated[list[RampStage], Meta(description="The stages before the full batch, in order.")]


class PlannedBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The batch at its full size, and the ramp-up to it."""

    micro_batch_size: Annotated[int | None, Meta(description="Samples of a micro-batch; null when not given.")]
    global_batch_size: Annotated[int, Meta(description="Samples of a step.")]
    tokens_per_step: Annotated[int | None, Meta(description="Tokens of a step; null without a sequence length.")]
    micro_batches_per_step: Annotated[
        int | None, Meta(description="Micro-batches of each replica in a step; left out where they do not divide.")
    ] = None
    rampup: Annotated[RampUp | None, Meta(description="The ramp-up; null without one.")]


class FittingNodes(Struct, frozen=True, kw_only=True):
    """The node counts that fit from one stage of the ramp-up on."""

    first_sample: Annotated[int, Meta(description="Samples consumed when the stage begins.")]
    batch_size: Annotated[int, Meta(description="Samples of a step in this stage.")]
    nodes: Annotated[list[int], Meta(description="Node counts by which every batch from there on divides.")]


class NodesAlongTheRamp(Struct, frozen=True, kw_only=True):
    """On how many nodes the batch can grow."""

    stages: Annotated[list[FittingNodes], Meta(description="Each stage from which on other node counts fit.")]


class PlannedSchedule(Struct, frozen=True, kw_only=True):
    """The training's length, and the learning rate's; null for what the run file does not say."""

    train_samples: Annotated[int | None, Meta(description="Samples of the training.")]
    train_tokens: Annotated[int | None, Meta(description="Tokens of the training.")]
    train_iterations: Annotated[int | None, Meta(description="Iterations of the training.")]
    decay_samples: Annotated[int | None, Meta(description="Samples over which the learning rate decays.")]
    decay_tokens: Annotated[int | None, Meta(description="The same in tokens.")]
    warmup_samples: Annotated[int | None, Meta(description="Samples of the learning rate's warm-up; 0 without one.")]


class PlannedCheckpoints(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Checkpoints on disk."""

    weights_gib: Annotated[float, Meta(description="The weights alone, in GiB.")]
    full_gib: Annotated[float, Meta(description="A whole checkpoint, with optimizer states, in GiB.")]
    save_interval_iterations: Annotated[
        int | None, Meta(description="Iterations between two; null when the run does not say or there is none.")
    ]
    count: Annotated[int | None, Meta(description="How many a training makes, where its length is known.")] = None
    schedule: Annotated[str | None, Meta(description="When it saves, in words.")] = None
    written_gib: Annotated[float | None, Meta(description="What the whole training writes, in GiB.")] = None
    kept_most: Annotated[
        int | None, Meta(description="Checkpoints that lie there at most at a time; only with `[retention]`.")
    ] = None
    kept_most_gib: Annotated[float | None, Meta(description="The same in GiB.")] = None
    average_gib_per_day: Annotated[
        float | None, Meta(description="What is written in a day, where the seconds of an iteration are known.")
    ] = None
    peak_gib_per_day: Annotated[float | None, Meta(description="The same where saves are nearest to each other.")] = (
        None
    )
    save_gib_per_second: Annotated[
        float | None, Meta(description="What the disk takes during a save, where its seconds are known.")
    ] = None


class PlannedTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time to train, without waits between jobs."""

    training_days: Annotated[float | None, Meta(description="Days, from numbers.")] = None
    gpu_hours: Annotated[float | None, Meta(description="GPU hours, from numbers.")] = None
    days_at_expected_tflops: Annotated[float | None, Meta(description="Days by `[expect] tflops`.")] = None
    gpu_hours_at_expected_tflops: Annotated[float | None, Meta(description="GPU hours by `[expect] tflops`.")] = None
    assumed_mfu: Annotated[
        float | None, Meta(description="A usual share of the peak, 0 to 1, where no speed is expected or measured.")
    ] = None
    days_at_assumed_mfu: Annotated[float | None, Meta(description="Days by `assumed_mfu`.")] = None
    gpu_hours_at_assumed_mfu: Annotated[float | None, Meta(description="GPU hours by `assumed_mfu`.")] = None
    days_at_expected_seconds: Annotated[
        float | None, Meta(description="Days by `seconds_per_iteration`, expected or measured in the log.")
    ] = None
    gpu_hours_at_expected_seconds: Annotated[
        float | None, Meta(description="GPU hours by `seconds_per_iteration`, expected or measured in the log.")
    ] = None


class PlannedCarbon(Struct, frozen=True, kw_only=True):
    """Electricity and CO2e of the whole training, with an interval: of the power that is assumed and of the hours."""

    gpu_power_w: Annotated[float, Meta(description="Watts that are assumed of a GPU with its share of the node.")]
    gpu_power_low_w: Annotated[float, Meta(description="The least that is assumed.")]
    gpu_power_high_w: Annotated[float, Meta(description="The most.")]
    pue: Annotated[float, Meta(description="By what that is multiplied for cooling and losses.")]
    g_per_kwh: Annotated[float | None, Meta(description="Grams of CO2e of a kWh; null where nobody says.")]
    kwh: Annotated[float, Meta(description="Electricity in kWh, at `gpu_power_w` and the mean of the hours expected.")]
    low_kwh: Annotated[float, Meta(description="Electricity in kWh at the least power and the fewest GPU hours.")]
    high_kwh: Annotated[float, Meta(description="Electricity in kWh at the most power and the most GPU hours.")]
    kg: Annotated[float | None, Meta(description="CO2e in kg of `kwh`; null without `g_per_kwh`.")]
    low_kg: Annotated[float | None, Meta(description="CO2e in kg of `low_kwh`.")]
    high_kg: Annotated[float | None, Meta(description="CO2e in kg of `high_kwh`.")]


class PlannedThroughput(Struct, frozen=True, kw_only=True):
    """Speed at the full batch."""

    seconds_per_iteration: Annotated[float, Meta(description="Seconds of an iteration.")]
    hardware_tflops: Annotated[float, Meta(description="TFLOP/s per GPU, recomputation counted where there is any.")]
    model_tflops: Annotated[float, Meta(description="TFLOP/s per GPU without recomputation.")]


class PlannedJob(Struct, frozen=True, kw_only=True):
    """When each job of the chain leaves, and what must fit before its limit; null for what is not known yet."""

    time_limit_s: Annotated[int, Meta(description="The job's time limit, in seconds.")]
    exit_margin_s: Annotated[int, Meta(description="So long before the limit it saves and leaves, in seconds.")]
    exit_duration_minutes: Annotated[int, Meta(description="So long after its start it leaves, in minutes.")]
    iteration_s: Annotated[float | None, Meta(description="An iteration, in seconds.")]
    evaluation_s: Annotated[float | None, Meta(description="An evaluation, in seconds.")]
    save_s: Annotated[float | None, Meta(description="A save, in seconds.")]
    spare_nodes: Annotated[int, Meta(description="Nodes of each job beyond those that are trained on.")]
    spare_gpu_hours_per_day: Annotated[float, Meta(description="GPU hours a day that these take.")]
    probe: Annotated[str, Meta(description="How nodes are tested before training: `off`, `quick`, `full`.")]
    probe_most_s: Annotated[float, Meta(description="What that takes at most, in seconds; 0 where it is off.")]


class DaysLeft(Struct, frozen=True, kw_only=True):
    """What is left of a training."""

    days: Annotated[float, Meta(description="Days left.")]
    tokens: Annotated[int, Meta(description="Tokens left.")]
    sequence_length: Annotated[int, Meta(description="Tokens of a sample; 2048 when not given.")]


class SamplesOfTokens(Struct, frozen=True, kw_only=True):
    """Tokens as samples."""

    tokens: Annotated[int, Meta(description="Tokens, as given.")]
    samples: Annotated[int, Meta(description="Whole samples that hold them.")]


class WeightsByPart(Struct, frozen=True, kw_only=True):
    """The weights of a model's parts at 2 bytes a parameter."""

    block_bf16_gib: Annotated[float, Meta(description="One transformer block, in GiB.")]
    rest_bf16_gib: Annotated[float, Meta(description="Embeddings and the rest, in GiB.")]
    total_bf16_gib: Annotated[float, Meta(description="All of it, in GiB.")]


class Inputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers that were given. Counts are whole numbers."""

    params: Annotated[int | None, Meta(description="Parameters of the model.")] = None
    tokens: Annotated[int | None, Meta(description="Tokens to train on.")] = None
    gpus: Annotated[int | None, Meta(description="GPUs.")] = None
    tflops: Annotated[float | None, Meta(description="Hardware TFLOP/s per GPU.")] = None
    num_layers: Annotated[int | None, Meta(description="Transformer blocks.")] = None
    hidden_size: Annotated[int | None, Meta(description="Hidden size.")] = None
    num_attention_heads: Annotated[int | None, Meta(description="Attention heads.")] = None
    vocab_size: Annotated[int | None, Meta(description="Size of the vocabulary.")] = None
    sequence_length: Annotated[int | None, Meta(description="Tokens of a sample.")] = None
    consumed_tokens: Annotated[int | None, Meta(description="Tokens consumed so far.")] = None
    goal_tokens: Annotated[int | None, Meta(description="Tokens to consume in all.")] = None
    seconds_per_iteration: Annotated[float | None, Meta(description="Seconds of one iteration.")] = None
    global_batch_size: Annotated[int | None, Meta(description="Samples of one iteration.")] = None


class PlannedEvaluations(Struct, frozen=True, kw_only=True):
    """What [evaluation] comes to over the whole training."""

    every_iterations: Annotated[int, Meta(description="Checkpoints that this divides are evaluated.")]
    count: Annotated[int, Meta(description="How many are saved then.")]
    tasks: Annotated[int, Meta(description="Tasks of each.")]
    gpus: Annotated[int, Meta(description="GPUs of each one's job; 0: none.")]
    time_limit_s: Annotated[int | None, Meta(description="The job's limit; null where the profile says it.")]
    gpu_hours: Annotated[float | None, Meta(description="All together where each takes its limit; null: not known.")]


class RunPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run file comes to. A section that cannot be computed, since something is missing or wrong, is left out."""

    run: Annotated[PlannedRun, Meta(description="Which run this is.")]
    layout: Annotated[PlannedLayout | None, Meta(description="How the ranks are divided.")] = None
    process_groups: Annotated[ProcessGroups | None, Meta(description="The ranks of every process group.")] = None
    model: Annotated[PlannedModel | None, Meta(description="The model's shape and size.")] = None
    init_std: Annotated[InitStd | None, Meta(description="Spread of the initial weights.")] = None
    batch: Annotated[PlannedBatch | None, Meta(description="The batch and its ramp-up.")] = None
    ramp_nodes: Annotated[
        NodesAlongTheRamp | None, Meta(description="Node counts that fit along the ramp-up; left out without one.")
    ] = None
    schedule: Annotated[PlannedSchedule | None, Meta(description="Lengths of training, decay and warm-up.")] = None
    checkpoint: Annotated[PlannedCheckpoints | None, Meta(description="Sizes on disk.")] = None
    memory: Annotated[PlannedMemory | None, Meta(description="Memory of a replica and of the fullest GPU.")] = None
    time: Annotated[PlannedTime | None, Meta(description="Days and GPU hours, as expected or measured.")] = None
    carbon: Annotated[
        PlannedCarbon | None, Meta(description="Electricity and CO2e, where `[carbon] gpu_power_w` is given.")
    ] = None
    throughput: Annotated[PlannedThroughput | None, Meta(description="Speed, as expected or measured.")] = None
    evaluations: Annotated[
        PlannedEvaluations | None,
        Meta(description="Checkpoints that lm-eval is run on; left out without."),
    ] = None
    job: Annotated[PlannedJob, Meta(description="Time limit and margins of each job.")]
    problems: Annotated[list[str], Meta(description="Why it cannot be submitted; exit code 2 when there are any.")]
    warnings: Annotated[list[str], Meta(description="What is not known yet.")]


class NumbersPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a few numbers come to: every section that they suffice for."""

    inputs: Annotated[Inputs, Meta(description="The numbers that were given.")]
    time: Annotated[PlannedTime | None, Meta(description="Days and GPU hours.")] = None
    days_left: Annotated[DaysLeft | None, Meta(description="What is left of a training.")] = None
    throughput: Annotated[PlannedThroughput | None, Meta(description="Speed.")] = None
    samples: Annotated[SamplesOfTokens | None, Meta(description="The tokens as samples.")] = None
    model: Annotated[PlannedModel | None, Meta(description="The model's shape and size.")] = None
    init_std: Annotated[InitStd | None, Meta(description="Spread of the initial weights.")] = None
    parts: Annotated[WeightsByPart | None, Meta(description="Weights by part.")] = None
    checkpoint: Annotated[PlannedCheckpoints | None, Meta(description="Sizes on disk.")] = None
    memory: Annotated[PlannedMemory | None, Meta(description="Memory of a replica and of the fullest GPU.")] = None


class PlannedPeak(Struct, frozen=True, kw_only=True):
    """What the fullest GPU takes at its peak, in GB (10^9 bytes); its own libraries are not counted."""

    stage: Annotated[int, Meta(description="Its pipeline stage, from 0.")]
    moment: Annotated[str, Meta(description="When: `backward`, or `reduction` of the gradients.")]
    weights_gb: Annotated[float, Meta(description="Weights.")]
    gradients_gb: Annotated[float, Meta(description="Gradients, and their sums.")]
    optimizer_gb: Annotated[float, Meta(description="Its share of fp32 weights and both moments.")]
    buckets_gb: Annotated[float, Meta(description="Buckets that gradients are copied into.")]
    activations_gb: Annotated[float, Meta(description="Activations of all micro-batches in flight.")]
    working_gb: Annotated[
        float, Meta(description="The block or the loss whose gradients are made, with what is computed again.")
    ]
    pipeline_gb: Annotated[float, Meta(description="What stages send each other.")]
    total_gb: Annotated[float, Meta(description="All of it.")]


class PlannedMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of a replica's states, and of the fullest GPU."""

    bytes_per_param: Annotated[int, Meta(description="Bytes for each parameter, activations not counted.")]
    replica_gb: Annotated[float, Meta(description="One replica at that, in GB (10^9 bytes).")]
    per_gpu_gb: Annotated[
        float | None,
        Meta(description="The fullest GPU at its peak, in GB; only from a run file whose layout and micro-batch go."),
    ] = None
    peak: Annotated[PlannedPeak | None, Meta(description="The same by what it is for.")] = None


class SearchedGpu(Struct, frozen=True, kw_only=True):
    """What was reckoned with."""

    name: Annotated[str, Meta(description="The GPU as `[slurm]` asks for it.")]
    gpus: Annotated[int, Meta(description="GPUs in all.")]
    gpus_per_node: Annotated[int, Meta(description="GPUs of each node.")]
    memory_gb: Annotated[float, Meta(description="Memory of each, in GB (10^9 bytes).")]
    usable_gb: Annotated[float, Meta(description="What of it a training may take.")]
    peak_tflops: Annotated[float, Meta(description="Stated dense TFLOP/s of each.")]
    within_node_gbs: Annotated[float, Meta(description="GB/s of each GPU to those of its node.")]
    between_nodes_gbs: Annotated[float, Meta(description="GB/s of each node to others.")]


class FittingLayout(Struct, frozen=True, kw_only=True):
    """One layout that fits, and what it takes."""

    tensor: Annotated[int, Meta(description="Tensor-parallel ranks.")]
    pipeline: Annotated[int, Meta(description="Pipeline stages.")]
    data: Annotated[int, Meta(description="Replicas.")]
    micro_batch_size: Annotated[int, Meta(description="Samples of a micro-batch.")]
    recompute: Annotated[str, Meta(description="What is recomputed: `none`, `attention` or `block`.")]
    micro_batches: Annotated[int, Meta(description="Micro-batches of each replica in a step at the full batch.")]
    seconds_per_iteration: Annotated[float, Meta(description="Reckoned seconds of a step at the full batch.")]
    memory_gb: Annotated[float, Meta(description="The fullest GPU's peak, in GB.")]
    bubble: Annotated[float, Meta(description="(stages - 1) / micro-batches.")]
    communication: Annotated[float, Meta(description="Share of a step that goes to communication, 0 to 1.")]
    is_the_run: Annotated[
        bool,
        Meta(description="Whether the run file has this layout and micro-batch, whatever it recomputes."),
    ]


class LayoutSearch(Struct, frozen=True, kw_only=True):
    """Layouts that fit the GPUs' memory, the fastest first."""

    run: Annotated[str, Meta(description="The run's name.")]
    gpu: Annotated[SearchedGpu, Meta(description="The GPU and what connects it.")]
    scaled_by: Annotated[
        float | None,
        Meta(description="By what seconds are scaled to the run's own speed, measured or expected; null: neither."),
    ]
    own: Annotated[
        FittingLayout | None,
        Meta(description="The run's own layout with what it recomputes, whether or not it fits; null: of other GPUs."),
    ]
    layouts: Annotated[list[FittingLayout], Meta(description="All that fit.")]
