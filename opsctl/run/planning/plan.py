"""The contents of a plan: one struct for each section, in the form of `opsctl plan --json`.

A field without default is always printed; a field with default None is omitted without a value.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class PlannedRun(Struct, frozen=True, kw_only=True):
    """The planned run."""

    name: Annotated[str, Meta(description="The run's name.")]
    file: Annotated[str, Meta(description="Absolute path of its run file.")]


class PipelinePartition(Struct, frozen=True, kw_only=True):
    """The division of the transformer blocks into pipeline stages."""

    method: Annotated[str, Meta(description="The trainer's `--pp-partition-method`.")]
    blocks_per_stage: Annotated[list[int], Meta(description="Blocks of each stage, from the first to the last.")]


class PlannedLayout(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The layout of the ranks."""

    nodes: Annotated[int, Meta(description="Nodes of a job.")]
    gpus_per_node: Annotated[int, Meta(description="GPUs, and so ranks, of each node.")]
    world_size: Annotated[int, Meta(description="Number of ranks.")]
    tensor: Annotated[int, Meta(description="Tensor-parallel ranks of a replica's stage.")]
    pipeline: Annotated[int, Meta(description="Pipeline stages of a replica.")]
    data: Annotated[int, Meta(description="Replicas of the model.")]
    pipeline_partition: Annotated[
        PipelinePartition | None, Meta(description="The blocks of each stage; omitted if they do not divide.")
    ] = None


class ProcessGroups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every rank of every process group; empty above 65,536 ranks."""

    tensor_groups: Annotated[list[list[int]] | None, Meta(description="Ranks that share each layer.")] = None
    pipeline_groups: Annotated[list[list[int]] | None, Meta(description="Ranks of each pipeline, by stage.")] = None
    data_groups: Annotated[list[list[int]] | None, Meta(description="Ranks that hold the same weights.")] = None
    model_parallel_groups: Annotated[list[list[int]] | None, Meta(description="Ranks of each replica.")] = None


class PlannedModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's shape, and its parameters by the usual formula; from a run file also the actual ones."""

    layers: Annotated[int, Meta(description="Transformer blocks.")]
    hidden: Annotated[int, Meta(description="Hidden size.")]
    heads: Annotated[int | None, Meta(description="Attention heads; null if not given.")]
    key_value_heads: Annotated[
        int | None, Meta(description="Heads with their own keys and values; only from a run file.")
    ] = None
    sequence_length: Annotated[int, Meta(description="Tokens of a sample.")]
    vocab_size: Annotated[int, Meta(description="Tokens of the vocabulary, before padding.")]
    padded_vocab_size: Annotated[int | None, Meta(description="Rows of the word embedding; only from a run file.")] = (
        None
    )
    params: Annotated[int | None, Meta(description="Actual parameters; only from a run file.")] = None
    formula: Annotated[str, Meta(description="The usual formula: l layers, h hidden, v vocabulary, s sequence.")]
    formula_params: Annotated[int, Meta(description="Parameters by that formula.")]
    billion_rounded: Annotated[int, Meta(description="`formula_params` in 10^9, rounded.")]
    layer_params: Annotated[int, Meta(description="Parameters of one transformer block.")]
    embedding_params: Annotated[int, Meta(description="Parameters of the word embedding.")]
    output_params: Annotated[
        int | None, Meta(description="Parameters of an untied output layer, 0 if tied; only from a run file.")
    ] = None
    hidden_per_layer: Annotated[int, Meta(description="Hidden size / layers, rounded down.")]
    hidden_per_head: Annotated[int | None, Meta(description="Hidden size / heads, if given.")] = None


class InitStd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Standard deviations for the initial weights."""

    init_method_std: Annotated[float | None, Meta(description="The run's value; only from a run file.")] = None
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
    """The ramp-up of the batch."""

    start: Annotated[int, Meta(description="Samples of the first step.")]
    increment: Annotated[int, Meta(description="Samples that each stage adds.")]
    samples: Annotated[int, Meta(description="Samples over which the batch grows.")]
    intervals: Annotated[int, Meta(description="Stages before the full batch.")]
    samples_per_interval: Annotated[int, Meta(description="Samples of each stage.")]
    stages: Annotated[list[RampStage], Meta(description="The stages before the full batch, in order.")]


class PlannedBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The batch at its full size, and the ramp-up to it."""

    micro_batch_size: Annotated[int | None, Meta(description="Samples of a micro-batch; null if not given.")]
    global_batch_size: Annotated[int, Meta(description="Samples of a step.")]
    tokens_per_step: Annotated[int | None, Meta(description="Tokens of a step; null without a sequence length.")]
    micro_batches_per_step: Annotated[
        int | None, Meta(description="Micro-batches of each replica in a step; omitted if they do not divide.")
    ] = None
    rampup: Annotated[RampUp | None, Meta(description="The ramp-up; null without one.")]


