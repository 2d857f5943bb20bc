"""The place of each parameter in DeepSpeed's files."""

from __future__ import annotations

import pytest

from trainer.formats.checkpoint.partitions import (
    Cut,
    FlatGroup,
    engine_name,
    flat_groups,
    optimizer_file,
    saved_parameters,
    stages,
    weights_file,
)
from trainer.recipe.model_shape import ModelShape

FACTS = {
    "num_layers": 6,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "ffn_hidden_size": 24,
    "vocab_size": 61,
    "padded_vocab_size": 64,
    "position_embedding_type": "absolute",
    "max_position_embeddings": 32,
    "embed_layernorm": True,
}
PARAMETERS = saved_parameters(ModelShape.of_facts(FACTS))


@pytest.mark.parametrize("data", [1, 2, 3, 8])
def test_a_groups_fragments_are_those_of_its_elements_laid_end_to_end_and_cut_equally(data: int) -> None:
    sizes = {"a": 5, "b": 1, "c": 30, "d": 3}
    group = FlatGroup.of(sizes.items(), data)
    laid: list[tuple[str, int] | None] = [(name, element) for name, size in sizes.items() for element in range(size)]
    laid += [None] * (-len(laid) % (2 * data))
    assert group.partition * data == len(laid)
    cut = [laid[rank * group.partition :][: group.partition] for rank in range(data)]
    for name, size in sizes.items():
        found: list[tuple[str, int] | None] = []
        for one in group.fragments(name):
            found += cut[one.data_rank][one.start : one.start + one.elements]
            assert group.addresses(one.data_rank)[name] == (one.start, one.elements)
        assert found == [(name, element) for element in range(size)]
    for rank in range(data):
        assert group.filled(rank) == sum(element is not None for element in cut[rank])
        assert set(group.addresses(rank)) == {element[0] for element in cut[rank] if element is not None}


@pytest.mark.parametrize(("method", "blocks"), [("type:transformer", [3, 3]), ("type:transformer|embedding", [3, 3])])
def test_stages_have_their_blocks_and_the_last_one_the_word_embedding_too(method: str, blocks: list[int]) -> None:
    first, last = stages(PARAMETERS, Cut(1, 2, 1, method))
    assert [engine_name(one) for one in first][:5] == [
        "tied_modules.embed.word_embeddings.weight",
        "tied_modules.embed.word_embeddings.norm.weight",
        "tied_modules.embed.word_embeddings.norm.bias",
        "tied_modules.embed.position_embeddings.weight",
        "3.input_layernorm.weight",
    ]
    assert engine_name(last[0]) == "tied_modules.embed.word_embeddings.weight"
    assert [engine_name(one) for one in last][-2:] == ["10.weight", "10.bias"]
    assert [len({one.layer for one in stage if 3 <= one.layer <= 8}) for stage in (first, last)] == blocks


def test_with_one_stage_nothing_is_there_twice() -> None:
    (only,) = stages(PARAMETERS, Cut(2, 1, 4, "type:transformer"))
    assert tuple(only) == PARAMETERS
    decaying, fixed = flat_groups(only, Cut(2, 1, 4, "type:transformer"))
    assert decaying.places["3.self_attention.dense.weight"][1] == 16 * 16 // 2
    assert fixed.places["3.self_attention.dense.bias"][1] == 16
    assert not decaying.places.keys() & fixed.places.keys()


def test_files_are_called_as_deepspeed_calls_them() -> None:
    assert weights_file(3, 1) == "layer_03-model_01-model_states.pt"
    assert optimizer_file(11, 4, "bf16") == "bf16_zero_pp_rank_11_mp_rank_04_optim_states.pt"
    assert optimizer_file(0, 0, "fp32") == "zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize(
    "layout", [{}, {"tensor": 0, "pipeline": 1, "data": 1, "partition_method": "type:transformer"}]
)
def test_a_layout_that_is_none_is_refused(layout: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="layout"):
        Cut.of(layout)


def test_an_untied_output_layer_is_on_the_last_stage_which_has_no_embedding_then() -> None:
    untied = saved_parameters(ModelShape.of_facts({**FACTS, "untie_embeddings_and_output_weights": True}))
    first, last = stages(untied, Cut(1, 2, 1, "type:transformer"))
    assert [engine_name(one) for one in last][-1] == "11.weight"
    assert not {one.name for one in first} & {one.name for one in last}
    assert {one.name for one in (*first, *last)} == {one.name for one in untied}
