"""Memory of a rank by hand: a model of 2 blocks of hidden size 8 and a vocabulary of 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer.recipe.activations import MicroBatch, kernel_families
from trainer.recipe.layout import Layout
from trainer.recipe.memory import RankMemory, rank_memory
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables

TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 4,
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "position_embedding_type": "alibi",
}
#: 12 h^2 + 13 h; 16 h; 2 h.
BLOCK, WORDS, FINAL = 872, 128, 16
PARAMETERS = 2 * BLOCK + WORDS + FINAL


def memory(tensor: int = 1, pipeline: int = 1, data: int = 1, stage: int = 0, **changes: Any) -> RankMemory:
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    options = from_tables({**TINY, **sizes, **changes})
    shape = ModelShape.of(options, Vocabulary.unpadded(16))
    return rank_memory(options, shape, Layout.of(options, tensor * pipeline * data), stage, on_cpu=True)


def test_states_of_bf16_are_22_bytes_a_parameter_when_gradients_are_reduced() -> None:
    # Weights 2, the gradients' sums 4 and those in one bucket 4, fp32 weights and two moments 12.
    found = memory(bf16=True, seq_length=1)
    assert found.moment == "reduction"
    assert (found.weights_bytes, found.gradients_bytes) == (2 * PARAMETERS, 4 * PARAMETERS)
    assert (found.optimizer_bytes, found.buckets_bytes) == (12 * PARAMETERS, 4 * PARAMETERS)
    assert found.peak_bytes - found.process_bytes == 22 * PARAMETERS


@pytest.mark.parametrize(("data", "optimizer_bytes"), [(1, 12 * PARAMETERS), (4, 3 * PARAMETERS)])
def test_replicas_share_optimizer_states_and_one_alone_has_no_bucket(data: int, optimizer_bytes: int) -> None:
    found = memory(data=data, seq_length=1)
    assert found.optimizer_bytes == optimizer_bytes
    assert (found.weights_bytes, found.gradients_bytes) == (4 * PARAMETERS,) * 2
    assert found.buckets_bytes == (4 * PARAMETERS if data > 1 else 0)


def test_without_its_kernel_adam_reads_a_copy_of_the_gradients() -> None:
    assert memory(seq_length=1, kernels="torch").buckets_bytes == 4 * PARAMETERS


#: A block by kernels keeps of each token in fp32: into two norms and out of them, 4 x 8; queries, keys and values,
#: 3 x 8; the output of attention, 8; the MLP's width twice, 2 x 32. Statistics: 2 of each norm, 1 of each head.
OF_TOKEN = (4 * 8 + 3 * 8 + 8 + 2 * 32 + 2 * 2 + 2) * 4
#: The final norm's input and output.
OF_FINAL = (2 * 8 + 2) * 4
#: The MLP's last product in a backward pass: the gradient of the stream, of the width, and of a weight.
WORKING = (64 * 8 + 64 * 32 + 4 * 8 * 8) * 4
STREAM = 64 * 8 * 4


def test_a_stage_holds_its_micro_batches_in_flight() -> None:
    # The first of two stages has two micro-batches of 64 tokens.
    first = memory(pipeline=2, stage=0, seq_length=64)
    assert first.moment == "backward"
    assert first.activations_bytes == 2 * 64 * OF_TOKEN
    # Two outputs, and the gradient that comes back.
    assert first.pipeline_bytes == 3 * STREAM
    assert first.working_bytes == WORKING
    # The last has one, the final norm's input and output, and the loss: 64 x 16 logits and x's gradient.
    last = memory(pipeline=2, stage=1, seq_length=64)
    assert last.activations_bytes == 64 * (OF_TOKEN + OF_FINAL)
    assert last.working_bytes == max(WORKING - 64 * OF_FINAL, (64 * 8 + 64 * 16) * 4)
    # The buffer of an input, the input that the first block copied, and the gradient that is being sent.
    assert last.pipeline_bytes == 3 * STREAM


@pytest.mark.parametrize(("stage", "messages"), [(0, 4 + 1), (1, 3 + 1 + 3 + 2), (2, 2 + 1 + 2 + 2), (3, 1 + 2)])
def test_a_stage_holds_inputs_and_outputs_of_all_micro_batches_in_flight(stage: int, messages: int) -> None:
    assert memory(pipeline=4, stage=stage, num_layers=4, seq_length=64).pipeline_bytes == messages * STREAM


def test_the_loss_holds_a_chunk_of_logits_and_no_gradient_of_its_weight_that_the_engine_adds_up() -> None:
    options = from_tables({**TINY, "fp16": True})
    shape = ModelShape.of(options, Vocabulary.unpadded(250_880))
    logits, stream, weight = 600 * 250_880, 600 * 8 * 2, 250_880 * 8
    batch = MicroBatch(shape, 1, 600, on_cpu=True)
    assert batch.loss_bytes() == logits * 6 + stream
    assert batch.loss_bytes(sums_weight=True) == logits * 6 + stream + weight * 6
    assert MicroBatch(shape, 1, 6000, on_cpu=True).loss_bytes() == 546 * 250_880 * 6 + 10 * stream
    by_kernels = replace(batch, kernels=kernel_families(options))
    assert by_kernels.loss_bytes() == logits * 2 + stream


def test_recomputed_blocks_keep_what_they_begin_with_and_one_of_them_the_rest() -> None:
    kept = memory(seq_length=64, recompute="block")
    assert kept.activations_bytes == 2 * STREAM + 64 * OF_FINAL
    assert kept.working_bytes == 64 * OF_TOKEN - STREAM + WORKING - 64 * OF_FINAL  # the input is kept once


@pytest.mark.parametrize("recompute", ["block", "attention"])
def test_recomputation_imports_the_compiler_of_torch(recompute: str) -> None:
    assert memory(recompute=recompute).process_bytes - memory().process_bytes == 71 * 2**20


def test_recomputed_attention_needs_its_memory_when_the_mlp_has_returned_its_own() -> None:
    rotary: dict[str, Any] = {"seq_length": 64, "position_embedding_type": "rope"}
    kept, all_of_it = memory(recompute="attention", **rotary), memory(**rotary)
    turned = 64 * (2 * 8 + 4 + 2) * 4  # queries, keys, cosines and sines, and the sums of each head's softmax
    assert all_of_it.activations_bytes - kept.activations_bytes == 2 * turned
    assert kept.working_bytes == all_of_it.working_bytes


def test_split_sequences_gather_the_gradient_of_the_stream_and_slices_are_summed_from_all() -> None:
    one, two = (_batch(2, sequence_parallel=split) for split in (False, True))
    assert (one.stream_bytes, two.stream_bytes) == (STREAM, STREAM // 2)
    split = {"tensor": 2, "pipeline": 2, "seq_length": 64}
    working = memory(sequence_parallel=True, **split).working_bytes
    assert working == memory(**split).working_bytes - STREAM // 2 + STREAM
    logits = 64 * 8 * 4
    assert two.loss_bytes() == max(2 * STREAM + logits, 2 * STREAM + STREAM // 2)  # gloo copies what it sums


def test_tensor_ranks_share_heads_and_width_but_not_the_residual_stream() -> None:
    one, two = (_batch(tensor).whole_block_bytes() for tensor in (1, 2))
    whole = 64 * (4 * 8 + 2 * 2) * 4
    assert two - whole == (one - whole) / 2
    assert _batch(2, sequence_parallel=True).whole_block_bytes() == one / 2


def _batch(tensor: int, **changes: Any) -> MicroBatch:
    options = from_tables(TINY)
    shape = ModelShape.of(options, Vocabulary.unpadded(16))
    return MicroBatch(shape, 1, 64, tensor, on_cpu=True, kernels=kernel_families(options), **changes)


def test_a_gpu_reserves_the_whole_bucket() -> None:
    options = from_tables({**TINY, "zero_reduce_bucket_size": 10_000})
    shape = ModelShape.of(options, Vocabulary.unpadded(16))
    found = rank_memory(options, shape, Layout(2, 1, 1, 2), 0)
    assert found.buckets_bytes == 40_000 and found.process_bytes == 0


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\b2 layers .*\b4\b"):
        memory(pipeline=4)
