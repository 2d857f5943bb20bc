"""The data in options: splits, blends and weighted split paths."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from tests.unit.trainer.data.conftest import options_for
from trainer.formats.data.data_sources import (
    Group,
    Source,
    group_text,
    groups,
    parse_file,
    parse_group,
    prefixes,
    with_prefixes,
)
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS


@pytest.mark.parametrize(
    ("split", "ranges"),
    [
        ("949,50,1", [(0, 9490), (9490, 9990), (9990, 10000)]),
        ("0.949, 0.05, 0.001", [(0, 9490), (9490, 9990), (9990, 10000)]),
        ("969, 30, 1", [(0, 9690), (9690, 9990), (9990, 10000)]),
        ("9/1", [(0, 9000), (9000, 10000)]),
        ("1", [(0, 10000)]),
    ],
)
def test_split_gives_ranges_of_documents(split: str, ranges: list[tuple[int, int]]) -> None:
    options = options_for(data_path=["a"], split=split)
    found = [group for part in SPLITS for group in groups(options, part)]
    assert [group.sources[0].documents(10_000) for group in found] == ranges


@pytest.mark.parametrize("split", ["", "a,b", "0,0,0", "-1,2", "1,2,3,4", "nan,1", "inf", "1,,1"])
def test_a_split_that_is_none_is_refused_by_name(split: str) -> None:
    with pytest.raises(DataError, match="--split"):
        groups(options_for(data_path=["a"], split=split), "train")


def test_a_blend_takes_the_same_range_of_every_file() -> None:
    options = options_for(data_path=["0.3", "a", 0.7, "b"], split="8,2")
    assert groups(options, "valid") == [Group("valid", (Source("a", 0.8, 1.0, 0.3), Source("b", 0.8, 1.0, 0.7)))]
    assert groups(options, "test") == []


def test_groups_of_a_weighted_file_keep_names_weights_and_ranges(tmp_path: Path) -> None:
    file = tmp_path / "valid.txt"
    file.write_text('"ALL: 0.6 0.95:1.0 /d/en, 0.4 0.95:1.0 /d/fr" "EN: 1 0:0.5 /d/en"\n')
    assert parse_file(file) == [
        Group("ALL", (Source("/d/en", 0.95, 1.0, 0.6), Source("/d/fr", 0.95, 1.0, 0.4))),
        Group("EN", (Source("/d/en", 0.0, 0.5, 1.0),)),
    ]
    assert groups(options_for(valid_weighted_split_paths_path=str(file)), "valid") == parse_file(file)


def test_range_bounds_round_halves_to_even() -> None:
    assert Source("p", 0.375, 0.625, 1.0).documents(4) == (2, 2)
    assert Source("p", 0.07, 0.25, 1.0).documents(50) == (4, 12)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("0.5 0:1 p", []),
        ("A:", []),
        ("A: 0.5 p", ["'0.5 p'", "'A'", "WEIGHT START:END PREFIX"]),
        ("A: 1 0:1 p q", ["'1 0:1 p q'", "4"]),
        ("A: x 0:1 p", ["'x'"]),
        ("A: 0 0:1 p", ["'0'"]),
        ("A: nan 0:1 p", ["'nan'"]),
        ("A: 1 0-1 p", ["'0-1'", "START:END"]),
        ("A: 1 0.5:0.5 p", ["0.5:0.5", "0 <= START < END <= 1"]),
        ("A: 1 0:1.5 p", ["0:1.5"]),
    ],
)
def test_a_weighted_group_that_cannot_be_read_is_refused_with_its_place(text: str, facts: list[str]) -> None:
    with pytest.raises(DataError) as refusal:
        parse_group(text, "--train-weighted-split-paths")
    assert not missing(str(refusal.value), "--train-weighted-split-paths", *facts)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("", "0 lines"),
        ('"A: 1 0:1 p"\n"B: 1 0:1 q"\n', "2 lines"),
        ("A: 1 0:1 p\n", "quotes"),
        ('"A: 1 0:1 p" B\n', "'B'"),
    ],
)
def test_a_weighted_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, content: str, fact: str) -> None:
    file = tmp_path / "split.txt"
    file.write_text(content)
    with pytest.raises(DataError) as refusal:
        parse_file(file)
    assert not missing(str(refusal.value), str(file), fact)


def test_a_missing_or_binary_weighted_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: No such file"):
        parse_file(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b'"\xff\xfe"\n')
    with pytest.raises(DataError, match=r"/binary\b.*UTF-8"):
        parse_file(tmp_path / "binary")


def test_training_takes_one_group_and_names_may_not_repeat() -> None:
    two = ["A: 1 0:1 p", "B: 1 0:1 q"]
    with pytest.raises(DataError, match=r"2 groups .*\bA, B\b"):
        groups(options_for(train_weighted_split_paths=two), "train")
    with pytest.raises(DataError, match="'A'"):
        groups(options_for(valid_weighted_split_paths=["A: 1 0:1 p", "A: 1 0:1 q"]), "valid")


def test_no_data_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="--data-path"):
        groups(options_for(), "train")


SHARES = st.floats(0, 1)
WORDS = st.from_regex(r"[A-Za-z0-9_/.:=~-]+", fullmatch=True)
SOURCES = st.builds(
    lambda prefix, bounds, weight: Source(prefix, min(bounds), max(bounds), weight),
    WORDS,
    st.tuples(SHARES, SHARES).filter(lambda bounds: bounds[0] != bounds[1]),
    st.floats(0, exclude_min=True, allow_infinity=False),
)
GROUPS = st.builds(Group, WORDS.filter(lambda name: ":" not in name), st.lists(SOURCES, min_size=1).map(tuple))


@given(GROUPS)
def test_a_group_that_was_written_reads_back_as_it_was(group: Group) -> None:
    assert parse_group(group_text(group), "") == group


@given(GROUPS)
def test_other_prefixes_leave_names_weights_and_ranges_alone(group: Group) -> None:
    moved = parse_group(with_prefixes(group_text(group), lambda prefix: f"/d/{prefix}"), "")
    assert moved == Group(group.name, tuple(replace(one, prefix=f"/d/{one.prefix}") for one in group.sources))


def test_a_group_is_written_as_a_person_would() -> None:
    assert with_prefixes(" ALL:.6 0:0.95 en,0.4 0.95:1.0 fr ", str.upper) == "ALL: 0.6 0:0.95 EN, 0.4 0.95:1 FR"


@pytest.mark.parametrize("text", ["0.5 0:1 p", "A: 1 0:1 p, x 0:1 q", "A:  1 1:0 p", "", "A: 0 0:1 p"])
def test_prefixes_of_what_is_no_group_stay_as_they_stand(text: str) -> None:
    assert with_prefixes(text, str.upper) == text


def test_every_prefix_that_options_name_is_found_under_its_option(tmp_path: Path) -> None:
    file = tmp_path / "test.txt"
    file.write_text('"A: 1 0:1 c, 2 0:1 d" "B: 1 0:1 e"\n')
    named = {
        "data_path": [0.3, "a", "1e-1", "b"],
        "train_weighted_split_paths": "T: 1 0:1 t",
        "valid_weighted_split_paths": ["V: x 0:1 v", "W: 1 0:1 w, 1 0:1 w"],
        "valid_weighted_split_paths_path": str(tmp_path / "absent"),
        "test_weighted_split_paths_path": str(file),
    }
    assert list(prefixes(named)) == [
        ("data_path", "a"),
        ("data_path", "b"),
        ("train_weighted_split_paths", "t"),
        ("valid_weighted_split_paths", "w"),
        ("valid_weighted_split_paths", "w"),
        ("test_weighted_split_paths_path", "c"),
        ("test_weighted_split_paths_path", "d"),
        ("test_weighted_split_paths_path", "e"),
    ]
    assert list(prefixes({"data_path": "a"})) == [("data_path", "a")]


def test_a_weighted_file_is_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    file = tmp_path / "split.txt"
    file.write_text('"A: 1 0:1 /données/a"\n', encoding="utf-8")
    script = (
        f"from pathlib import Path; from trainer.formats.data.data_sources import parse_file\n"
        f"assert parse_file(Path({str(file)!r}))[0].sources[0].prefix == '/donn\\xe9es/a'"
    )
    # Python takes ASCII from the locale then, as it would take ISO 8859-1 from one of those.
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
