"""What of a tokenizer.json is byte-level BPE and nothing else: its symbols, merges, and how it cuts text into words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

#: How ByteLevel cuts text into words; GPT-2's pattern.
WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
#: What WORDS tells apart, and a character of it. What makes a word with none of these is white space.
CLASSES = {"letter": "a", "number": "1", "other": "!"}
SPACE = "space"


@dataclass(frozen=True)
class ByteLevelBpe:
    """A byte-level BPE.

    symbol_of_byte: 256 ids. merges: (left, right, result) ids, the first the one that is merged first. token_bytes:
    the bytes of every token that a text can have, by id.
    """

    symbol_of_byte: tuple[int, ...]
    merges: tuple[tuple[int, int, int], ...]
    token_bytes: dict[int, bytes]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ByteLevelBpe | None:
        """That of `tokenizer`; None where anything else touches the ids, or merges do not say what they make."""
        spec = json.loads(tokenizer.to_str())
        if not _is_plain(spec):
            return None
        vocab: dict[str, int] = spec["model"]["vocab"]
        byte_of = _bytes_of_characters()
        pairs = [tuple(pair if isinstance(pair, list) else pair.split(" ")) for pair in spec["model"]["merges"]]
        possible = {*byte_of, *("".join(pair) for pair in pairs)}
        if len(set(pairs)) != len(pairs) or not {*possible, *itertools.chain.from_iterable(pairs)} <= vocab.keys():
            return None
        return cls(
            tuple(vocab[character] for character, _ in sorted(byte_of.items(), key=lambda item: item[1])),
            tuple((vocab[left], vocab[right], vocab[left + right]) for left, right in pairs),
            {vocab[token]: bytes(byte_of[one] for one in token) for token in possible},
        )

    def is_merged_in_order_of_ids(self, tokenizer: Tokenizer) -> bool:
        """Whether merging neighbours whose bytes together are a token, lowest id first, gives the same ids.

        So it is when merges are listed in the order of their ids, each token with one merge, and every token's own
        bytes encode to that token alone: before a pair is merged no merge has crossed its ends, so what lies between
        them went through the same steps as the token's bytes alone, and these end in the listed pair.
        """
        made = [result for _, _, result in self.merges]
        if any(low >= high for low, high in itertools.pairwise(made)) or not {*made}.isdisjoint(self.symbol_of_byte):
            return False
        vocab: dict[str, int] = json.loads(tokenizer.to_str())["model"]["vocab"]
        wanted, model = set(made), tokenizer.model
        return all(
            [one.id for one in model.tokenize(text)] == [token] for text, token in vocab.items() if token in wanted
        )


def classes_of(characters: Iterable[str]) -> list[str]:
    """The class of each character, as tokenizers has it: a name of CLASSES, or SPACE.

    Its own cutting is asked: a character makes one word with what is of its class before it.
    """
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [
        next((name for name, lead in CLASSES.items() if len(words.pre_tokenize_str(lead + one)) == 1), SPACE)
        for one in characters
    ]


def _is_plain(spec: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is byte-level BPE and nothing else that touches ids."""
    model, words = spec["model"], spec["pre_tokenizer"]
    return (
        model["type"] == "BPE"
        and not any(
            model.get(key)
            for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
        )
        and spec["normalizer"] is None
        and all(token["special"] for token in spec["added_tokens"])
        and words is not None
        and words["type"] == "ByteLevel"
        and not words["add_prefix_space"]
        and words.get("use_regex", True)
    )


def _bytes_of_characters() -> dict[str, int]:
    """The byte behind each character of the byte-level alphabet.

    Printable ones stand for themselves, the rest follow from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + position): byte for position, byte in enumerate(hidden)}
