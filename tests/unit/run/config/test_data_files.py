"""Checks of a run's data files before a job waits for nodes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from opsctl.run.config.checks import find_problems, pair_problem
from tests.facts import missing
from tests.unit.run.config.run_files import VALID, changed, loaded, write_pair


def test_whole_files_are_fine(corpus: Path) -> None:
    assert pair_problem(str(corpus), 128) is None


def test_missing_files_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    (problem,) = find_problems(loaded(tmp_path)).problems
    prefix = f"{tmp_path}/data/corpus_text_document"
    assert missing(problem, "[data] data_path", prefix, ".bin", ".idx", "opsctl data prepare") == []


def test_half_a_pair_is_named(corpus: Path) -> None:
    Path(f"{corpus}.bin").unlink()
    assert "corpus_text_document.idx" in str(pair_problem(str(corpus), 128))


def test_the_suffix_is_not_part_of_the_prefix(corpus: Path) -> None:
    assert missing(str(pair_problem(f"{corpus}.bin", 128)), "prefix", ".bin", ".idx") == []


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda raw: raw[:20], ("20 bytes", "34")),
        (lambda raw: raw[:-8], ("3 sequences", "4 document", "102")),
        (lambda raw: b"TNTIDX\x00\x00\x00" + raw[9:], ("TNTIDX",)),
        (lambda raw: raw[:17] + b"\x06" + raw[18:], ("dtype code 6",)),
        (lambda raw: raw[:9] + struct.pack("<Q", 2) + raw[17:], ("version 2",)),
        (lambda raw: raw[:18] + struct.pack("<Q", 2**63) + raw[26:], ("9,223,372,036,854,775,808",)),
        (lambda _raw: b"", ("0 bytes", "34")),
    ],
)
def test_a_corrupt_index_is_one_line(corpus: Path, damage: object, facts: tuple[str, ...]) -> None:
    index = Path(f"{corpus}.idx")
    index.write_bytes(damage(index.read_bytes()))  # type: ignore[operator]
    problem = str(pair_problem(str(corpus), 128))
    assert missing(problem, "corpus_text_document.idx", *facts) == [] and "\n" not in problem


def test_tokens_cut_short_are_seen(corpus: Path) -> None:
    tokens = Path(f"{corpus}.bin")
    tokens.write_bytes(tokens.read_bytes()[:-2])
    problem = str(pair_problem(str(corpus), 128))
    assert missing(problem, "6,748", "corpus_text_document.idx", "6,750") == []


def test_a_corpus_smaller_than_one_sample_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "tiny", [100, 28])
    assert missing(str(pair_problem(str(tmp_path / "tiny"), 128)), "128 tokens", "seq_length + 1 = 129") == []
    assert pair_problem(str(tmp_path / "tiny"), 127) is None


def test_prefixes_in_a_split_file_are_checked(tmp_path: Path, corpus: Path) -> None:
    splits = tmp_path / "train.txt"
    splits.write_text(f'"train: 0.5 0:0.95 {corpus}, 0.5 0:0.95 {tmp_path}/absent"\n')
    text = changed("data_path = ", f'train_weighted_split_paths_path = "{splits}"\n#')
    (problem,) = find_problems(loaded(tmp_path, text)).problems
    assert missing(problem, "[data] train_weighted_split_paths_path", f"{tmp_path}/absent") == []


def test_a_prefix_named_twice_is_one_problem(tmp_path: Path) -> None:
    text = changed("data_path = ", 'train_weighted_split_paths = "t: 1 0:0.5 absent, 1 0.5:1 absent"\n#')
    (problem,) = find_problems(loaded(tmp_path, text)).problems
    assert missing(problem, "[data] train_weighted_split_paths:", f"{tmp_path}/absent") == []


def test_an_absent_split_file_is_named(tmp_path: Path) -> None:
    text = changed("data_path = ", 'train_weighted_split_paths_path = "absent.txt"\n#')
    problem = find_problems(loaded(tmp_path, text)).problems[0]
    assert missing(problem, "[data] train_weighted_split_paths_path", f"{tmp_path}/absent.txt") == []


@pytest.mark.parametrize(
    ("lines", "fact"),
    [
        ('"t: 1 0:1 CORPUS"\n"t: 1 0:1 CORPUS"\n', "2 lines"),
        ('"t: 1 0-1 CORPUS, 1 0:1 CORPUS"\n', "'0-1'"),
    ],
)
def test_a_split_file_that_cannot_be_read_is_named(tmp_path: Path, corpus: Path, lines: str, fact: str) -> None:
    (tmp_path / "split.txt").write_text(lines.replace("CORPUS", str(corpus)))
    text = changed("data_path = ", 'train_weighted_split_paths_path = "split.txt"\n#')
    (problem,) = find_problems(loaded(tmp_path, text)).problems
    assert missing(problem, "[data]", f"{tmp_path}/split.txt", fact) == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('split = "a,b"', ("[data] --split 'a,b'",)),
        ('split = "1,0,2"', ("train data", "1 of 3")),
        ('train_weighted_split_paths = "t: 1 0.4:0.49 CORPUS"', ("train data", "0 of 3")),
        ('train_weighted_split_paths = "t: x 0:1 CORPUS"', ("[data] --train-weighted-split-paths", "'x 0:1 ")),
        (
            'train_weighted_split_paths = "t: 1 0:1 CORPUS"\nvalid_weighted_split_paths = ["v: 1 1:0 CORPUS"]',
            ("[data] --valid-weighted-split-paths", "'1 1:0 "),
        ),
    ],
)
def test_impossible_shares_are_found_before_a_job_waits(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    corpus = tmp_path / "data" / "corpus_text_document"
    write_pair(corpus, [9, 700, 1046])
    path, split = 'data_path = "data/corpus_text_document"', 'split = "1,0,0"'
    old = split if text.startswith("split") else f"{path}\n{split}"
    changes = changed(old, text.replace("CORPUS", str(corpus)))
    problems = find_problems(loaded(tmp_path, changes)).problems
    assert len(problems) == 1 and missing(problems[0], *facts) == []


def test_data_too_little_to_evaluate_on_is_a_problem_when_the_run_evaluates(tmp_path: Path) -> None:
    write_pair(tmp_path / "data" / "corpus_text_document", [1046, 700, 9])
    text = changed('split = "1,0,0"', 'split = "1,1,1"')
    (problem,) = find_problems(loaded(tmp_path, text)).problems
    assert missing(problem, "test data", "1 of 3") == []
    assert find_problems(loaded(tmp_path, text.replace("lr = 3e-3", "lr = 3e-3\neval_iters = 0"))).problems == ()


def test_a_validation_set_smaller_than_one_evaluation_is_a_problem_before_a_job_waits(tmp_path: Path) -> None:
    write_pair(tmp_path / "data" / "corpus_text_document", [1046, 700, 900])
    text = changed('split = "1,0,0"', 'split = "1,1,1"').replace("lr = 3e-3", "lr = 3e-3\neval_iters = 1000")
    (problem,) = find_problems(loaded(tmp_path, text)).problems
    assert missing(problem, "[data]", "validation", "5 samples", "32,000") == []


def test_a_vocabulary_smaller_than_the_datas_is_a_problem(tmp_path: Path, corpus: Path) -> None:
    Path(f"{corpus}.json").write_text('{"vocab_size": 1024, "tokenizer": "/t/tokenizer.json"}')
    assert find_problems(loaded(tmp_path, VALID)).problems == ()
    (problem,) = find_problems(loaded(tmp_path, changed("vocab_size = 1_024", "vocab_size = 1_000"))).problems
    assert missing(problem, "1,024", "1,000") == []


def test_no_data_at_all_is_a_problem(tmp_path: Path) -> None:
    assert "[data]" in find_problems(loaded(tmp_path, changed("data_path", "#"))).problems[0]
