"""Byte-level BPE: training one, loading a given one, and encoding with the fastest engine that gives the same ids.

tiktoken encodes about four times as fast as tokenizers. It merges any neighbours whose bytes together are a token,
lowest id first; tokenizers merges listed pairs, in list order. The two agree on every text when (1) merges are listed
in the order of their ids, each token with one merge, (2) every token's own bytes encode to that token alone, and (3)
both cut the text into the same words. For (2): before a pair is merged, no merge has crossed its ends, so what lies
between them went through the same steps as the token's bytes alone, and these end in the listed pair. (3) hangs on
each library's Unicode tables and is checked for every character beyond ASCII that a text holds; documents with one on
which they differ go through tokenizers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.formats.errors import DataError

END_OF_DOCUMENT = "<|endoftext|>"
#: Names under which vocabularies keep the end of a document, in order of preference.
END_NAMES = (END_OF_DOCUMENT, "</s>", "<eos>", "<|end_of_text|>")
#: How ByteLevel cuts text into words; GPT-2's pattern.
WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
#: 256 bytes and the end of a document.
SMALLEST_VOCAB = 257


def train(texts: Iterable[str], vocab_size: int, show_progress: bool = False) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens from `texts`; id 0 is the end of a document.

    The same texts give the same ids.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise DataError(
            f"--vocab-size {vocab_size} is too small: {SMALLEST_VOCAB} at least (256 bytes and {END_OF_DOCUMENT})"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(path: Path) -> Tokenizer:
    """The tokenizer in `path`.

    A tokenizer.json, a folder holding one, or a folder with vocab.json and merges.txt (GPT-2's files).
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    vocab, merges = path / "vocab.json", path / "merges.txt"
    try:
        if path.is_dir() and not file.is_file() and vocab.is_file() and merges.is_file():
            return load_vocab_and_merges(vocab, merges)
        if not file.is_file():
            raise DataError(f"no tokenizer at {path}: expected tokenizer.json, or vocab.json with merges.txt")
        return Tokenizer.from_file(str(file))
    except DataError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise DataError(f"{file} is no tokenizer that can be read: {str(error).splitlines()[0]}") from None


def load_vocab_and_merges(vocab: Path, merges: Path) -> Tokenizer:
    """GPT-2's two files. `<|endoftext|>` is special when the vocabulary has it."""
    model = models.BPE.from_file(str(vocab), str(merges))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if tokenizer.token_to_id(END_OF_DOCUMENT) is not None:
        tokenizer.add_special_tokens([END_OF_DOCUMENT])
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id: what an embedding needs, also when some ids are nobody's."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


def end_of_document(tokenizer: Tokenizer) -> int:
    """The id that ends a document. Raises DataError when the vocabulary has none of the known names."""
    for name in END_NAMES:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise DataError(
        f"the tokenizer has none of {', '.join(END_NAMES)} to end documents with; give --no-append-eod to go without"
    )


class Encoder:
    """Texts to ids, with tiktoken where its ids are proven equal and tokenizers elsewhere.

    Special tokens' names in a text stay text.
    """

    def __init__(self, tokenizer: Tokenizer, workers: int = 1):
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._fast = _equal_tiktoken(tokenizer)
        self._words, self._classes = pre_tokenizers.ByteLevel(add_prefix_space=False), _word_probe()
        self._checked: set[str] = set()
        self._differing: set[str] = set()
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    @property
    def engine(self) -> str:
        """`tiktoken` or `tokenizers`, as preparing data notes it. With the first, some texts still need the second."""
        return "tiktoken" if self._fast else "tokenizers"

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """The ids of each text."""
        if self._fast is None:
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(one.ids, np.int32) for one in encoded]
        for text in texts:
            if not text.isascii():
                self._check_characters(set(text) - self._checked)
        return list(self._pool.map(self._encode_one, texts) if self._pool else map(self._encode_one, texts))

    def _encode_one(self, text: str) -> NDArray[np.integer]:
        assert self._fast is not None
        if not self._differing or self._differing.isdisjoint(text):
            try:
                return self._fast.encode_to_numpy(text, disallowed_special=())
            except (ValueError, RuntimeError):
                pass  # a run of white space beyond the pattern engine's limit
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _check_characters(self, characters: set[str]) -> None:
        """Find the characters that the two libraries do not class alike: letter, digit, neither, or white space.

        A character makes one word with `a`, `1` or `!` before it when it is of their class, and with none of them when
        it is white space.
        """
        for character in characters:
            self._checked.add(character)
            for lead in "a1!":
                one_word = len(self._words.pre_tokenize_str(lead + character)) == 1
                if one_word != (self._classes.encode_ordinary(lead + character)[0] >= 256):
                    self._differing.add(character)


def _equal_tiktoken(tokenizer: Tokenizer) -> tiktoken.Encoding | None:
    """tiktoken with the same vocabulary, or None when the conditions (1) and (2) of this module do not hold."""
    spec = json.loads(tokenizer.to_str())
    if not _is_plain_byte_level(spec):
        return None
    model = spec["model"]
    vocab: dict[str, int] = model["vocab"]
    added = {token["content"] for token in spec["added_tokens"]}
    byte_of = _bytes_of_characters()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = ["".join(pair if isinstance(pair, list) else pair.split(" ")) for pair in model["merges"]]
    ids = [vocab.get(token, -1) for token in made]
    in_order = all(low < high for low, high in itertools.pairwise(ids)) and (not ids or ids[0] >= 0)
    basic = set(vocab) - added
    if not in_order or basic != set(alphabet) | set(made) or set(made) & set(alphabet):
        return None
    # A byte alone never competes with a merge, so only merged tokens need an order.
    ranks = {bytes(byte_of[character] for character in token): vocab[token] for token in basic}
    model_alone = tokenizer.model
    if any([token.id for token in model_alone.tokenize(token_text)] != [vocab[token_text]] for token_text in made):
        return None
    return tiktoken.Encoding("opsctl", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def _word_probe() -> tiktoken.Encoding:
    """A vocabulary of bytes, and of `a`, `1` or `!` with any byte after it, ids from 256 on."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {bytes([lead, byte]): 256 * (1 + place) + byte for place, lead in enumerate(b"a1!") for byte in range(256)}
    return tiktoken.Encoding("words", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def _is_plain_byte_level(spec: dict[str, Any]) -> bool:
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
