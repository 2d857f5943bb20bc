"""Any part of a matrix from the runs that it is stored in, each read straight from its file."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from trainer.checkpoint.stored_tensors import Box, Run, StoredTensors, boxes_of_run, fill
from trainer.formats.errors import CheckpointError


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_a_run_of_elements_is_at_most_three_boxes_that_have_all_of_them_once(columns: int) -> None:
    for first in range(3 * columns + 1):
        for elements in range(4 * columns):
            boxes = list(boxes_of_run(first, elements, columns))
            assert len(boxes) <= 3
            covered = [
                row * columns + column
                for box in boxes
                for row in range(box.top, box.bottom)
                for column in range(box.left, box.right)
            ]
            assert sorted(covered) == list(range(first, first + elements)), (first, elements)


@pytest.mark.parametrize(("rows", "columns"), [(40, 1), (9, 13), (5, 6000)])
def test_any_part_comes_back_from_runs_cut_anywhere(tmp_path: Path, rows: int, columns: int) -> None:
    """Rows of 6000 fp32 numbers are read one by one, shorter ones together."""
    chance = random.Random(rows)
    whole = torch.randn(rows, columns)
    cuts = sorted({0, rows * columns, *(chance.randrange(rows * columns) for _ in range(4))})
    runs = []
    for number, (first, end) in enumerate(itertools.pairwise(cuts)):
        path, before = tmp_path / f"{number}.pt", chance.randrange(5)
        torch.save({"flat": torch.cat([torch.full((before,), 9.0), whole.flatten()[first:end]])}, path)
        file = StoredTensors(path)
        tensor = file.tensor(file.contents["flat"], "flat", before + end - first, torch.float32)
        runs.append(Run(tensor, before, first, end - first))
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(30):
            top, left = chance.randrange(rows), chance.randrange(columns)
            box = Box(top, chance.randint(top, rows), left, chance.randint(left, columns))
            out = torch.full((box.rows, box.columns), torch.nan, dtype=dtype)
            for run in runs:
                fill(out, box, run, columns)
            assert torch.equal(out, whole[box.top : box.bottom, box.left : box.right].to(dtype))


def test_a_tensor_that_is_another_or_was_cut_short_is_refused_with_both_values(tmp_path: Path) -> None:
    path = tmp_path / "layer.pt"
    torch.save({"weight": torch.zeros(1000)}, path)
    file = StoredTensors(path)
    weight = file.contents["weight"]
    with pytest.raises(CheckpointError, match=r"weight\b.*\b1000 elements of torch\.float32.*\b1001\b"):
        file.tensor(weight, "weight", 1001, torch.float32)
    with pytest.raises(CheckpointError, match=r"torch\.float32.*torch\.bfloat16"):
        file.tensor(weight, "weight", 1000, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"layer\.pt: bias\b.*\b3 elements"):
        file.tensor(file.contents.get("bias"), "bias", 3, torch.float32)
    found = file.tensor(weight, "weight", 1000, torch.float32)
    with path.open("r+b") as opened:
        opened.truncate(2000)
    with pytest.raises(CheckpointError, match=r"layer\.pt\b.*\bbyte 2000\b"):
        found.read(0, torch.empty(1000))
    with pytest.raises(CheckpointError, match=r"layer\.pt"):
        StoredTensors(path)


def test_a_run_of_zeros_that_nobody_stored_is_filled_in_and_nothing_around_it() -> None:
    out = torch.full((3, 4), torch.nan)
    fill(out, Box(1, 4, 2, 6), Run(None, 0, 10, 6), 7)  # rows 1 and 2 of seven columns, from column 3 to 1
    assert out.isnan().tolist() == [[True, False, False, False], [True] * 4, [True] * 4]
    assert out[0, 1:].tolist() == [0, 0, 0]
