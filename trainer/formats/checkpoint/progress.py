"""How far a training is: the counters that everything else follows from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Progress(msgspec.Struct, kw_only=True):
    """Counted since the very first step, over all restarts."""

    iteration: Count
    consumed_train_samples: Count
    consumed_train_tokens: Count
    consumed_valid_samples: Count  # of each validation group

    @classmethod
    def none(cls) -> Progress:
        """A training's very beginning."""
        return Progress(**dict.fromkeys(Progress.__struct_fields__, 0))

    def counters(self) -> dict[str, Any]:
        """The counters by name, without what a subclass adds."""
        return {name: getattr(self, name) for name in Progress.__struct_fields__}

    def after_step(self, batch_size: int, sequence_length: int) -> None:
        """Count one training step on `batch_size` samples of `sequence_length` tokens."""
        self.iteration += 1
        self.consumed_train_samples += batch_size
        self.consumed_train_tokens += batch_size * sequence_length
