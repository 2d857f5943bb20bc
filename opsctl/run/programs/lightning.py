"""Lightning: one `.ckpt` file for each checkpoint, and a bar that counts the batches of an epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.run.programs.kind import CommandLine, Kind, Progress, SavedCheckpoint, options_in
from opsctl.run.programs.saved_files import distributed_problem, number_after, pickle_in_zip, torn_zip

_BAR = re.compile(
    r"(?:Epoch (?P<epoch>\d{1,9})|Training): .*?\| (?P<done>\d{1,18})/(?P<total>\d{1,18}|\?) "
    r"\[.*?(?P<rate>[\d.]+|\?)(?P<unit>it/s|s/it)(?P<rest>[^\]]*)\]"
)
#: The bar of the package rich, Lightning's default where it is installed.
_RICH = re.compile(
    r"Epoch (?P<epoch>\d{1,9})/-?\d+ +[━╸╺ ]+(?P<done>\d{1,18})/(?P<total>\d{1,18}|--) "
    r"\d+:\d\d:\d\d • [-\d:]+ (?P<rate>[\d.]+)(?P<unit>it/s)(?P<rest>[^\r\n]*)"
)
_LOSS = re.compile(r"\b(?:train_)?loss(?:_step)?(?:=|: )(?P<loss>[-+\d.e]+|nan|inf)")
_STEP = re.compile(r"step=(\d{1,18})")
_RESTORED = re.compile(r"Restored all states from the checkpoint at .*step=(\d{1,18})")


class Bars:
    """Counts the steps of an attempt by its bars of batches.

    A bar counts within its epoch. The bar of the last epoch ends where the training ends, so its length is not the
    epoch's; tqdm's first bar after a resume within an epoch has neither a number nor a length.
    """

    def __init__(self, start: int, batches_per_step: int = 1) -> None:
        """Count from the step of the checkpoint that the attempt resumes from, or 0."""
        self._start, self._batches_per_step = start, batches_per_step
        self._before: int | None = None  # steps before this epoch
        self._epoch: str | None = None
        self._done = 0
        self._length = 0  # of this epoch, 0 if unknown
        self._draws = 0  # bars of this batch
        self._loss = ""  # the newest that counts
        self._has_loss = False  # of this batch

    def progress(self, line: str) -> Progress | None:
        """Return the progress in a line of output."""
        if restored := _RESTORED.search(line):
            self._start, self._before = int(restored[1]), None
        found = None
        for bar in _BAR.finditer(line) if "|" in line else _RICH.finditer(line):
            found = self._of(bar) or found
        return found

    def _of(self, bar: re.Match[str]) -> Progress | None:
        done, is_rich = int(bar["done"]), bar.re is _RICH
        length = int(bar["total"]) if bar["total"].isdecimal() else 0
        if not done:  # a bar is set to 0 before it gets its next name
            return None
        if self._before is None:
            if is_rich and done == length:
                return None  # without a terminal, rich draws only the bar of the last epoch, at its end
            in_epoch = (done - 1) // self._batches_per_step
            self._before = max(int(bar["epoch"] or 0) * self._steps(length), self._start - in_epoch)
        elif bar["epoch"] != self._epoch:
            self._before += self._steps(self._length or self._done)  # rich does not draw an epoch's last batch
        if (bar["epoch"], done) != (self._epoch, self._done):
            self._epoch, self._done, self._draws, self._has_loss = bar["epoch"], done, 0, False
        self._draws, self._length = self._draws + 1, length
        loss = _LOSS.search(bar["rest"])
        # The first bar of a batch still shows the loss of the batch before: always tqdm's, rarely rich's.
        if self._has_loss or (loss and self._draws == 1 and (not is_rich or loss["loss"] == self._loss)):
            return None
        self._has_loss, self._loss = bool(loss), loss["loss"] if loss else ""
        if done % self._batches_per_step and done != length:
            return None
        seconds = _seconds(bar)
        return Progress(
            self._before + self._steps(done),
            loss=float(loss["loss"]) if loss else None,
            seconds_per_iteration=seconds and seconds * self._batches_per_step,
        )

    def _steps(self, batches: int) -> int:
        """Return the optimizer's steps in the first batches of an epoch, at whose end there is always one."""
        return -(-batches // self._batches_per_step)


def _seconds(bar: re.Match[str]) -> float | None:
    """Return the seconds of a batch; None in an epoch's rest after a resume, where the bar divides by too little."""
    rate = 0.0 if "?" in (bar["rate"], bar["total"]) else float(bar["rate"])
    if not rate:
        return None
    return rate if bar["unit"] == "s/it" else 1 / rate


def single_bar(line: str) -> Progress | None:
    """Return the progress in a line without those before it."""
    bars = Bars(0)
    return bars.progress(line) or bars.progress(line)


def _judge(path: Path) -> SavedCheckpoint | None:
    if path.suffix != ".ckpt":
        return None
    if path.is_dir():  # sharded: torch's distributed checkpoint
        step = _STEP.search(path.name)
        return SavedCheckpoint(int(step[1]), path, distributed_problem(path)) if step else None
    if problem := torn_zip(path):
        step = _STEP.search(path.name)
        return SavedCheckpoint(int(step[1]) if step else 0, path, problem)
    step_inside = number_after(pickle_in_zip(path), "global_step")
    return None if step_inside is None else SavedCheckpoint(step_inside, path)


def _resume(checkpoint: Path) -> Sequence[str]:
    return ("--ckpt_path", str(checkpoint))


def _is_its(words: Sequence[str]) -> bool:
    """Return True for LightningCLI: `main.py fit --trainer.max_steps 100`."""
    return "fit" in words[1:2] and any(name.startswith("trainer") for name in options_in(words))


KIND = Kind(
    name="lightning",
    launch="torchrun",  # under torchrun Lightning does not requeue jobs by itself
    saves_on=None,
    checkpoints="lightning_logs/version_*/checkpoints/*.ckpt",
    progress=single_bar,
    follow=lambda start, batches: Bars(start, batches).progress,
    judge=_judge,
    resume=_resume,
    # rich draws its bar only on a terminal, and on one of 80 columns it breaks the line before the loss.
    environment={"TTY_COMPATIBLE": "1", "COLUMNS": "160"},
    lacks=(
        'It saves when it is stopped only with stop = "hook" and opsctl_hook in the script, or with ModelCheckpoint('
        'save_on_exception=True) and stop = "SIGTERM".',
        "A resume within an epoch continues at the right step but with the first batches of the epoch, unless the "
        "loader keeps its state.",
        "Its bar counts batches: with accumulate_grad_batches = N, set batches_per_step = N.",
    ),
    command_line=CommandLine(
        _is_its,
        imports=("lightning", "pytorch_lightning"),
        output="trainer.default_root_dir",
        saves="lightning_logs/version_*/checkpoints/*.ckpt",
        steps="trainer.max_steps",
        left_out=("ckpt_path",),
    ),
)
