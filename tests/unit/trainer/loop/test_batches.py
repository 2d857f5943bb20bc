"""The end of a document, for --eod-mask-loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from trainer.data.indexed import write_pair
from trainer.data.tokenizer import END_OF_DOCUMENT
from trainer.formats.errors import DataError
from trainer.loop.batches import end_of_document_id
from trainer.recipe.options import Options, parse, to_arguments

MODEL = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 16}


def options(folder: Path, **changes: Any) -> Options:
    write_pair(folder / "data", np.arange(32, dtype=np.uint16) % 16, np.array([32], np.int32))
    training = {"micro_batch_size": 1, "lr": 1e-4, "train_iters": 1, "eod_mask_loss": True}
    return parse(to_arguments({**MODEL, **training, "data_path": [str(folder / "data")], **changes}), world_size=1)


def test_it_is_found_in_a_tokenizer_of_the_hugging_face_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    Tokenizer(models.BPE({"a": 0, END_OF_DOCUMENT: 1}, [])).save(str(snapshot / "tokenizer.json"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert end_of_document_id(options(tmp_path, tokenizer_name_or_path="some/model")) == 1


def test_gpt2s_files_that_are_damaged_are_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    with pytest.raises(DataError, match="vocab"):
        end_of_document_id(options(tmp_path, **files))
