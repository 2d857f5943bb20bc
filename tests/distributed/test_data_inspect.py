"""Inspected samples equal those that the training printed as it read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import TINY, run_training, write_corpus
from trainer.data.inspection import main
from trainer.formats.logs.training_line import tokens_line
from trainer.recipe.options import to_arguments

pytestmark = pytest.mark.distributed


def test_samples_are_those_that_each_iteration_read_though_the_batches_were_others_on_the_way(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    options: dict[str, Any] = {
        "data_path": ["0.3", write_corpus(tmp_path), "0.7", write_corpus(other, documents=90)],
        **{"save": str(tmp_path / "saved"), "load": str(tmp_path / "saved"), "log_tokens": "1:99"},
        **{"train_samples": 100, "micro_batch_size": 1, "rampup_batch_size": [4, 4, 12]},
    }
    later = {"global_batch_size": 16, "rampup_batch_size": None, "train_range_to_skip": [5, 6, 2, 2]}
    ways = [{**options, "train_range_to_skip": [1, 1], "exit_interval": 3}, {**options, **later}]
    printed: list[str] = []
    for way in ways:
        (ran,) = pool.run(1, run_training, way)
        assert ran.status == 0, ran.errors
        printed += re.findall(r"tokens of iteration .*", ran.output)

    def inspected(key: str, *words: str) -> Any:
        assert main([*words, "--world-size=1", "--json", "--", *to_arguments({**TINY, **ways[-1]})]) == 0
        return json.loads(capsys.readouterr().out)[key]

    # 3 batches of 4, then 5 of 16: at the end 8 samples are left, which fill no batch.
    samples = inspected("samples", "--iterations=1:8")["samples"]
    shown = [tokens_line(one["iteration"], one["sample"], np.array(one["tokens"], np.int64)) for one in samples]
    assert len(shown) == 92 and sorted(shown) == sorted(printed)
    assert {one["iteration"] for one in samples if one["skipped"]} == {1, 5, 6}
