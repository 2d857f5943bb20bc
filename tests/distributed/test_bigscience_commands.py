"""BigScience's command lines: what its own tests of training ask of a trainer, asked of this one.

fp16 and NCCL need a GPU: bf16 and gloo stand for them. The MLP is GeLU here, so `--glu-activation` is left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import VOCABULARY, write_corpus
from trainer.core.uncompiled import COMPILER

pytestmark = pytest.mark.distributed
RANKS_IMPORT = COMPILER  # recomputation loads it

MODEL = """--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 1024
    --micro-batch-size 1 --rampup-batch-size 2 2 300 --global-batch-size 16 --train-samples 300"""
OPTIMIZER = """--optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --lr 1e-4 --lr-warmup-samples 5
    --lr-decay-samples 6 --clip-grad 1.0 --weight-decay 1e-1 --bf16"""
OUTPUT = """--log-interval 3 --save-interval 3 --eval-interval 3 --eval-iters 1 --exit-interval 6
    --tensorboard-queue-size 5 --log-timers-to-tensorboard --log-batch-size-to-tensorboard
    --log-validation-ppl-to-tensorboard"""


def output_of(words: list[str]) -> tuple[int, str]:
    """In a rank: exit status and everything that this rank printed of a training with these words."""
    from trainer import pretrain_gpt

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = pretrain_gpt.main(words)
    return status, printed.getvalue()


def command(folder: Path, variation: str, tensor: int, pipeline: int) -> list[str]:
    """Return the words of one of the variations that are trained twice over, the second time from the checkpoint."""
    corpus = write_corpus(folder, documents=1200)
    (folder / "vocab.json").write_text(json.dumps({f"t{number}": number for number in range(VOCABULARY)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    # What the 176B model's configuration said, at which DeepSpeed shards all the same.
    engine: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 16, "gradient_clipping": 1.0}
    engine |= {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}, "steps_per_print": 2000}
    (folder / "ds_config.json").write_text(json.dumps(engine))
    data = f"--data-path {corpus}"
    if "weighted" in variation:
        data = (
            f"--train-weighted-split-paths|TRAIN: 1 0:0.5 {corpus}, 2 0.5:0.9 {corpus}|"
            f"--valid-weighted-split-paths|VALID1: 1 0.9:0.95 {corpus}|VALID2: 1 0.95:1 {corpus}"
        )
    words = f"""
        --tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline} --distributed-backend gloo
        {MODEL} {OPTIMIZER} {OUTPUT}
        --vocab-file {folder}/vocab.json --merge-file {folder}/merges.txt --codecarbon-dir {folder}/codecarbon
        --save {folder}/checkpoints --load {folder}/checkpoints --tensorboard-dir {folder}/tensorboard
        --kill-switch-path {folder}/kill-switch
        --deepspeed --deepspeed_config {folder}/ds_config.json --zero-stage 0
        --checkpoint-activations --deepspeed-activation-checkpointing --partition-activations
    """.split()
    if "alibi" in variation:
        words += ["--position-embedding-type", "alibi"]
    return words + (data.split("|") if "|" in data else data.split())


@pytest.mark.parametrize(("variation", "tensor", "pipeline"), [("base", 2, 2), ("alibi, weighted", 1, 1)])
def test_a_training_begins_saves_and_goes_on_in_bigsciences_words(
    pool: Pool, tmp_path: Path, variation: str, tensor: int, pipeline: int
) -> None:
    words, checkpoints = command(tmp_path, variation, tensor, pipeline), tmp_path / "checkpoints"

    def train() -> str:
        ranks = pool.run(tensor * pipeline, output_of, words)
        said = "".join(text for _, text in ranks)
        assert [status for status, _ in ranks] == [0] * len(ranks), said
        return said

    said = train()
    assert f"Unable to find latest file at {checkpoints}/latest" in said
    for phrase in ("consumed samples", "successfully saved checkpoint at iteration", "lm loss"):
        assert phrase in said
    assert len(re.findall("sharded over DP .*stage 0", said)) == 2  # option and file
    assert "[exiting program at iteration 6]" in said
    if "weighted" in variation:
        assert "VALID1 loss at iteration 3" in said and "VALID2 loss at iteration 6" in said
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 1

    said = train()
    assert f"successfully loaded checkpoint from {checkpoints}" in said
    assert "Unable to find latest file" not in said
    for phrase in ("consumed samples", "successfully saved checkpoint at iteration"):
        assert phrase in said
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 2

    if variation == "base":
        return  # what follows does not depend on the ranks
    (tmp_path / "kill-switch").touch()
    said = train()
    assert f"Detected kill switch at {tmp_path}/kill-switch" in said
    assert "consumed samples" not in said
