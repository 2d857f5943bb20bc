"""The next token from a model's logits. Pure but for the generator that is handed in."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.formats.errors import CheckpointError


def next_token(logits_v: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """One token of the vocabulary. logits_v: [vocabulary], any dtype.

    temperature 0 is greedy: the first of the most likely. Else it is drawn from softmax(logits / temperature), of the
    `top_k` most likely where that is not 0. Raises CheckpointError for logits that are no numbers.
    """
    if not bool(logits_v.isfinite().all()):
        raise CheckpointError("the model's logits are no numbers: did its training diverge? Take an earlier checkpoint")
    if temperature == 0:
        return int(logits_v.argmax())
    wide_v = logits_v.double()
    scaled_v = (wide_v - wide_v.max()) / temperature  # the largest is 0, so that none overflows
    if 0 < top_k < len(scaled_v):
        kept, places = scaled_v.topk(top_k)
        return int(places[torch.multinomial(torch.softmax(kept, 0), 1, generator=generator)])
    return int(torch.multinomial(torch.softmax(scaled_v, 0), 1, generator=generator))
