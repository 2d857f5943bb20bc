"""Process groups and the pipeline's split, against printed lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING, Layout, blocks_per_stage, listed_stages


def layout_of(world_size: int, tensor: int, pipeline: int) -> Layout:
    options = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    return Layout.of(options, world_size)


def test_the_groups_of_16_ranks_are_megatrons() -> None:
    layout = layout_of(16, tensor=2, pipeline=4)
    assert layout.data == 2
    assert layout.tensor_groups() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert layout.pipeline_groups() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert layout.data_groups() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert layout.model_groups() == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_each_kind_of_group_holds_every_rank_once(tensor: int, pipeline: int, data: int) -> None:
    layout = layout_of(tensor * pipeline * data, tensor, pipeline)
    for groups in (layout.tensor_groups(), layout.pipeline_groups(), layout.data_groups(), layout.model_groups()):
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    for rank in range(layout.world_size):
        t, d, p = layout.coordinates(rank)
        assert layout.rank(t, d, p) == rank


@pytest.mark.parametrize(("world", "tensor", "pipeline"), [(6, 2, 2), (0, 1, 1), (8, 0, 1), (2, 2, 2), (8, 1, -1)])
def test_ranks_that_do_not_divide_are_refused(world: int, tensor: int, pipeline: int) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        layout_of(world, tensor, pipeline)


def test_blooms_stages_count_the_embeddings_as_blocks() -> None:
    assert blocks_per_stage(70, 12, BY_BLOCK_AND_EMBEDDING) == [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]


@pytest.mark.parametrize(
    ("first", "last", "stages", "listed"),
    [
        (1, None, 4, "1,3,3,3"),
        (None, 1, 4, "3,3,3,1"),
        (2, 2, 4, "2,3,3,2"),
        (4, 6, 2, "4,6"),
        (2, None, 4, None),
        (5, 6, 2, None),
        (10, None, 2, None),
        (None, None, 2, None),
    ],
)
def test_the_ends_of_a_pipeline_list_its_stages(
    first: int | None, last: int | None, stages: int, listed: str | None
) -> None:
    ends = {"decoder_first_pipeline_num_layers": first, "decoder_last_pipeline_num_layers": last}
    assert listed_stages({**ends, "num_layers": 10, "pipeline_model_parallel_size": stages}) == listed
    if listed is not None:
        assert blocks_per_stage(10, stages, listed) == [int(one) for one in listed.split(",")]


def test_one_stage_has_every_block() -> None:
    assert blocks_per_stage(4, 1, BY_BLOCK_AND_EMBEDDING) == [4]
    assert blocks_per_stage(4, 1, BY_BLOCK) == [4]


@pytest.mark.parametrize(
    ("layers", "pipeline", "method", "line"),
    [
        (70, 12, BY_BLOCK, r"\b70 layers .*\b12\b"),
        (69, 12, BY_BLOCK_AND_EMBEDDING, r"\b69 layers \+ 2 embeddings .*\b12\b"),
        (2, 4, BY_BLOCK_AND_EMBEDDING, "block"),
        (10, 4, "3,3,4", r"3,3,4 .*\b10 layers .*\b4\b"),
        (10, 4, "3,3,3,3", r"3,3,3,3 .*\b10 layers .*\b4\b"),
        (10, 4, "0,3,3,4", "block"),
    ],
)
def test_stages_that_cannot_be_equal_are_refused(layers: int, pipeline: int, method: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        blocks_per_stage(layers, pipeline, method)
