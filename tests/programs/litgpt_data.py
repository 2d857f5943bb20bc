"""What `litgpt pretrain` reads: text, a tokenizer of its words, and a file with the model and the length."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = [f"w{number}" for number in range(300)]
CONFIG = """
model_name: pythia-14m
model_config:
  name: pythia-14m
  block_size: 64
  vocab_size: 400
  padding_multiple: 8
  n_layer: 2
  n_head: 2
  n_embd: 32
  intermediate_size: 64
  hf_config: {org: EleutherAI, name: pythia-14m}
precision: 32-true
data:
  class_path: litgpt.data.TextFiles
  init_args: {train_data_path: data, num_workers: 0}
train:
  save_interval: EVERY
  log_interval: 1
  global_batch_size: 4
  micro_batch_size: 2
  max_tokens: TOKENS
  max_norm: 1.0
  lr_warmup_steps: 4
  min_lr: 1.0e-4
eval: {interval: 10000, max_iters: 2, initial_validation: false, final_validation: false}
devices: 1
tokenizer_dir: tokenizer
logger_name: csv
seed: 42
"""


def write(folder: Path) -> None:
    """Write all files in `folder`, a folder of litgpt's working folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    draw = random.Random(1)
    for name in ("data", "tokenizer"):
        (folder / name).mkdir()
    weights = [1 / (number + 1) for number in range(len(WORDS))]
    for number in range(4):
        lines = (" ".join(draw.choices(WORDS, weights, k=12)) + " .\n" for _ in range(400))
        (folder / "data" / f"{number}.txt").write_text("".join(lines))
    ids = {word: number for number, word in enumerate(("<unk>", "<s>", "</s>", ".", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    of_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special | of_class))


def set_length(folder: Path, steps: int, save_every: int) -> None:
    """Write the configuration for that many steps of four samples of 64 tokens."""
    text = CONFIG.replace("EVERY", str(save_every)).replace("TOKENS", str(steps * 4 * 64))
    (folder / "cfg.yaml").write_text(text)
