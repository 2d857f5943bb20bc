"""Shares by size, ranges and names: what a mixture is before anything of it is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trainer.data.conftest import MakePair
from trainer.data.mixing import USUAL_RANGES, Asked, mix, names_of, parse_range, read_ratios, shares_of
from trainer.formats.errors import DataError

SIZES = st.lists(st.integers(1, 10**13), min_size=1, max_size=30)


def test_shares_are_sizes_to_the_power_of_alpha() -> None:
    # 16^0.5 : 9^0.5 : 1 = 4 : 3 : 1
    assert shares_of([16, 9, 1], 0.5) == pytest.approx([4 / 8, 3 / 8, 1 / 8], rel=1e-12)


@given(SIZES, st.floats(0, 1))
def test_shares_add_up_to_one_and_the_ratio_of_two_is_that_of_their_sizes_to_alpha(
    sizes: list[int], alpha: float
) -> None:
    shares = shares_of(sizes, alpha)
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
    for size, share in zip(sizes, shares, strict=True):
        assert math.log(share / shares[0]) == pytest.approx(alpha * math.log(size / sizes[0]), abs=1e-9)


@given(SIZES)
def test_alpha_one_is_in_proportion_and_zero_is_alike(sizes: list[int]) -> None:
    assert shares_of(sizes, 1.0) == pytest.approx([size / sum(sizes) for size in sizes], rel=1e-12)
    assert shares_of(sizes, 0.0) == pytest.approx([1 / len(sizes)] * len(sizes), rel=1e-12)


def test_ten_thousand_documents_are_split_as_bigscience_split_theirs(make_pair: MakePair) -> None:
    (one,) = mix(Asked((make_pair("corpus", lengths=[3] * 10_000),), USUAL_RANGES, 0.3))
    assert one.valid is not None and one.test is not None
    assert [part.documents for part in (one.train, one.valid, one.test)] == [9490, 500, 10]
    assert [part.tokens for part in (one.train, one.valid, one.test)] == [28470, 1500, 30]


def test_epochs_are_of_the_part_that_is_trained_on_and_said_above_the_limit(make_pair: MakePair) -> None:
    prefixes = tuple(make_pair(name, lengths=[10] * count) for name, count in (("large", 90), ("small", 10)))
    large, small = mix(Asked(prefixes, {"train": (0.0, 0.5)}, 0.0, tokens=1000, most_epochs=2.0))
    # Each gives 500 of the 1,000 tokens: 45 and 5 documents of 10 tokens are trained on.
    assert [large.epochs, small.epochs] == pytest.approx([500 / 450, 500 / 50])
    assert (large.over_limit, small.over_limit) == (False, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"alpha": -0.1}, "--alpha -0.1"),
        ({"alpha": 1.0001}, "--alpha 1.0001"),
        ({"alpha": math.nan}, "--alpha nan"),
        ({"alpha": math.inf}, "--alpha inf"),
        ({"prefixes": ()}, ""),
        ({"ranges": {"train": (0.0, 0.9), "valid": (0.8, 1.0)}}, "--train 0:0.9 and --valid 0.8:1"),
        ({"ranges": {"train": (0.0, 0.5), "valid": (0.6, 1), "test": (0.7, 0.8)}}, "--valid 0.6:1 and --test 0.7:0.8"),
        ({"prefixes": ("nowhere/at/all",)}, "nowhere/at/all"),
        ({"sequence_length": 8}, "--valid 0.949:0.999 of {corpus}"),
        ({"prefixes": ("{corpus}", "{corpus}")}, "{corpus}"),
        ({"prefixes": ("{corpus}", "{empty}")}, "{empty}"),
        ({"prefixes": ("{blank}",)}, "{blank}"),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(make_pair: MakePair, asked: dict[str, object], said: str) -> None:
    made = {
        "corpus": make_pair("corpus", lengths=[4] * 20),
        "empty": make_pair("empty", []),
        "blank": make_pair("blank", [[]]),
    }
    if "prefixes" in asked:
        asked = {**asked, "prefixes": tuple(one.format(**made) for one in asked["prefixes"])}  # type: ignore[attr-defined]
    ranges = {split: USUAL_RANGES[split] for split in ("train", "valid")}
    whole = {"prefixes": (made["corpus"],), "ranges": ranges, "alpha": 0.3}
    with pytest.raises(DataError) as refusal:
        mix(Asked(**{**whole, **asked}))  # type: ignore[arg-type]
    assert said.format(**made) in str(refusal.value) and "\n" not in str(refusal.value)


def test_ratios_of_any_size_are_scaled_and_one_that_is_nothing_beside_them_is_refused(make_pair: MakePair) -> None:
    prefixes = (make_pair("one", lengths=[4] * 20), make_pair("other", lengths=[4] * 20))
    ranges = {"train": (0.0, 1.0)}
    even = mix(Asked(prefixes=prefixes, ranges=ranges, ratios=(1e308, 1e308), alpha=None))
    assert [one.share for one in even] == [0.5, 0.5]
    with pytest.raises(DataError, match="/other"):
        mix(Asked(prefixes=prefixes, ranges=ranges, ratios=(1e300, 1e-300), alpha=None))


def test_a_link_to_a_set_is_the_set_once_more(make_pair: MakePair, tmp_path: Path) -> None:
    prefix = make_pair("corpus", lengths=[4] * 20)
    (tmp_path / "other").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(DataError, match=prefix):
        mix(Asked((prefix, f"{tmp_path}/other/corpus"), {"train": (0.0, 1.0)}, 0.3))


@pytest.mark.parametrize("text", ["", "0.5", "0.5:0.5", "1:0", "-0.1:1", "0:1.1", "a:b", "nan:1", "0:nan", "0,1"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"START:END.*0 <= START < END <= 1"):
        parse_range(text, "valid")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "JSON"),
        ("[1]", "JSON"),
        ('[{"dataset_path": "a"}]', "ratio"),
        ('[{"dataset_path": "a", "ratio": 0}]', "ratio 0"),
        ('[{"dataset_path": "a", "ratio": -1}]', "ratio -1"),
        ("\udcff", "JSON"),
    ],
)
def test_ratios_that_cannot_be_read_are_refused_with_their_file(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(DataError) as refusal:
        read_ratios(file)
    assert said in str(refusal.value) and str(file) in str(refusal.value)


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        (["/d/en_text_document", "/d/fr_text_document"], ["en", "fr"]),
        (["/en/text", "/fr/text"], ["en-text", "fr-text"]),
        (["/d/a:b"], ["a-b"]),
        (["/x/corpus", "/y/x/corpus"], ["x-corpus", "y-x-corpus"]),
    ],
)
def test_sets_are_called_by_as_much_of_their_prefix_as_tells_them_apart(prefixes: list[str], names: list[str]) -> None:
    assert names_of(prefixes) == names
