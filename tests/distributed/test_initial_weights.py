"""The weights a model starts from are the same in every version of this program, bit for bit."""

from __future__ import annotations

import hashlib

import pytest

from tests.distributed.pool import Pool

pytestmark = pytest.mark.distributed

#: What torch draws on the processor whose digests stand below; others may differ in the last bit.
DRAWN = "093bd614a1db1d0f"
#: (tensor ranks, positions, LayerNorm after the embedding) -> digest of each rank's parameters, from the program in
#: which every layer still stated its own shapes, names and standard deviations.
DIGESTS = {
    (1, "absolute", False): ["11714fe93396a7a4"],
    (1, "absolute", True): ["9cdf046983ceff56"],
    (1, "alibi", False): ["7c96bbb836c623ea"],
    (1, "alibi", True): ["7943918703a0f77a"],
    (2, "absolute", False): ["c89af7d44c305c9b", "b5ce2b44af835b57"],
    (2, "absolute", True): ["0db9ab075387b08f", "1d3085a57011a04e"],
    (2, "alibi", False): ["dacb2fb5e2758d38", "962e45d5fb069621"],
    (2, "alibi", True): ["58843c76711e03e5", "81622fa8d7e07b9e"],
}


def drawn() -> str:
    """Digest of numbers from torch's normal distribution, as this processor computes them."""
    import torch

    numbers = torch.empty(4096).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(1))
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]


def digests_of_parameters(tensor: int) -> list[str]:
    """One digest of all parameters of this rank's part of each model."""
    return [digest_of_parameters(*one) for one in DIGESTS if one[0] == tensor]


def digest_of_parameters(tensor: int, positions: str, embed_layernorm: bool) -> str:
    """Digest of all parameters of this rank's model: names in their order, shapes, marks and bytes."""
    from tests.distributed.tiny_training import tiny_options
    from trainer.engine.build import Vocabulary, build_model, initialize

    options = tiny_options(
        tensor,
        tensor_model_parallel_size=tensor,
        position_embedding_type=positions,
        embed_layernorm=embed_layernorm,
        num_layers=2,
        ffn_hidden_size=48,
    )
    digest = hashlib.sha256()
    for name, parameter in build_model(options, initialize(options), Vocabulary.unpadded(64)).named_parameters():
        marks = [getattr(parameter, mark, None) for mark in ("tensor_model_parallel", "partition_dim")]
        digest.update(repr((name, tuple(parameter.shape), str(parameter.dtype), marks)).encode())
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("tensor", [1, 2])
def test_initial_weights_are_those_of_earlier_versions(pool: Pool, tensor: int) -> None:
    if pool.run(1, drawn)[0] != DRAWN:
        pytest.skip("this processor draws normal numbers with other last bits")
    of_ranks = pool.run(tensor, digests_of_parameters, tensor)
    assert [list(one) for one in zip(*of_ranks, strict=True)] == [
        digests for (ranks, *_), digests in DIGESTS.items() if ranks == tensor
    ]
