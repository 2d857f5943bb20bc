"""transformers' Trainer, also through accelerate: `checkpoint-N` folders, dictionaries and a bar in the log."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import CommandLine, Kind, Progress, numbered_folder, options_in
from opsctl.run.programs.saved_files import torn_safetensors, torn_shards, torn_zip

#: Written last by the Trainer: a folder without it is a save that was interrupted.
_STATE = "trainer_state.json"
#: Written by `--enable_jit_checkpoint` during a save.
_UNFINISHED = "checkpoint-is-incomplete.txt"
#: One of these holds the weights: files of the model or an adapter, folders of DeepSpeed or FSDP.
_WEIGHTS = ("*.safetensors", "*model*.bin", "global_step*", "pytorch_model_fsdp*")
#: Its rate counts the steps before a resume, and is wrong for a long time after one.
_BAR = re.compile(r"(?:^|\r)\s*\d{1,3}%\|.*?\| (?P<done>\d{1,18})/(?P<total>\d{1,18}) \[.*?(?:it/s|s/it)\]")
_LOGGED = re.compile(r"\{'loss': [^{}]*\}")


def _progress(line: str) -> Progress | None:
    bars = list(_BAR.finditer(line))
    if bars:
        return Progress(int(bars[-1]["done"]), int(bars[-1]["total"]))
    logged = _LOGGED.search(line)  # the Trainer draws the bar of its step again after it
    if logged is None:
        return None
    try:
        values = {name: float(value) for name, value in ast.literal_eval(logged[0]).items()}
    except (ValueError, SyntaxError, TypeError):
        return None
    return Progress(loss=values["loss"], learning_rate=values.get("learning_rate"), grad_norm=values.get("grad_norm"))


def _problem(folder: Path, step: int) -> str | None:
    if (folder / _UNFINISHED).exists():
        return f"its save was interrupted ({_UNFINISHED})"
    try:
        state = json.loads((folder / _STATE).read_bytes())
    except FileNotFoundError:
        return f"its save was interrupted (no {_STATE})"
    except (ValueError, OSError):
        return f"{_STATE} is damaged"
    if not isinstance(state, dict) or state.get("global_step") != step:
        return f"{_STATE} is of another step"
    if not any(one for pattern in _WEIGHTS for one in folder.glob(pattern)):
        return "it has no weights"
    for file in sorted(folder.iterdir()):
        problem = None
        if file.name.endswith(".safetensors"):
            problem = torn_safetensors(file)
        elif file.name.endswith(".safetensors.index.json"):
            problem = torn_shards(folder, file.name)
        elif file.suffix in (".pt", ".bin") and file.name != "training_args.bin":
            problem = torn_zip(file)
        if problem:
            return problem
    return None


def _resume(checkpoint: Path) -> Sequence[str]:
    return ("--resume_from_checkpoint", str(checkpoint))


#: Options of TrainingArguments, of which a script with `--output_dir` has some, and those of loops without the Trainer.
_TRAINER = {"save_steps", "save_strategy", "save_total_limit", "logging_steps", "per_device_train_batch_size"}
_NO_TRAINER = {"checkpointing_steps", "max_train_steps", "with_tracking"}


def _is_its(words: Sequence[str]) -> bool:
    names = options_in(words).keys()
    return "output_dir" in names and bool(names & _TRAINER) and not names & _NO_TRAINER


KIND = Kind(
    name="transformers",
    launch="torchrun",
    saves_on="SIGTERM",
    checkpoints="*/checkpoint-*",
    progress=_progress,
    judge=numbered_folder(r"checkpoint-(\d{1,18})", _problem),
    resume=_resume,
    takes_torn=True,
    saves_with="--enable_jit_checkpoint True",
    command_line=CommandLine(
        _is_its, output="output_dir", saves="checkpoint-*", steps="max_steps", left_out=("resume_from_checkpoint",)
    ),
)
