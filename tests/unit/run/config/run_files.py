"""A small valid run file for tests, and the line that a wrong one is refused with."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.load import LoadedRun, load_run_file

VALID = """\
[run]
name = "small"

[slurm]
nodes = 4
gpus_per_node = 2
time = "20:00:00"

[trainer]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
num_layers = 4
hidden_size = 128
num_attention_heads = 4
seq_length = 128
micro_batch_size = 8
global_batch_size = 32
train_samples = 5_120
lr = 3e-3

[data]
data_path = "data/corpus_text_document"
split = "1,0,0"
vocab_size = 1_024

[checkpoints]
save_interval = 40
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str = VALID, **environment: str) -> LoadedRun:
    return load_run_file(written(folder, text), environment)


def changed(old: str, new: str, text: str = VALID) -> str:
    """`text` with one line changed; the line must be there."""
    assert old in text
    return text.replace(old, new, 1)


def refusal(folder: Path, text: str, **environment: str) -> str:
    """The one line that loading `text` is refused with, without the file's path."""
    path = written(folder, text)
    with pytest.raises(RunFileError) as caught:
        load_run_file(path, environment)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


def write_pair(prefix: Path, lengths: list[int], code: int = 8, token_bytes: int = 2) -> None:
    """A `.bin/.idx` pair as Megatron lays it out: header, lengths, byte offsets, document entries."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    offsets = [sum(lengths[:index]) * token_bytes for index in range(len(lengths))]
    raw = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    raw += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *offsets)
    raw += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    Path(f"{prefix}.idx").write_bytes(raw)
    Path(f"{prefix}.bin").write_bytes(bytes(sum(lengths) * token_bytes))
