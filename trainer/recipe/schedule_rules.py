"""Rules for combinations of schedule options. Pure functions, as in `option_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.recipe.learning_rate import (
    WSD,
    LearningRateSchedule,
    samples_to_decay,
    samples_to_decay_last,
    samples_to_warm_up,
)
from trainer.recipe.lengths import BEGINNING, End, only_evaluates
from trainer.recipe.model_options import option_name
from trainer.recipe.schedule import BatchRamp, samples_to_train

#: Options that set the same length. Only one of them may be given.
_LENGTHS = {
    "the decay": ("lr_decay_samples", "lr_decay_iters", "lr_decay_tokens"),
    "WSD's last part": ("lr_wsd_decay_samples", "lr_wsd_decay_iters"),
}
#: The options that decide the decay's length, and those for the warm-up's. The first given one counts.
_DECAY_LENGTHS = (
    *("lr_decay_samples", "lr_decay_tokens", "lr_decay_iters"),
    *("train_samples", "train_tokens", "train_iters"),
)
_WARMUP_LENGTHS = ("lr_warmup_fraction", "lr_warmup_tokens", "lr_warmup_iters", "lr_warmup_samples")


def schedule_errors(options: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction between the lengths, the learning rate and its decay."""
    errors = [*_unit_errors(options), *_twice_errors(options), *_warmup_errors(options)]
    if options["lr"] is not None and options["min_lr"] > options["lr"]:
        errors.append(f"--min-lr {options['min_lr']:g} is above --lr {options['lr']:g}")
    errors += [*_wsd_errors(options), *_length_errors(options)]
    return errors or _end_errors(options)


def _given(key: str, options: Mapping[str, Any]) -> str:
    return f"{option_name(key)} {options[key]}"


def _unit_errors(options: Mapping[str, Any]) -> list[str]:
    kinds = ("train", "lr_decay", "lr_wsd_decay", "lr_warmup")
    by_samples = [option_name(key) for kind in kinds if options[key := f"{kind}_samples"]]
    by_iterations = [option_name(key) for kind in kinds if options[key := f"{kind}_iters"]]
    if not by_samples or not by_iterations:
        return []
    return [f"{by_samples[0]} with {by_iterations[0]}: count in samples or in iterations, not both"]


def _twice_errors(options: Mapping[str, Any]) -> list[str]:
    errors = []
    for what, keys in _LENGTHS.items():
        given = [key for key in keys if options[key]]
        if len(given) > 1 and "lr_decay_tokens" in given:
            errors.append(f"{option_name(given[0])} with {option_name(given[1])}: give {what} once")
    if options["lr_warmup_tokens"] and (options["lr_warmup_iters"] or options["lr_warmup_samples"]):
        errors.append("--lr-warmup-tokens with --lr-warmup-iters or --lr-warmup-samples: give the warm-up once")
    return errors


def _warmup_errors(options: Mapping[str, Any]) -> list[str]:
    errors = []
    if options["lr_warmup_fraction"] is not None and any(
        options[f"lr_warmup_{unit}"] for unit in ("iters", "samples", "tokens")
    ):
        errors.append("--lr-warmup-fraction with --lr-warmup-iters or --lr-warmup-samples: give the warm-up once")
    for unit in ("iters", "samples", "tokens"):
        decay = options[f"lr_decay_{unit}"] or options[f"train_{unit}"]
        if decay is not None and options[f"lr_warmup_{unit}"] >= decay:
            errors.append(f"--lr-warmup-{unit} {options[f'lr_warmup_{unit}']} is not below the decay's length, {decay}")
    return errors


def _wsd_errors(options: Mapping[str, Any]) -> list[str]:
    given = [key for key in ("lr_wsd_decay_samples", "lr_wsd_decay_iters") if options[key]]
    if options["lr_decay_style"] != WSD:
        return [f"{option_name(key)} without --lr-decay-style {WSD}: no other style has such a part" for key in given]
    if not given:
        return [
            f"--lr-decay-style {WSD} without --lr-wsd-decay-samples or --lr-wsd-decay-iters: its last part's length"
        ]
    try:
        last, decay, warmup = samples_to_decay_last(options), samples_to_decay(options), samples_to_warm_up(options)
    except (TypeError, ValueError):  # not all of the options that they follow from are given
        return []
    if last is None or last <= decay - warmup:
        return []
    whole = next(_given(key, options) for key in _DECAY_LENGTHS if options[key])
    warmups = [key for key in _WARMUP_LENGTHS if options[key]]
    before = f" less {_given(warmups[0], options)} ({warmup} samples)" if warmups else ""
    return [f"{_given(given[0], options)} ({last} samples) is longer than the decay, {whole} ({decay} samples){before}"]


def schedule_notices(options: Mapping[str, Any]) -> list[str]:
    """Return notices of a decay that reaches 0 before the training ends. The originals accept it, so it is accepted."""
    ends = _ends_early(options)
    if ends is None or options["lr_decay_style"] == WSD or options["min_lr"] > 0:
        return []
    total = samples_to_train(options)
    return [
        f"{_decay_said(options)} ends before {_length_said(options, total)}: the rest trains at a learning rate "
        "of 0, which changes nothing; give --min-lr, or both the same length"
    ]


def _length_errors(options: Mapping[str, Any]) -> list[str]:
    """Return an error for a training that is at its end before its first step. An evaluation takes none."""
    if options["global_batch_size"] is None or only_evaluates(options):
        return []
    try:
        end = End.of(options)
    except ValueError:
        return []  # another rule reports it
    if not end.is_reached(BEGINNING):
        return []
    first = end.ramp.batch_at(0)
    return [f"{_given('train_samples', options)} is less than the first batch, {first} samples: no step would be taken"]


def _end_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the errors of a WSD decay that ends before the training."""
    ends = _ends_early(options)
    if ends is None or options["lr_decay_style"] != WSD:
        return []
    rest = f"the rest would train at --min-lr {options['min_lr']:g}"
    length = _length_said(options, samples_to_train(options))
    return [f"{_decay_said(options)} ends before {length}: {rest}; give both the same length"]


def _ends_early(options: Mapping[str, Any]) -> int | None:
    """Return the sample at which the rate reaches its end, if the last step begins later; None otherwise."""
    total = _samples_to_train(options)
    if total is None or not _is_whole(options):
        return None
    try:
        ends = LearningRateSchedule.of(options).ends_at
        last_step = BatchRamp.of(options).walk(0, total).reached - options["global_batch_size"]
    except ValueError:
        return None  # another rule reports it
    return ends if ends is not None and ends < last_step else None


def _is_whole(options: Mapping[str, Any]) -> bool:
    is_wsd_whole = options["lr_decay_style"] != WSD or samples_to_decay_last(options) is not None
    return options["lr"] is not None and options["global_batch_size"] is not None and is_wsd_whole


def _samples_to_train(options: Mapping[str, Any]) -> int | None:
    try:
        return samples_to_train(options)
    except (TypeError, ValueError):  # not all of the options that its length follows from are given
        return None


def _decay_said(options: Mapping[str, Any]) -> str:
    return next(_given(key, options) for key in _LENGTHS["the decay"] if options[key])


def _length_said(options: Mapping[str, Any], total: int) -> str:
    given = [key for key in ("train_samples", "train_tokens", "train_iters") if options[key]]
    return _given(given[0], options) if len(given) == 1 else f"the training does, at sample {total}"
