"""The plan of a few numbers, without a run file: whatever can be worked out of the ones given."""

from __future__ import annotations

import msgspec

from opsctl.core.errors import UsageError
from opsctl.run.planning import arithmetic
from opsctl.run.planning.costs import days_text
from opsctl.run.planning.plan import (
    DaysLeft,
    InitStd,
    Inputs,
    PlannedCheckpoints,
    PlannedModel,
    PlannedThroughput,
    PlannedTime,
    SamplesOfTokens,
    WeightsByPart,
)
from opsctl.run.planning.section import Section, amount, billions, gb_text, gib_text, whole
from opsctl.run.planning.sizes import FORMULA, memory_values
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.schedule import samples_of_tokens
from trainer.recipe.sizes import (
    MODEL_PASSES,
    formula_block_parameters,
    formula_parameters,
    rest_parameters,
    tflops_per_gpu,
)
from trainer.recipe.vocabulary import Vocabulary

#: Taken where steps are counted in tokens and no length is given; the screen says so.
USUAL_SEQUENCE_LENGTH = 2048


def plan_inputs(inputs: Inputs) -> list[Section]:
    """Every part that the inputs suffice for. Raises UsageError when they suffice for none or contradict each other."""
    _check(inputs)
    params = inputs.params if inputs.params is not None else _formula(inputs)
    candidates = (
        _time(inputs, params),
        _days_left(inputs),
        _throughput(inputs),
        _samples(inputs),
        _model(inputs),
        _init_std(inputs),
        _parts(inputs),
        _checkpoint(params),
        _memory(params),
    )
    sections = [section for section in candidates if section is not None]
    if not sections:
        raise UsageError(f"nothing can be planned from {_flags(inputs)} alone: {_WHAT_IT_TAKES}")
    return sections


_WHAT_IT_TAKES = (
    "days take --params --tokens --gpus --tflops; sizes --num-layers --hidden-size --vocab-size --sequence-length; "
    "days left --consumed-tokens --goal-tokens --seconds-per-iteration --global-batch-size"
)


def _flags(inputs: Inputs) -> str:
    return " ".join("--" + name.replace("_", "-") for name in msgspec.to_builtins(inputs))


def _check(inputs: Inputs) -> None:
    if inputs.hidden_size and inputs.num_attention_heads and inputs.hidden_size % inputs.num_attention_heads:
        raise UsageError(
            f"--hidden-size {inputs.hidden_size} is not divisible by --num-attention-heads {inputs.num_attention_heads}"
        )
    if (
        inputs.consumed_tokens is not None
        and inputs.goal_tokens is not None
        and inputs.consumed_tokens > inputs.goal_tokens
    ):
        raise UsageError(
            f"--consumed-tokens {inputs.consumed_tokens} is above --goal-tokens {inputs.goal_tokens}: nothing is left"
        )


def _formula(inputs: Inputs) -> int | None:
    layers, hidden, sequence, vocabulary = (
        inputs.num_layers,
        inputs.hidden_size,
        inputs.sequence_length,
        inputs.vocab_size,
    )
    if layers is None or hidden is None or sequence is None or vocabulary is None:
        return None
    return formula_parameters(layers, hidden, sequence, vocabulary)


def _model(inputs: Inputs) -> Section | None:
    total, layers, hidden = _formula(inputs), inputs.num_layers, inputs.hidden_size
    if total is None or layers is None or hidden is None:
        return None
    if inputs.vocab_size is None or inputs.sequence_length is None:
        return None
    values = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=inputs.num_attention_heads,
        sequence_length=inputs.sequence_length,
        vocab_size=inputs.vocab_size,
        formula=FORMULA,
        formula_params=total,
        billion_rounded=round(total / 1e9),
        layer_params=formula_block_parameters(hidden),
        embedding_params=inputs.vocab_size * hidden,
        hidden_per_layer=hidden // layers,
        hidden_per_head=hidden // inputs.num_attention_heads if inputs.num_attention_heads else None,
    )
    rows = [
        ("parameters", f"{whole(total)} ({billions(total)}): l(12h^2+13h) + vh + sh + 2h"),
        ("one block", whole(formula_block_parameters(hidden))),
        ("word embedding", whole(inputs.vocab_size * hidden)),
    ]
    per_head = f", per head {values.hidden_per_head}" if values.hidden_per_head is not None else ""
    rows.append(("hidden size per layer", f"{hidden // layers}{per_head}"))
    return Section("model", "Model, with learned positions", values, tuple(rows))


def _init_std(inputs: Inputs) -> Section | None:
    if inputs.hidden_size is None:
        return None
    third, fifths = arithmetic.init_std_third(inputs.hidden_size), arithmetic.init_std_two_fifths(inputs.hidden_size)
    return Section(
        "init_std",
        "Initial weights",
        InitStd(sqrt_1_over_3h=third, sqrt_2_over_5h=fifths),
        (("standard deviation", f"sqrt(1/(3h)) is {third:.6f}, sqrt(2/(5h)) is {fifths:.6f}"),),
    )


