"""How many tokens' logits exist at once in the loss. Pure, without torch.

Each chunk reads the output layer's weight twice and reads and writes its fp32 gradient once, whatever its size, and
computes three products, 6 operations for each token and number of the weight. So of a chunk's time the share

    (8 + 2 e) * (operations a second / bytes a second) / (6 * tokens)

goes into that traffic, e bytes being an element's: on a GPU with tensor cores (H100: 240 operations of 16 bits a byte)
480 / tokens, hidden behind the products where these are the longer, on a CPU core (10 operations of fp32 a byte)
27 / tokens. A chunk also has to be worth starting: small vocabularies take as many tokens as make `_LEAST_LOGITS`.
"""

from __future__ import annotations

#: Tokens of a chunk at least, by the traffic: 5 % of the time on a CPU core, behind the products on a GPU.
LEAST_TOKENS = {"cpu": 512, "cuda": 2048}
#: Logits of a chunk at least: what stays in a CPU's last cache, and what hides the start of a GPU's kernels.
LEAST_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 26}


def chunks_of(tokens: int, rows: int, device: str) -> list[slice]:
    """Which tokens of a micro-batch go together against `rows` of the vocabulary on a rank; as alike as can be.

    Not even the last is smaller than the least size, if there are so many tokens, nor is any twice as large: the logits
    of a chunk are below 2 * max(least tokens * rows, least logits). device: "cpu" or "cuda".
    """
    count = _count(tokens, rows, device)
    return [slice(one * tokens // count, (one + 1) * tokens // count) for one in range(count)]


def chunk_tokens(tokens: int, rows: int, device: str) -> int:
    """Tokens of the largest chunk."""
    return -(-tokens // _count(tokens, rows, device))


def _count(tokens: int, rows: int, device: str) -> int:
    return max(1, tokens // max(1, LEAST_TOKENS[device], LEAST_LOGITS[device] // rows))
