"""Text to tokens, tokens one after the other, and back to text."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from trainer.convert.hf.documents import TOKENIZER, tokenizer_files
from trainer.data.encoder import Encoder
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.errors import CheckpointError
from trainer.generation.drawing import next_token
from trainer.generation.loaded import LoadedModel

#: Why a text ends.
LENGTH, DOCUMENT, POSITIONS = "as long as wanted", "the end of a document", "no more positions"


class Speaker:
    """A model with its tokenizer. Raises CheckpointError where there is none, or it is not the model's."""

    def __init__(self, model: LoadedModel, manifest: Manifest, tokenizer: Path | None) -> None:
        self.model = model
        trained_with, length = manifest.training.get("tokenizer"), int(model.options["seq_length"])
        found = tokenizer_files(model.options, trained_with, model.shape.tokens, length, tokenizer)
        if found is None:
            raise CheckpointError("the training knew no tokenizer, only how many tokens there are: give --tokenizer")
        self._tokenizer = Tokenizer.from_str(found.texts[TOKENIZER])
        self._encoder = Encoder.fastest(Tokenizer.from_str(found.texts[TOKENIZER]))
        self._end = found.special.end

    def tokens_of(self, prompt: str) -> list[int]:
        """What the model is given: for an empty prompt the end of a document. Raises CheckpointError for too many."""
        tokens = self._encoder.encode(prompt)
        if not tokens and self._end is None:
            raise CheckpointError("--prompt is empty, and the tokenizer has no token between documents to begin with")
        tokens = tokens or [int(self._end or 0)]
        most = self.model.shape.positions
        if most and len(tokens) >= most:
            raise CheckpointError(f"--prompt has {len(tokens)} tokens, the model {most} positions: give a shorter one")
        return tokens

    def go_on(
        self, tokens: list[int], new_tokens: int, temperature: float, top_k: int, seed: int
    ) -> tuple[list[int], str]:
        """The tokens that follow, and why no more do; the end of a document is not among them."""
        generator, new = torch.Generator().manual_seed(seed), []  # type: torch.Generator, list[int]
        while len(new) < new_tokens:
            if self.model.shape.positions and len(tokens) + len(new) >= self.model.shape.positions:
                return new, POSITIONS
            found = next_token(self.model.logits([*tokens, *new]), temperature, top_k, generator)
            if found == self._end:
                return new, DOCUMENT
            new.append(found)
        return new, LENGTH

    def text_of(self, tokens: list[int], new: list[int]) -> str:
        """What `new` adds to the text of `tokens`; a character may be spread over both."""
        before, whole = (self._tokenizer.decode(one, skip_special_tokens=False) for one in (tokens, [*tokens, *new]))
        return str(whole[len(before) :] if whole.startswith(before) else self._tokenizer.decode(new))
