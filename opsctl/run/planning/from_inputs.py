"""Plan from a few numbers, without a run file: every section that the given numbers allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from opsctl.core.errors import UsageError
from opsctl.run.planning import arithmetic
from opsctl.run.planning.costs import checkpoint_sizes, days_text
from opsctl.run.planning.plan import (
    DaysLeft,
    Inputs,
    PlannedModel,
    PlannedThroughput,
    PlannedTime,
    SamplesOfTokens,
    WeightsByPart,
)
from opsctl.run.planning.section import Section, amount, billions, gib_text, whole
from opsctl.run.planning.sizes import FORMULA, init_std_section, replica_memory
from trainer.recipe.model_options import Vocabulary
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

#: Used if steps are counted in tokens and no length is given; the report shows it.
USUAL_SEQUENCE_LENGTH = 2048
_WHAT_IT_TAKES = (
    "days need --params --tokens --gpus --tflops; sizes need --num-layers --hidden-size --vocab-size "
    "--sequence-length; days left need --consumed-tokens --goal-tokens --seconds-per-iteration --global-batch-size"
)
_SHAPE = ("num_layers", "hidden_size", "sequence_length", "vocab_size")
Given = Mapping[str, Any]


def plan_inputs(inputs: Inputs) -> list[Section]:
    """Return every section that the inputs allow. Raises UsageError if there is none, or if they contradict."""
    given: dict[str, Any] = msgspec.to_builtins(inputs)
    flags = " ".join("--" + name.replace("_", "-") for name in given)
    hidden, heads = given.get("hidden_size"), given.get("num_attention_heads")
    if hidden and heads and hidden % heads:
        raise UsageError(f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}")
    consumed, goal = given.get("consumed_tokens"), given.get("goal_tokens")
    if consumed is not None and goal is not None and consumed > goal:
        raise UsageError(f"--consumed-tokens {consumed} is above --goal-tokens {goal}: nothing is left")
    if all(name in given for name in _SHAPE):
        given["formula"] = formula_parameters(*(given[name] for name in _SHAPE))
        given.setdefault("params", given["formula"])
    sections = [section(given) for needed, section in _SECTIONS if all(name in given for name in needed)]
    if not sections:
        raise UsageError(f"nothing can be planned from {flags} alone: {_WHAT_IT_TAKES}")
    return sections


def _time(given: Given) -> Section:
    gpus, tflops = given["gpus"], given["tflops"]
    days = arithmetic.training_days(given["params"], given["tokens"], gpus, tflops)
    rows = (
        (f"at {tflops:g} TFLOPs a GPU", days_text(days, gpus)),
        ("computed as", "8 x tokens x parameters / (GPUs x TFLOPs): recomputation counted, no batch ramp-up"),
    )
    values = PlannedTime(training_days=days, gpu_hours=days * 24 * gpus)
    return Section("time", "Time to train, without waits between jobs", values, rows)


def _days_left(given: Given) -> Section:
    consumed, goal, batch = given["consumed_tokens"], given["goal_tokens"], given["global_batch_size"]
    seconds, sequence = given["seconds_per_iteration"], given.get("sequence_length", USUAL_SEQUENCE_LENGTH)
    days = arithmetic.days_left(consumed, goal, seconds, batch, sequence)
    rows = [
        ("tokens left", f"{goal - consumed:,} of {goal:,}"),
        ("days left", f"{amount(days)} at {seconds:g} s for each step of {batch:,} samples"),
    ]
    if "sequence_length" not in given:
        rows.append(("sequence length", f"{sequence:,} assumed; to change it: --sequence-length"))
    values = DaysLeft(days=days, tokens=goal - consumed, sequence_length=sequence)
    return Section("days_left", "What is left", values, tuple(rows))


def _throughput(given: Given) -> Section:
    keys = ("global_batch_size", "sequence_length", "seconds_per_iteration", "gpus")
    batch, sequence, seconds, gpus = (given[key] for key in keys)
    options = {key: given[key] for key in ("num_layers", "hidden_size")} | {"seq_length": sequence}
    options["num_attention_heads"] = given.get("num_attention_heads", 1)
    shape = ModelShape.of(from_tables(options), Vocabulary.unpadded(given["vocab_size"]))
    hardware = tflops_per_gpu(shape, batch, sequence, seconds, gpus)
    model = tflops_per_gpu(shape, batch, sequence, seconds, gpus, MODEL_PASSES)
    values = PlannedThroughput(seconds_per_iteration=seconds, hardware_tflops=hardware, model_tflops=model)
    text = f"{amount(hardware)} hardware (recomputation counted), {amount(model)} model"
    return Section("throughput", "Speed", values, (("TFLOPs a GPU", text),))


def _samples(given: Given) -> Section:
    tokens, sequence = given["tokens"], given["sequence_length"]
    samples = samples_of_tokens(tokens, sequence)
    text = f"{samples:,} hold {billions(tokens)} tokens at a sequence length of {sequence:,}"
    return Section("samples", "Samples", SamplesOfTokens(tokens=tokens, samples=samples), (("samples", text),))


def _model(given: Given) -> Section:
    total, layers, hidden, heads = (*(given[key] for key in ("formula", *_SHAPE[:2])), given.get("num_attention_heads"))
    values = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=given["sequence_length"],
        vocab_size=given["vocab_size"],
        formula=FORMULA,
        formula_params=total,
        billion_rounded=round(total / 1e9),
        layer_params=formula_block_parameters(hidden),
        embedding_params=given["vocab_size"] * hidden,
        hidden_per_layer=hidden // layers,
        hidden_per_head=hidden // heads if heads else None,
    )
    rows = (
        ("parameters", f"{whole(total)} ({billions(total)}): l(12h^2+13h) + vh + sh + 2h"),
        ("one block", whole(values.layer_params)),
        ("word embedding", whole(values.embedding_params)),
        ("hidden size per layer", f"{hidden // layers}" + (f", per head {hidden // heads}" if heads else "")),
    )
    return Section("model", "Model, with learned positions", values, rows)


def _parts(given: Given) -> Section:
    block = arithmetic.weights_gib(formula_block_parameters(given["hidden_size"]))
    rest = arithmetic.weights_gib(rest_parameters(given["hidden_size"], given["sequence_length"], given["vocab_size"]))
    total = arithmetic.weights_gib(given["formula"])
    values = WeightsByPart(block_bf16_gib=block, rest_bf16_gib=rest, total_bf16_gib=total)
    named = (("one block", block), ("embeddings and the rest", rest), ("all", total))
    rows = tuple((name, gib_text(gib)) for name, gib in named)
    return Section("parts", "Weights by part, 2 bytes a parameter", values, rows)


#: The sections of a plan in order, each with the numbers that it needs.
_SECTIONS: tuple[tuple[tuple[str, ...], Callable[[Given], Section]], ...] = (
    (("params", "tokens", "gpus", "tflops"), _time),
    (("consumed_tokens", "goal_tokens", "seconds_per_iteration", "global_batch_size"), _days_left),
    ((*_SHAPE, "global_batch_size", "seconds_per_iteration", "gpus"), _throughput),
    (("tokens", "sequence_length"), _samples),
    (("formula",), _model),
    (("hidden_size",), lambda given: init_std_section(given["hidden_size"])),
    (("formula",), _parts),
    (("params",), lambda given: checkpoint_sizes(given["params"])),
    (("params",), lambda given: replica_memory(given["params"])),
)