def _parts(inputs: Inputs) -> Section | None:
    hidden, total = inputs.hidden_size, _formula(inputs)
    if total is None or hidden is None or inputs.sequence_length is None or inputs.vocab_size is None:
        return None
    block = arithmetic.weights_gib(formula_block_parameters(hidden))
    rest = arithmetic.weights_gib(rest_parameters(hidden, inputs.sequence_length, inputs.vocab_size))
    whole_model = arithmetic.weights_gib(total)
    return Section(
        "parts",
        "Weights by part, 2 bytes a parameter",
        WeightsByPart(block_bf16_gib=block, rest_bf16_gib=rest, total_bf16_gib=whole_model),
        (
            ("one block", gib_text(block)),
            ("embeddings and the rest", gib_text(rest)),
            ("all", gib_text(whole_model)),
        ),
    )


def _checkpoint(params: int | None) -> Section | None:
    if params is None:
        return None
    weights, full = arithmetic.weights_gib(params), arithmetic.checkpoint_gib(params)
    return Section(
        "checkpoint",
        "Checkpoints",
        PlannedCheckpoints(weights_gib=weights, full_gib=full, save_interval_iterations=None),
        (("weights / whole", f"{gib_text(weights)} / {gib_text(full)} (2 and 14 bytes a parameter)"),),
    )


def _memory(params: int | None) -> Section | None:
    if params is None:
        return None
    total = arithmetic.memory_gb(params)
    return Section(
        "memory",
        "Memory for weights, gradients and optimizer",
        memory_values(total),
        (("a replica", f"{gb_text(total)}: 18 bytes a parameter, activations not counted"),),
    )


def _time(inputs: Inputs, params: int | None) -> Section | None:
    tokens, gpus, tflops = inputs.tokens, inputs.gpus, inputs.tflops
    if params is None or tokens is None or gpus is None or tflops is None:
        return None
    days = arithmetic.training_days(params, tokens, gpus, tflops)
    return Section(
        "time",
        "Time to train, without waits between jobs",
        PlannedTime(training_days=days, gpu_hours=days * 24 * gpus),
        (
            (f"at {tflops:g} TFLOPs a GPU", days_text(days, gpus)),
            ("reckoned as", "8 x tokens x parameters / (GPUs x TFLOPs): recomputation counted, no batch ramp-up"),
        ),
    )


def _days_left(inputs: Inputs) -> Section | None:
    consumed, goal = inputs.consumed_tokens, inputs.goal_tokens
    seconds, batch = inputs.seconds_per_iteration, inputs.global_batch_size
    if consumed is None or goal is None or seconds is None or batch is None:
        return None
    sequence = inputs.sequence_length or USUAL_SEQUENCE_LENGTH
    days = arithmetic.days_left(consumed, goal, seconds, batch, sequence)
    rows = [
        ("tokens left", f"{goal - consumed:,} of {goal:,}"),
        ("days left", f"{amount(days)} at {seconds:g} s for each step of {batch:,} samples"),
    ]
    if inputs.sequence_length is None:
        rows.append(("sequence length", f"{sequence:,} taken; --sequence-length gives another"))
    values = DaysLeft(days=days, tokens=goal - consumed, sequence_length=sequence)
    return Section("days_left", "What is left", values, tuple(rows))


def _throughput(inputs: Inputs) -> Section | None:
    layers, hidden, vocabulary, sequence = (
        inputs.num_layers,
        inputs.hidden_size,
        inputs.vocab_size,
        inputs.sequence_length,
    )
    batch, seconds, gpus = inputs.global_batch_size, inputs.seconds_per_iteration, inputs.gpus
    if layers is None or hidden is None or vocabulary is None or sequence is None:
        return None
    if batch is None or seconds is None or gpus is None:
        return None
    given = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": inputs.num_attention_heads or 1}
    shape = ModelShape.of(from_tables({**given, "seq_length": sequence}), Vocabulary.unpadded(vocabulary))
    hardware = tflops_per_gpu(shape, batch, sequence, seconds, gpus)
    model = tflops_per_gpu(shape, batch, sequence, seconds, gpus, MODEL_PASSES)
    return Section(
        "throughput",
        "Speed",
        PlannedThroughput(seconds_per_iteration=seconds, hardware_tflops=hardware, model_tflops=model),
        (("TFLOPs a GPU", f"{amount(hardware)} hardware (recomputation counted), {amount(model)} model"),),
    )


def _samples(inputs: Inputs) -> Section | None:
    if inputs.tokens is None or inputs.sequence_length is None:
        return None
    samples = samples_of_tokens(inputs.tokens, inputs.sequence_length)
    return Section(
        "samples",
        "Samples",
        SamplesOfTokens(tokens=inputs.tokens, samples=samples),
        (
            (
                "samples",
                f"{samples:,} hold {billions(inputs.tokens)} tokens at a sequence length of {inputs.sequence_length:,}",
            ),
        ),
    )
