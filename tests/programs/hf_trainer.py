"""A script with transformers' Trainer, whose arguments are TrainingArguments.

torchrun hf_trainer.py --output_dir out --max_steps 100 --save_steps 10 --logging_steps 1 --step_seconds 0.2
"""

# mypy: ignore-errors
from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)


@dataclass
class OwnArguments:
    """The arguments of the script itself."""

    step_seconds: float = 0.0


class Tokens(torch.utils.data.Dataset):
    """Samples that follow from their index."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Steps(TrainerCallback):
    """Prints each step, and lasts as long as it is asked to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, *_: object, **__: object) -> None:
        time.sleep(self.seconds)

    def on_log(self, _: object, state: TrainerState, *__: object, logs: dict[str, float], **___: object) -> None:
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}/{state.max_steps} loss {logs['loss']}", flush=True)


def main() -> None:
    own, training = HfArgumentParser((OwnArguments, TrainingArguments)).parse_args_into_dataclasses()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model, training, train_dataset=Tokens(), callbacks=[Steps(own.step_seconds)])
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)


if __name__ == "__main__":
    main()
