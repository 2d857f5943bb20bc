"""Whole trainings of a tiny model, run inside ranks; each of their steps can be seen and disturbed."""

from __future__ import annotations

import contextlib
import io
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 64
SEQUENCE = 16

TINY = {
    "num_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "seq_length": SEQUENCE,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "lr": 3e-3,
    "vocab_size": VOCABULARY,
    "make_vocab_size_divisible_by": 4,
    "position_embedding_type": "alibi",
    "log_interval": 1,
    "eval_iters": 0,
    "num_workers": 0,
    "valid_num_workers": 0,
    "split": "80,20,0",
}


def write_corpus(folder: Path, documents: int = 60) -> str:
    """Return a data prefix: documents of 20 to 120 tokens that follow from their number."""
    import numpy

    from trainer.data.indexed import write_pair

    prefix = folder / "corpus"
    found = [
        (numpy.arange(20 + document * 37 % 100) * (document % 5 + 1) + document) % VOCABULARY
        for document in range(documents)
    ]
    write_pair(prefix, numpy.concatenate(found).astype("uint16"), numpy.array([*map(len, found)], "int32"))
    return str(prefix)


@dataclass
class Seen:
    """One rank's view of a training."""

    status: int
    output: str
    errors: str
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)


def run_training(options: dict[str, Any], disturb: dict[str, Any] | None = None) -> Seen:
    """Train in this rank with TINY and `options`; every step's loss, exactly.

    disturb: after_step (this process's own count), right before the votes that the step brings along, with any of
    move=(FROM, TO), remove=PATH, touch=PATH, append=(PATH, TEXT) or wait=PATH, which is made and waited for until it is
    gone (first rank, in this order), signal=NUMBER (every rank); once the step is taken, kill_rank=RANK (with -9),
    flip=(RANK, NAME), a bit in the fp32 weight whose name ends so, spoil=(RANK, NAME), NaN in such a weight of any
    precision, or loss=VALUE, which stands for that step's loss.
    """
    from trainer import pretrain_gpt
    from trainer.engine.build import train_step
    from trainer.loop import train as loop
    from trainer.recipe.options import to_arguments

    seen = Seen(-1, "", "")

    def watched_step(engine: Any, items: Any, learning_rate: float, decides: Any, votes: Any, consumed: int) -> Any:
        is_disturbed = disturb is not None and len(seen.losses) + 1 == disturb["after_step"]

        def disturbed_votes() -> Any:
            _disturb_this_rank(disturb or {})
            return votes()

        voted = disturbed_votes if is_disturbed else votes
        result = train_step(engine, items, learning_rate, decides, voted, consumed)
        seen.losses.append(result.loss)
        seen.learning_rates.append(learning_rate)
        seen.batch_sizes.append(engine.train_batch_size())
        if disturb and is_disturbed:
            if "flip" in disturb:
                _flip_a_bit(engine, *disturb["flip"])
            if "spoil" in disturb:
                _spoil(engine, *disturb["spoil"])
            result = _disturbed(result, disturb)
        return result

    setattr(loop, "train_step", watched_step)  # noqa: B010 - the loop imports the name for itself
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        seen.status = pretrain_gpt.main(to_arguments({**TINY, **options}))
    setattr(loop, "train_step", train_step)  # noqa: B010
    seen.output, seen.errors = output.getvalue(), errors.getvalue()
    return seen


def _flip_a_bit(engine: Any, rank: int, name: str) -> None:
    import torch

    if int(os.environ["RANK"]) == rank:
        _weight(engine, name).data.view(-1).view(torch.int32)[0] ^= 1


def _spoil(engine: Any, rank: int, name: str) -> None:
    if int(os.environ["RANK"]) == rank:
        _weight(engine, name).data.view(-1)[0] = float("nan")


def _weight(engine: Any, name: str) -> Any:
    return next(one for full, one in engine.module.named_parameters() if full.endswith(name))


def _disturb_this_rank(disturb: dict[str, Any]) -> None:
    if os.environ["RANK"] == "0":
        _disturb_files(disturb)
    if "signal" in disturb:
        os.kill(os.getpid(), disturb["signal"])
        os.kill(os.getpid(), disturb["signal"])


def _disturbed(result: Any, disturb: dict[str, Any]) -> Any:
    import dataclasses
    import signal

    if disturb.get("kill_rank") == int(os.environ["RANK"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return dataclasses.replace(result, loss=disturb["loss"]) if "loss" in disturb else result


def _disturb_files(disturb: dict[str, Any]) -> None:
    if "move" in disturb:
        old, new = disturb["move"]
        Path(old).rename(new)
    if "remove" in disturb:
        Path(disturb["remove"]).unlink()
    if "touch" in disturb:
        Path(disturb["touch"]).touch()
    if "append" in disturb:
        path, text = disturb["append"]
        with Path(path).open("a") as file:
            file.write(text)
    if "wait" in disturb:
        gate = Path(disturb["wait"])
        gate.touch()
        until = time.monotonic() + 60
        while gate.exists() and time.monotonic() < until:
            time.sleep(0.02)