class FittingNodes(Struct, frozen=True, kw_only=True):
    """The node counts that fit from one stage of the ramp-up on."""

    first_sample: Annotated[int, Meta(description="Samples consumed when the stage begins.")]
    batch_size: Annotated[int, Meta(description="Samples of a step in this stage.")]
    nodes: Annotated[list[int], Meta(description="Node counts that divide every batch from there on.")]


class NodesAlongTheRamp(Struct, frozen=True, kw_only=True):
    """The node counts on which the batch can grow."""

    stages: Annotated[list[FittingNodes], Meta(description="Stages from which on other node counts fit.")]


class PlannedSchedule(Struct, frozen=True, kw_only=True):
    """The length of the training and of the learning rate's decay; null for undefined values."""

    train_samples: Annotated[int | None, Meta(description="Samples of the training.")]
    train_tokens: Annotated[int | None, Meta(description="Tokens of the training.")]
    train_iterations: Annotated[int | None, Meta(description="Iterations of the training.")]
    decay_samples: Annotated[int | None, Meta(description="Samples over which the learning rate decays.")]
    decay_tokens: Annotated[int | None, Meta(description="The same in tokens.")]
    warmup_samples: Annotated[int | None, Meta(description="Samples of the learning rate's warm-up; 0 without one.")]


