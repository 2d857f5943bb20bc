"""Megatron-LM: `iter_N` folders and a tracker file that names the newest. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import CommandLine, Kind, by_itself, no_progress, numbered_folder, options_in
from opsctl.run.programs.saved_files import DISTRIBUTED, distributed_problem, torn_zip

#: Written after all ranks have saved.
TRACKER = "latest_checkpointed_iteration.txt"
#: The values that are the same on all ranks, and the format of the others.
_COMMON, _FORMAT = "common.pt", "metadata.json"


def _problem(folder: Path, iteration: int) -> str | None:
    newest = _tracked(folder.parent / TRACKER)
    if newest is None:
        return f"no {TRACKER} names it"
    if iteration > newest:
        return f"its save was interrupted ({TRACKER} names iteration {newest})"
    if problem := core_problem(folder):
        return problem
    files = sorted(folder.glob("mp_rank_*/*.pt"))
    if not files and not any(folder.glob("*.distcp")):
        return "it has no file of a rank"
    return next(filter(None, map(torn_zip, files)), None)


def core_problem(folder: Path) -> str | None:
    """Return why megatron.core, or torch for its own FSDP, would not load a folder; None also for neither's."""
    if (folder / _COMMON).exists() or (folder / _FORMAT).exists():
        return _format_problem(folder) or torn_zip(folder / _COMMON) or distributed_problem(folder)
    is_torchs = (folder / DISTRIBUTED).exists() or any(folder.glob("*.distcp"))
    return distributed_problem(folder) if is_torchs else None


def _format_problem(folder: Path) -> str | None:
    try:
        json.loads((folder / _FORMAT).read_bytes())
    except FileNotFoundError:
        return f"its save was interrupted (no {_FORMAT})"
    except (ValueError, OSError):
        return f"{_FORMAT} is damaged"
    return None


def _tracked(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


#: Options that Megatron-LM has and Megatron-DeepSpeed, whose programs have the same names, has not.
_OF_CORE = {
    *("use_mcore_models", "transformer_impl", "use_distributed_optimizer", "attention_backend", "exit_signal_handler"),
    *("ckpt_format", "dist_ckpt_format", "use_dist_ckpt", "overlap_grad_reduce", "overlap_param_gather", "fp8_format"),
    *("context_parallel_size", "tokenizer_model", "moe_router_topk", "spec", "manual_gc"),
}


def _is_its(words: Sequence[str]) -> bool:
    """Return True for `pretrain_gpt.py` and its siblings with options of Megatron's core."""
    return words[0].rpartition("/")[2].startswith("pretrain_") and bool(_OF_CORE & options_in(words).keys())


KIND = Kind(
    name="megatron-lm",
    launch="torchrun",
    saves_on="SIGTERM",
    checkpoints="*/iter_*",
    progress=no_progress,
    judge=numbered_folder(r"iter_(\d{7,18})", _problem),
    resume=by_itself,
    saves_with="--exit-signal-handler",
    command_line=CommandLine(
        _is_its,
        imports=("megatron",),
        output="save",
        saves="iter_*",
        steps="train_iters",
        left_out=("exit_duration_in_mins",),
    ),
)
