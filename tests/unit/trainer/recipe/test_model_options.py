"""Derived options of the model, and refusals with both values."""

from __future__ import annotations

import pytest

from tests.facts import missing
from tests.unit.trainer.recipe.test_options import small as small_with
from trainer.recipe.options import Options, OptionsError, check_mapping, from_tables, parse


def small() -> list[str]:
    return small_with(num_attention_heads=4)


def parsed(*words: str) -> Options:
    return parse([*small(), *words], 1)


@pytest.mark.parametrize(
    ("words", "ffn", "gate"),
    [
        ((), 256, None),
        (("--glu-activation", "swiglu"), 256, "swiglu"),  # BigScience's: 4h, as without a gate
        (("--swiglu",), 128, "swiglu"),  # Megatron-LM's: 2/3 x 4 x 64 = 170.7, a multiple of 64
        (("--swiglu", "--ffn-hidden-size", "100"), 100, "swiglu"),
        (("--swiglu", "--glu-activation", "swiglu"), 128, "swiglu"),
    ],
)
def test_the_two_names_of_one_gate_have_widths_of_their_own(words: tuple[str, ...], ffn: int, gate: str | None) -> None:
    options = parse([*small(), "--hidden-size", "64", *words], 1)
    assert (options.ffn_hidden_size, options.glu_activation) == (ffn, gate)


def test_llama_7bs_width_is_megatrons_for_its_hidden_size() -> None:
    # Llama's own 11,008 is rounded up to a multiple of 256; Megatron-LM cuts 10,922.7 to one of 64.
    assert from_tables({"hidden_size": 4096, "swiglu": True}).ffn_hidden_size == 10_880


def test_a_group_query_attention_alone_has_one_group() -> None:
    assert parsed("--group-query-attention").num_query_groups == 1
    assert parsed().num_query_groups is None


def test_the_epsilon_has_two_names() -> None:
    assert parsed("--norm-epsilon", "1e-6").layernorm_epsilon == 1e-6
    assert parsed("--norm-epsilon", "1e-6", "--layernorm-epsilon", "1e-6").layernorm_epsilon == 1e-6


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--num-query-groups", "2"), ["--num-query-groups 2", "--group-query-attention"]),
        (
            ("--group-query-attention", "--num-query-groups", "3"),
            ["--num-attention-heads 4", "--num-query-groups 3"],
        ),
        (
            (
                *("--num-attention-heads", "12", "--hidden-size", "48"),
                *("--group-query-attention", "--num-query-groups", "3", "--tensor-model-parallel-size", "2"),
            ),
            ["--num-query-groups 3", "--tensor-model-parallel-size 2"],
        ),
        (
            ("--decoder-first-pipeline-num-layers", "7"),
            ["--decoder-first-pipeline-num-layers 7", "--num-layers", "1 stages"],
        ),
        (
            ("--decoder-first-pipeline-num-layers", "2", "--num-layers", "2", "--pp-partition-method", "1,1"),
            ["--decoder-first-pipeline-num-layers 2", "--pp-partition-method 1,1"],
        ),
        (("--pp-partition-method", "parameters"), ["--pp-partition-method parameters", "type:transformer", "3,4,4,3"]),
        (("--use-rope-scaling",), ["--use-rope-scaling", "--position-embedding-type rope"]),
        (("--position-embedding-type", "yarn"), ["--position-embedding-type yarn", "--rotary-scaling-factor"]),
        (("--window-size", "4096"), ["--window-size 4096", "4095,0"]),
        (
            ("--reset-position-ids", "--position-embedding-type", "alibi"),
            ["--reset-position-ids", "--position-embedding-type alibi"],
        ),
        (
            ("--position-embedding-type", "rope", "--hidden-size", "20"),
            ["--position-embedding-type rope", "--rotary-percent 1", "--hidden-size 20 / --num-attention-heads 4", "5"],
        ),
        (
            ("--position-embedding-type", "rotary", "--hidden-size", "24", "--rotary-percent", "0.5"),
            ["--position-embedding-type rotary", "--rotary-percent 0.5", "--hidden-size 24", "6", "3"],
        ),
        (("--position-embedding-type", "rope", "--rotary-percent", "1.5"), ["--rotary-percent 1.5"]),
        (
            ("--rotary-base", "500000"),
            ["--rotary-base 500000", "--position-embedding-type absolute", "--position-embedding-type rope"],
        ),
        (("--swiglu", "--glu-activation", "geglu"), ["--swiglu", "--glu-activation geglu"]),
        (
            ("--norm-epsilon", "1e-6", "--layernorm-epsilon", "1e-5"),
            ["--norm-epsilon 1e-06", "--layernorm-epsilon 1e-05"],
        ),
    ],
)
def test_what_cannot_be_together_is_refused_with_both_values(words: tuple[str, ...], facts: list[str]) -> None:
    ranks = 2 if "--tensor-model-parallel-size" in words else 1
    with pytest.raises(OptionsError) as refused:
        parse([*small(), *words], ranks)
    assert not missing(str(refused.value), *facts)


def test_a_run_file_is_refused_alike() -> None:
    from trainer.recipe.options import given

    mapping = {**given(small()), "group_query_attention": True, "num_query_groups": 3}
    (error,) = check_mapping(mapping, 1)
    assert not missing(error, "--num-attention-heads 4", "--num-query-groups 3")


@pytest.mark.parametrize("word", ["--apply-query-key-layer-scaling", "--no-rope-fusion"])
def test_what_changes_nothing_says_so(word: str) -> None:
    (notice,) = parsed(word).notices
    assert word in notice
