"""Test how long a run is, before its data is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.checks import length_of_run
from opsctl.run.config.load import load_run_file
from tests.tiny_run import write_run


def written(folder: Path, old: str, new: str) -> Path:
    path = write_run(folder)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return path


@pytest.mark.parametrize(
    ("length", "samples"),
    [
        ("train_samples = 100", 100),
        ("train_iters = 100", 800),
        ("train_tokens = 1601", 101),  # of 16 tokens, the last one too
        ("train_samples = 100\ntrain_tokens = 1599", 100),
    ],
)
def test_it_is_known_while_the_data_is_missing(tmp_path: Path, length: str, samples: int) -> None:
    path = written(tmp_path, "train_samples = 4000", length)
    (tmp_path / "data.idx").unlink()
    assert length_of_run(load_run_file(path)) == (samples, 16)


@pytest.mark.parametrize(
    ("old", "said"),
    [("seq_length = 16", "seq_length"), ("train_samples = 4000", "--train-iters")],
)
def test_a_run_file_without_a_length_is_refused_with_the_missing_key(tmp_path: Path, old: str, said: str) -> None:
    path = written(tmp_path, old, "")
    with pytest.raises(RunFileError) as refusal:
        length_of_run(load_run_file(path))
    assert said in str(refusal.value) and str(path) in str(refusal.value)
