"""The learning rate as a function of the samples consumed. Pure arithmetic, without torch.

It depends on nothing else, so a resumed training needs only that counter to continue exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trainer.recipe.schedule import samples_of_tokens, samples_to_train

WSD = "WSD"
DECAY_STYLES = ("constant", "linear", "cosine", "inverse-square-root", WSD)

#: By style, the remaining share of the way from the highest to the lowest rate at a point of the decay, 0 to 1.
_LEFT: dict[str, Callable[[float], float]] = {
    "linear": lambda over: 1.0 - over,
    "cosine": lambda over: 0.5 * (math.cos(math.pi * over) + 1.0),
    "exponential": lambda over: 2.0 * 0.5**over - 1.0,
    "minus_sqrt": lambda over: 1.0 - math.sqrt(over),
}
#: The styles of WSD's decay.
WSD_DECAY_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")


@dataclass(frozen=True)
class LearningRateSchedule:
    """Linear warm-up from 0 to `max_lr`, then constant or a decay to `min_lr`. All lengths are in samples.

    With the style WSD (warm-up, stable, decay) the rate stays at `max_lr` until the last `wsd_decay_samples` of
    `decay_samples`. Raises ValueError for an impossible schedule.
    """

    max_lr: float
    min_lr: float
    warmup_samples: int
    decay_samples: int
    style: str = "linear"
    wsd_decay_samples: int | None = None
    wsd_decay_style: str | None = None

    def __post_init__(self) -> None:
        if self.style not in DECAY_STYLES:
            raise ValueError(
                f"the learning rate cannot decay by {self.style!r}: choose one of {', '.join(DECAY_STYLES)}"
            )
        if self.max_lr < self.min_lr:
            raise ValueError(f"the learning rate {self.max_lr} is below its minimum {self.min_lr}")
        if self.warmup_samples < 0:
            raise ValueError(f"the learning rate cannot warm up for {self.warmup_samples} samples")
        if self.style != "constant" and self.decay_samples <= self.warmup_samples:
            raise ValueError(
                f"the learning rate decays until sample {self.decay_samples}, "
                f"but its warm-up lasts until sample {self.warmup_samples}: it must end before"
            )
        if self.style == WSD:
            if self.wsd_decay_samples is None or self.wsd_decay_style is None:
                raise ValueError(f"the learning rate cannot decay by {WSD} without its last part's length and style")
            begins = self.decay_samples - self.wsd_decay_samples
            if begins < self.warmup_samples:
                raise ValueError(
                    f"the learning rate's last part begins at sample {begins}, "
                    f"but its warm-up lasts until sample {self.warmup_samples}: it must end before"
                )
            if self.wsd_decay_style not in WSD_DECAY_STYLES:
                raise ValueError(
                    f"the learning rate cannot come down by {self.wsd_decay_style!r}: "
                    f"choose one of {', '.join(WSD_DECAY_STYLES)}"
                )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LearningRateSchedule:
        """Return the schedule of the options. Raises ValueError like the class."""
        is_wsd, style = options["lr_decay_style"] == WSD, options["lr_decay_style"]
        return cls(
            options["lr"],
            options["min_lr"],
            samples_to_warm_up(options),
            samples_to_decay(options),
            style,
            wsd_decay_samples=samples_to_decay_last(options) if is_wsd else None,
            wsd_decay_style=options["lr_wsd_decay_style"] if is_wsd else None,
        )

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> LearningRateSchedule:
        """Return the schedule of a manifest. Raises TypeError for other facts, ValueError like the class."""
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """Return the schedule's facts for a manifest, without parts that it does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def ends_at(self) -> int | None:
        """The sample at which the rate reaches its final value; None if it never does."""
        return None if self.style == "constant" else self.decay_samples

    def at(self, consumed_samples: int) -> float:
        """Return the rate of the step that starts after `consumed_samples`. A warm-up's first step has the rate 0."""
        if self.warmup_samples > 0 and consumed_samples <= self.warmup_samples:
            return self.max_lr * consumed_samples / self.warmup_samples
        if self.style == WSD:
            assert self.wsd_decay_samples is not None and self.wsd_decay_style is not None
            over = (consumed_samples - (self.decay_samples - self.wsd_decay_samples)) / self.wsd_decay_samples
            if over <= 0:
                return self.max_lr
            return self.min_lr + _left(self.wsd_decay_style, over) * (self.max_lr - self.min_lr)
        if self.style == "constant":
            return self.max_lr
        if consumed_samples > self.decay_samples:
            return self.min_lr
        if self.style == "inverse-square-root":
            return max(self.min_lr, self.max_lr * math.sqrt(max(self.warmup_samples, 1) / max(consumed_samples, 1)))
        ratio = (consumed_samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        return self.min_lr + _left(self.style, ratio) * (self.max_lr - self.min_lr)


#: Values for manifests without these fields: their trainers had none of these features.
ABSENT: Mapping[str, None] = dict.fromkeys(one.name for one in fields(LearningRateSchedule) if one.default is None)


def _left(style: str, over: float) -> float:
    return _LEFT[style](over) if over < 1.0 else 0.0


def samples_to_decay(options: Mapping[str, Any]) -> int:
    """Return the samples after which the decay ends: all that are trained on, unless an option says otherwise.

    Needs a length of the decay or of the training, and `global_batch_size` if that is in iterations.
    """
    if options["lr_decay_samples"]:
        return int(options["lr_decay_samples"])
    if options["lr_decay_tokens"]:
        return samples_of_tokens(options["lr_decay_tokens"], options["seq_length"])
    if options["lr_decay_iters"]:
        return int(options["lr_decay_iters"] * options["global_batch_size"])
    return samples_to_train(options)


def samples_to_warm_up(options: Mapping[str, Any]) -> int:
    """Return the samples of the warm-up, which is given in samples, in iterations or as a share of the decay."""
    if options["lr_warmup_fraction"] is not None:
        return int(options["lr_warmup_fraction"] * samples_to_decay(options))
    if options["lr_warmup_tokens"]:
        return samples_of_tokens(options["lr_warmup_tokens"], options["seq_length"])
    if options["lr_warmup_iters"]:
        return int(options["lr_warmup_iters"] * options["global_batch_size"])
    return int(options["lr_warmup_samples"])


def samples_to_decay_last(options: Mapping[str, Any]) -> int | None:
    """Return the samples of WSD's decay, the last part of the schedule; None if not given."""
    if options["lr_wsd_decay_samples"]:
        return int(options["lr_wsd_decay_samples"])
    iterations = options["lr_wsd_decay_iters"]
    return int(iterations * options["global_batch_size"]) if iterations else None
