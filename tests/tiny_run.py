"""A run small enough for a test: a run file and a data file that pass every check, in a folder of the test's own."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import LoadedRun, expanded_file

RUN_FILE = """\
[run]
name = "{name}"
output = "output"
{group}
[slurm]
nodes = {nodes}
gpus_per_node = 2
time = "{time}"
exit_margin = "1:00"
{slurm}

[array]
tasks = "1-3%1"

[trainer]
num_layers = 2
hidden_size = 32
num_attention_heads = 4
seq_length = 16
micro_batch_size = 1
global_batch_size = 8
train_samples = {train_samples}
lr = {lr}
eval_iters = 0

[data]
data_path = "data"
split = "100,0,0"
vocab_size = 300

[checkpoints]
save_interval = 10

[expect]
seconds_per_iteration = 1
save_seconds = 1

[env]
OMP_NUM_THREADS = "1"
"""


#: What the trainer writes of a checkpoint of this run: 300 tokens padded to 384, 2 nodes x 2 GPUs, 4,000 samples, 1e-3.
MANIFEST = {
    "schema_version": 1,
    "consumed_valid_samples": 0,
    "precision": "fp32",
    "layout": {
        "tensor": 1,
        "pipeline": 1,
        "data": 4,
        "world_size": 4,
        "partition_method": "type:transformer",
        "zero_stage": 1,
        "optimizer": "adam",
    },
    "model": {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_hidden_size": 128,
        "vocab_size": 300,
        "padded_vocab_size": 384,
        "position_embedding_type": "absolute",
        "max_position_embeddings": 16,
        "embed_layernorm": False,
    },
    "learning_rate": {
        "max_lr": 1e-3,
        "min_lr": 0.0,
        "warmup_samples": 0,
        "decay_samples": 4000,
        "style": "linear",
    },
    "files": {},
}


def write_run(
    folder: Path,
    *,
    name: str = "tiny",
    nodes: int = 2,
    time: str = "10:00",
    slurm: str = "",
    train_samples: int = 4000,
    lr: str = "1e-3",
    group: str = "",
) -> Path:
    """Write (over) the run file in `folder`, with its data beside it; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder / "data")
    path = folder / "run.toml"
    text = RUN_FILE.format(
        name=name,
        nodes=nodes,
        time=time,
        slurm=slurm,
        train_samples=train_samples,
        lr=lr,
        group=f'group = "{group}"\n' if group else "",
    )
    path.write_text(text)
    return path


def expand(loaded: LoadedRun) -> ExpandedRun:
    """The run on its own nodes, without the checks that a command makes: no file is looked at."""
    return ExpandedRun.of(loaded, expanded_file(loaded))


def ready(loaded: LoadedRun) -> ExpandedRun:
    """`expand`, and the output folder made as a submit does, so that the run can be published."""
    loaded.paths.output.mkdir(parents=True, exist_ok=True)
    return expand(loaded)


def write_data(prefix: Path, documents: int = 8, tokens_each: int = 64) -> None:
    """`prefix`.bin and .idx as Megatron lays them out: 16-bit tokens, one sequence a document."""
    tokens = documents * tokens_each
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{tokens}H", *(n % 300 for n in range(tokens))))
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1)
    sizes = struct.pack(f"<{documents}i", *[tokens_each] * documents)
    pointers = struct.pack(f"<{documents}q", *(2 * tokens_each * n for n in range(documents)))
    boundaries = struct.pack(f"<{documents + 1}q", *range(documents + 1))
    prefix.with_suffix(".idx").write_bytes(header + sizes + pointers + boundaries)


def write_checkpoint(folder: Path, iteration: int, consumed_samples: int) -> None:
    """Make the newest checkpoint one of that iteration: its manifest, without the files it would describe."""
    checkpoints = folder / "output" / "checkpoints"
    saved = checkpoints / f"global_step{iteration}"
    saved.mkdir(parents=True, exist_ok=True)
    progress = {
        "iteration": iteration,
        "consumed_train_samples": consumed_samples,
        "consumed_train_tokens": consumed_samples * 16,
    }
    (saved / "manifest.json").write_text(json.dumps({**MANIFEST, **progress}))
    (checkpoints / "latest").write_text(saved.name)
