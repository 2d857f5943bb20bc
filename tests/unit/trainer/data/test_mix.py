"""The files of a mixture, read by the trainer and by other programs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.cli import main as opsctl_main
from tests.facts import missing
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl
from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset
from trainer.data.mix import USUAL_RANGES, mix, parse_range, shares_of
from trainer.data.mix import main as program
from trainer.formats.errors import DataError


@pytest.fixture
def sets(make_pair: MakePair) -> list[str]:
    """Two sets, of 1,600 and 400 tokens."""
    return [make_pair(name, lengths=[20] * count) for name, count in (("en_text_document", 80), ("fr", 20))]


def groups_by_pattern(text: str) -> dict[str, list[tuple[float, str, str]]]:
    """Return name -> (weight, range, prefix) of each source, by the form that BigScience's option documents."""
    assert text.count("\n") == 1 and text.endswith('"\n')
    found = {}
    for group in re.findall(r'"([^"]+)"', text):
        name, items = group.split(": ", 1)
        rows = [item.split(" ") for item in items.split(", ")]
        found[name] = [(float(weight), part, prefix) for weight, part, prefix in rows]
    return found


def mixed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert program(["--json", *words]) == 0, capsys.readouterr().err
    return printed("data mix", capsys.readouterr().out)


def test_the_files_hold_every_set_with_its_share_and_its_part(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--train=0:0.8", "--valid=0.8:0.9", "--test=0.9:1")
    found = mixed(capsys, "--alpha=0.5", f"--output={tmp_path}/new/mixed", *words, "--", *sets)
    # 1600^0.5 : 400^0.5 = 2 : 1
    shares = [2 / 3, 1 / 3]
    assert [one["share"] for one in found["sets"]] == pytest.approx(shares)
    assert [one["size_share"] for one in found["sets"]] == [0.8, 0.2]
    assert found["files"] == {split: f"{tmp_path}/new/mixed.{split}.txt" for split in ("train", "valid", "test")}
    train = groups_by_pattern(Path(found["files"]["train"]).read_text())
    assert [row[0] for row in train["train"]] == pytest.approx(shares)
    assert [row[1:] for row in train["train"]] == [("0:0.8", prefix) for prefix in sets]
    for split, part in (("valid", "0.8:0.9"), ("test", "0.9:1")):
        groups = groups_by_pattern(Path(found["files"][split]).read_text())
        assert list(groups) == [split] and [row[1] for row in groups[split]] == [part, part]


def test_the_trainer_draws_from_each_set_what_the_files_say(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = mixed(capsys, "--alpha=0.5", f"--output={tmp_path}/mixed", "--test=none", "--", *sets)["files"]
    assert files["test"] is None and not (tmp_path / "mixed.test.txt").exists()
    options = options_for(
        train_weighted_split_paths_path=files["train"], valid_weighted_split_paths_path=files["valid"]
    )
    data = build_datasets(options, 300, 10, 10)
    assert isinstance(data.train, BlendedDataset)
    drawn = data.train.dataset_index[:300].tolist()
    assert (drawn.count(0), drawn.count(1)) == (200, 100)
    assert list(data.valid) == ["valid"] and data.test == {}


def test_a_dry_run_writes_nothing_and_what_is_there_is_replaced_only_when_asked(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--test=none", f"--output={tmp_path}/mixed")
    assert mixed(capsys, "--alpha=1", *where, "--dry-run", "--", *sets)["dry_run"] is True
    assert not list(tmp_path.glob("mixed*"))
    mixed(capsys, "--alpha=1", *where, "--", *sets)
    first = {path: path.read_bytes() for path in tmp_path.glob("mixed*")}
    mixed(capsys, "--alpha=1", *where, "--", *sets)  # the same again is no other
    assert program(["--alpha=0.3", *where, "--", *sets]) == 2
    assert not missing(capsys.readouterr().err, "mixed.train.txt", "--overwrite")
    assert {path: path.read_bytes() for path in tmp_path.glob("mixed*")} == first and len(first) == 2
    mixed(capsys, "--alpha=0.3", *where, "--overwrite", "--", *sets)
    assert (tmp_path / "mixed.train.txt").read_bytes() != first[tmp_path / "mixed.train.txt"]


@pytest.mark.parametrize("name", ["a b", "a,b", 'a"b', "a\tb", "a\nb", "a\u00a0b", "a\x1bb", "a\udcffb"])
def test_a_name_that_the_file_cannot_hold_is_refused_and_nothing_is_written(
    make_pair: MakePair, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prefix = make_pair(name, lengths=[20] * 1000)
    assert program(["--alpha=1", f"--output={tmp_path}/mixed", "--", prefix]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line and line.isprintable()
    assert not list(tmp_path.glob("mixed*"))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--alpha=1", "--train-samples=5"], ["--train-samples", "--seq-length"]),
        (["--alpha=1", "--train-samples=0", "--seq-length=4"], ["--train-samples"]),
        (["--alpha=1", "--train=none"], ["--train none"]),
    ],
)
def test_what_contradicts_itself_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], facts: list[str]
) -> None:
    assert program([f"--output={tmp_path}/mixed", *words, "--", "data"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not missing(line, *facts)


class TestTheCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        write_run(tmp_path)  # 4,000 samples of 16 tokens
        return go_into(tmp_path, monkeypatch)

    def test_a_run_gives_the_length_though_its_data_is_what_is_being_chosen(
        self, folder: Path, sets: list[str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        text = (folder / "run.toml").read_text()
        text = text.replace('data_path = "data"', 'train_weighted_split_paths_path = "mixed.train.txt"')
        (folder / "run.toml").write_text(text)
        words = ("--alpha", "0.5", "--output", "mixed", "--valid", "none", "--test", "none")
        assert opsctl("data", "mix", *words, "--run", ".", "--json", *sets) == 0
        out, err = capfd.readouterr()
        found = printed("data mix", out)
        assert found["train_tokens"] == 64_000
        # 2 of 3 samples are of the first, of whose 80 documents of 20 tokens 76 are trained on: 0.949 x 80 = 75.92.
        assert found["sets"][0]["epochs"] == pytest.approx(64_000 * 2 / 3 / (76 * 20))
        assert err.count("warning: ") == 2 and "more than 4" in err
        assert opsctl("plan", "--json") == 0  # the run file names what was written

    def test_its_table_has_a_row_for_each_set(
        self, folder: Path, sets: list[str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--alpha", "0.5", "--output", "mixed", "--test", "none", "--dry-run")
        assert opsctl("data", "mix", *words, *sets) == 0
        head, *rows, total, _, train, valid = capfd.readouterr().out.splitlines()
        assert head.split("  ")[0] == "data set"
        assert [row.split() for row in rows] == [
            [sets[0], "80", "1,600", "80.00%", "66.67%", "76", "4", "none"],
            [sets[1], "20", "400", "20.00%", "33.33%", "19", "1", "none"],
        ]
        assert total.split() == ["all", "100", "2,000", "100.00%", "100.00%"]
        assert train.endswith(f"{folder}/mixed.train.txt") and valid.endswith("mixed.valid.txt")

    @pytest.mark.parametrize(
        ("words", "facts"),
        [
            (["data"], ["--alpha"]),
            (["--alpha", "1", "--run", ".", "--seq-length", "4", "data"], ["--run"]),
        ],
    )
    def test_wrong_usage_is_refused_before_anything_starts(
        self, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], facts: list[str]
    ) -> None:
        with pytest.raises(SystemExit) as stop:
            opsctl_main(["data", "mix", "--output", "mixed", *words])
        assert stop.value.code == 2 and not missing(capsys.readouterr().err, *facts)


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
    (one,) = mix([make_pair("corpus", lengths=[3] * 10_000)], USUAL_RANGES, 0.3)
    assert one.valid is not None and one.test is not None
    assert [part.documents for part in (one.train, one.valid, one.test)] == [9490, 500, 10]
    assert [part.tokens for part in (one.train, one.valid, one.test)] == [28470, 1500, 30]


def test_epochs_are_of_the_part_that_is_trained_on_and_said_above_the_limit(make_pair: MakePair) -> None:
    prefixes = tuple(make_pair(name, lengths=[10] * count) for name, count in (("large", 90), ("small", 10)))
    large, small = mix(prefixes, {"train": (0.0, 0.5)}, 0.0, tokens=1000)
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
        mix(**{**whole, **asked})  # type: ignore[arg-type]
    assert said.format(**made) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_link_to_a_set_is_the_set_once_more(make_pair: MakePair, tmp_path: Path) -> None:
    prefix = make_pair("corpus", lengths=[4] * 20)
    (tmp_path / "other").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(DataError, match=prefix):
        mix((prefix, f"{tmp_path}/other/corpus"), {"train": (0.0, 1.0)}, 0.3)


@pytest.mark.parametrize("text", ["", "0.5", "0.5:0.5", "1:0", "-0.1:1", "0:1.1", "a:b", "nan:1", "0:nan", "0,1"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"START:END.*0 <= START < END <= 1"):
        parse_range(text, "valid")