class PlannedCheckpoints(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Checkpoints on disk."""

    weights_gib: Annotated[float, Meta(description="The weights alone, in GiB.")]
    full_gib: Annotated[float, Meta(description="A complete checkpoint, with optimizer states, in GiB.")]
    save_interval_iterations: Annotated[int | None, Meta(description="Iterations between two; null if undefined.")]
    count: Annotated[int | None, Meta(description="Number in the whole training, if its length is known.")] = None
    schedule: Annotated[str | None, Meta(description="The save schedule, in words.")] = None
    written_gib: Annotated[float | None, Meta(description="GiB that the whole training writes.")] = None
    kept_most: Annotated[
        int | None, Meta(description="Most checkpoints on disk at the same time; only with `[retention]`.")
    ] = None
    kept_most_gib: Annotated[float | None, Meta(description="The same in GiB.")] = None
    average_gib_per_day: Annotated[
        float | None, Meta(description="GiB per day, if the seconds of an iteration are known.")
    ] = None
    peak_gib_per_day: Annotated[float | None, Meta(description="The same at the densest saves.")] = None
    save_gib_per_second: Annotated[
        float | None, Meta(description="GiB per second during a save, if its seconds are known.")
    ] = None


class PlannedTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time to train, without waits between jobs."""

    training_days: Annotated[float | None, Meta(description="Days, from given numbers.")] = None
    gpu_hours: Annotated[float | None, Meta(description="GPU hours, from given numbers.")] = None
    days_at_expected_tflops: Annotated[float | None, Meta(description="Days by `[expect] tflops`.")] = None
    gpu_hours_at_expected_tflops: Annotated[float | None, Meta(description="GPU hours by `[expect] tflops`.")] = None
    assumed_mfu: Annotated[
        float | None, Meta(description="A usual share of the peak, 0 to 1, without an expected or measured speed.")
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
    """Electricity and CO2e of the whole training, with the interval of the assumed power and hours."""

    gpu_power_w: Annotated[float, Meta(description="Assumed watts of a GPU with its share of the node.")]
    gpu_power_low_w: Annotated[float, Meta(description="Lower end of the assumption.")]
    gpu_power_high_w: Annotated[float, Meta(description="Upper end of the assumption.")]
    pue: Annotated[float, Meta(description="Factor for cooling and losses.")]
    g_per_kwh: Annotated[float | None, Meta(description="Grams of CO2e of a kWh; null if unknown.")]
    kwh: Annotated[float, Meta(description="Electricity in kWh, at `gpu_power_w` and the mean of the hours expected.")]
    low_kwh: Annotated[float, Meta(description="Electricity in kWh at the least power and the fewest GPU hours.")]
    high_kwh: Annotated[float, Meta(description="Electricity in kWh at the most power and the most GPU hours.")]
    kg: Annotated[float | None, Meta(description="CO2e in kg of `kwh`; null without `g_per_kwh`.")]
    low_kg: Annotated[float | None, Meta(description="CO2e in kg of `low_kwh`.")]
    high_kg: Annotated[float | None, Meta(description="CO2e in kg of `high_kwh`.")]


class PlannedThroughput(Struct, frozen=True, kw_only=True):
    """Speed at the full batch."""

    seconds_per_iteration: Annotated[float, Meta(description="Seconds of an iteration.")]
    hardware_tflops: Annotated[float, Meta(description="TFLOP/s per GPU, including recomputation.")]
    model_tflops: Annotated[float, Meta(description="TFLOP/s per GPU without recomputation.")]


class PlannedFewerNodes(Struct, frozen=True, kw_only=True):
    """The layout on fewer nodes, with the same global batch."""

    nodes: Annotated[int, Meta(description="Nodes.")]
    tensor: Annotated[int, Meta(description="Tensor-parallel size.")]
    pipeline: Annotated[int, Meta(description="Pipeline-parallel size.")]
    data: Annotated[int, Meta(description="Data-parallel size.")]
    micro_batch_size: Annotated[int, Meta(description="Samples of a micro-batch.")]


class PlannedJob(Struct, frozen=True, kw_only=True):
    """The exit time of each job of the chain, and what must fit before its limit; null for unknown values."""

    time_limit_s: Annotated[int, Meta(description="The job's time limit, in seconds.")]
    exit_margin_s: Annotated[int, Meta(description="Seconds before the limit at which it saves and leaves.")]
    exit_duration_minutes: Annotated[int, Meta(description="Minutes after its start at which it leaves.")]
    iteration_s: Annotated[float | None, Meta(description="Seconds of an iteration.")]
    evaluation_s: Annotated[float | None, Meta(description="Seconds of an evaluation.")]
    save_s: Annotated[float | None, Meta(description="Seconds of a save.")]
    restarts: Annotated[int, Meta(description="Most restarts in each job; 0 allows them only on spare nodes.")]
    spare_nodes: Annotated[int, Meta(description="Spare nodes of each job.")]
    fewer_nodes: Annotated[
        list[PlannedFewerNodes],
        Meta(description="Layouts after the loss of nodes without a spare one, the largest ones; empty if off."),
    ]
    spare_gpu_hours_per_day: Annotated[float, Meta(description="GPU hours per day of the spare nodes.")]
    probe: Annotated[str, Meta(description="Test of nodes before training: `off`, `quick`, `full`.")]
    probe_most_s: Annotated[float, Meta(description="Most seconds of the test; 0 if off.")]


class DaysLeft(Struct, frozen=True, kw_only=True):
    """The rest of a training."""

    days: Annotated[float, Meta(description="Days left.")]
    tokens: Annotated[int, Meta(description="Tokens left.")]
    sequence_length: Annotated[int, Meta(description="Tokens of a sample; 2048 if not given.")]


class SamplesOfTokens(Struct, frozen=True, kw_only=True):
    """The conversion of tokens to samples."""

    tokens: Annotated[int, Meta(description="Tokens, as given.")]
    samples: Annotated[int, Meta(description="Whole samples with these tokens.")]


class WeightsByPart(Struct, frozen=True, kw_only=True):
    """The weights of a model's parts at 2 bytes per parameter."""

    block_bf16_gib: Annotated[float, Meta(description="One transformer block, in GiB.")]
    rest_bf16_gib: Annotated[float, Meta(description="Embeddings and the rest, in GiB.")]
    total_bf16_gib: Annotated[float, Meta(description="Total, in GiB.")]


class Inputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The given numbers. Counts are whole numbers."""

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
    goal_tokens: Annotated[int | None, Meta(description="Total tokens to consume.")] = None
    seconds_per_iteration: Annotated[float | None, Meta(description="Seconds of one iteration.")] = None
    global_batch_size: Annotated[int | None, Meta(description="Samples of one iteration.")] = None


class PlannedEvaluations(Struct, frozen=True, kw_only=True):
    """The evaluations of [evaluation] over the whole training."""

    every_iterations: Annotated[int, Meta(description="Checkpoints at multiples of this are evaluated.")]
    count: Annotated[int, Meta(description="Number of these checkpoints.")]
    tasks: Annotated[int, Meta(description="Tasks of each.")]
    gpus: Annotated[int, Meta(description="GPUs of each one's job; 0: none.")]
    time_limit_s: Annotated[int | None, Meta(description="The job's limit; null if the profile defines it.")]
    gpu_hours: Annotated[float | None, Meta(description="Total if each takes its limit; null if unknown.")]


class PlannedProgram(Struct, frozen=True, kw_only=True):
    """The training program of a run."""

    kind: Annotated[str, Meta(description="`[program] kind`.")]
    command: Annotated[tuple[str, ...], Meta(description="Its words.")]
    launch: Annotated[str, Meta(description="Program that starts its ranks: `torchrun`, `accelerate` or `ranks`.")]
    stop: Annotated[str | None, Meta(description="Signal on which it saves and exits, or `hook`; null: none.")]
    grace_s: Annotated[int, Meta(description="Seconds from that signal to the end of its processes.")]
    checkpoints: Annotated[str | None, Meta(description="Pattern of its checkpoints; null if unknown.")]
    steps: Annotated[int | None, Meta(description="Length of the training in steps; null if unknown.")]
    lacks: Annotated[tuple[str, ...], Meta(description="Functions that it does not support.")]
    refused: Annotated[str | None, Meta(description="Why it cannot be submitted yet; null if it can.")] = None


class RunPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan of a run file. Sections that cannot be computed are omitted."""

    run: Annotated[PlannedRun, Meta(description="The run.")]
    program: Annotated[PlannedProgram | None, Meta(description="A training program other than our trainer.")] = None
    layout: Annotated[PlannedLayout | None, Meta(description="The layout of the ranks.")] = None
    process_groups: Annotated[ProcessGroups | None, Meta(description="The ranks of every process group.")] = None
    model: Annotated[PlannedModel | None, Meta(description="The model's shape and size.")] = None
    init_std: Annotated[InitStd | None, Meta(description="Spread of the initial weights.")] = None
    batch: Annotated[PlannedBatch | None, Meta(description="The batch and its ramp-up.")] = None
    ramp_nodes: Annotated[
        NodesAlongTheRamp | None, Meta(description="Node counts that fit along the ramp-up; omitted without one.")
    ] = None
    schedule: Annotated[PlannedSchedule | None, Meta(description="Lengths of training, decay and warm-up.")] = None
    checkpoint: Annotated[PlannedCheckpoints | None, Meta(description="Sizes on disk.")] = None
    memory: Annotated[PlannedMemory | None, Meta(description="Memory of a replica and of the fullest GPU.")] = None
    time: Annotated[PlannedTime | None, Meta(description="Days and GPU hours, as expected or measured.")] = None
    carbon: Annotated[
        PlannedCarbon | None, Meta(description="Electricity and CO2e, if `[carbon] gpu_power_w` is given.")
    ] = None
    throughput: Annotated[PlannedThroughput | None, Meta(description="Speed, as expected or measured.")] = None
    evaluations: Annotated[
        PlannedEvaluations | None,
        Meta(description="Checkpoints that lm-eval evaluates; omitted without."),
    ] = None
    job: Annotated[PlannedJob, Meta(description="Time limit and margins of each job.")]
    problems: Annotated[list[str], Meta(description="Why it cannot be submitted; exit code 2 if there are any.")]
    warnings: Annotated[list[str], Meta(description="Facts that are unknown so far.")]


class NumbersPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan of a few numbers: every section that they allow."""

    inputs: Annotated[Inputs, Meta(description="The given numbers.")]
    time: Annotated[PlannedTime | None, Meta(description="Days and GPU hours.")] = None
    days_left: Annotated[DaysLeft | None, Meta(description="The rest of a training.")] = None
    throughput: Annotated[PlannedThroughput | None, Meta(description="Speed.")] = None
    samples: Annotated[SamplesOfTokens | None, Meta(description="The tokens as samples.")] = None
    model: Annotated[PlannedModel | None, Meta(description="The model's shape and size.")] = None
    init_std: Annotated[InitStd | None, Meta(description="Spread of the initial weights.")] = None
    parts: Annotated[WeightsByPart | None, Meta(description="Weights by part.")] = None
    checkpoint: Annotated[PlannedCheckpoints | None, Meta(description="Sizes on disk.")] = None
    memory: Annotated[PlannedMemory | None, Meta(description="Memory of a replica and of the fullest GPU.")] = None


class PlannedPeak(Struct, frozen=True, kw_only=True):
    """The peak memory of the fullest GPU, in GB (10^9 bytes), without its libraries."""

    stage: Annotated[int, Meta(description="Its pipeline stage, from 0.")]
    moment: Annotated[str, Meta(description="Moment of the peak: `backward`, or `reduction` of the gradients.")]
    weights_gb: Annotated[float, Meta(description="Weights.")]
    gradients_gb: Annotated[float, Meta(description="Gradients, and their sums.")]
    optimizer_gb: Annotated[float, Meta(description="Its share of fp32 weights and both moments.")]
    buckets_gb: Annotated[float, Meta(description="Buckets for copies of gradients.")]
    activations_gb: Annotated[float, Meta(description="Activations of all micro-batches in flight.")]
    working_gb: Annotated[float, Meta(description="The block or loss in the backward pass, with recomputed values.")]
    pipeline_gb: Annotated[float, Meta(description="Transfers between stages.")]
    total_gb: Annotated[float, Meta(description="Total.")]


class PlannedMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of a replica's states, and of the fullest GPU."""

    bytes_per_param: Annotated[int, Meta(description="Bytes for each parameter, without activations.")]
    replica_gb: Annotated[float, Meta(description="One replica at that, in GB (10^9 bytes).")]
    per_gpu_gb: Annotated[
        float | None,
        Meta(description="The fullest GPU at its peak, in GB; only from a run file with valid layout and micro-batch."),
    ] = None
    peak: Annotated[PlannedPeak | None, Meta(description="The same by purpose.")] = None


class SearchedGpu(Struct, frozen=True, kw_only=True):
    """The assumptions of a search."""

    name: Annotated[str, Meta(description="The GPU as `[slurm]` asks for it.")]
    gpus: Annotated[int, Meta(description="Number of GPUs.")]
    gpus_per_node: Annotated[int, Meta(description="GPUs of each node.")]
    memory_gb: Annotated[float, Meta(description="Memory of each, in GB (10^9 bytes).")]
    usable_gb: Annotated[float, Meta(description="Usable memory of each, in GB.")]
    peak_tflops: Annotated[float, Meta(description="Stated dense TFLOP/s of each.")]
    within_node_gbs: Annotated[float, Meta(description="GB/s of each GPU to those of its node.")]
    between_nodes_gbs: Annotated[float, Meta(description="GB/s of each node to others.")]


class FittingLayout(Struct, frozen=True, kw_only=True):
    """One layout that fits, and its costs."""

    tensor: Annotated[int, Meta(description="Tensor-parallel ranks.")]
    pipeline: Annotated[int, Meta(description="Pipeline stages.")]
    data: Annotated[int, Meta(description="Replicas.")]
    micro_batch_size: Annotated[int, Meta(description="Samples of a micro-batch.")]
    recompute: Annotated[str, Meta(description="Recomputation: `none`, `attention` or `block`.")]
    micro_batches: Annotated[int, Meta(description="Micro-batches of each replica in a step at the full batch.")]
    seconds_per_iteration: Annotated[float, Meta(description="Estimated seconds of a step at the full batch.")]
    memory_gb: Annotated[float, Meta(description="The fullest GPU's peak, in GB.")]
    bubble: Annotated[float, Meta(description="(stages - 1) / micro-batches.")]
    communication: Annotated[float, Meta(description="Share of a step that goes to communication, 0 to 1.")]
    is_the_run: Annotated[
        bool,
        Meta(description="True if the run file has this layout and micro-batch, with any recomputation."),
    ]


class LayoutSearch(Struct, frozen=True, kw_only=True):
    """Layouts that fit the GPUs' memory, the fastest first."""

    run: Annotated[str, Meta(description="The run's name.")]
    gpu: Annotated[SearchedGpu, Meta(description="The GPU and its connections.")]
    scaled_by: Annotated[
        float | None,
        Meta(description="Factor that scales seconds to the run's measured or expected speed; null without one."),
    ]
    own: Annotated[
        FittingLayout | None,
        Meta(description="The run's own layout and recomputation, even if it does not fit; null on other GPUs."),
    ]
    layouts: Annotated[list[FittingLayout], Meta(description="All layouts that fit.")]
