"""The digest of a training's first samples, which differs for every other order."""

from __future__ import annotations

from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset
from trainer.data.sample_order import sample_order

# Of a rare source's 19 samples in a pass over it the first thousand of the blend have one or none.
RARE = 0.0005


def blend_of(prefixes: list[str], samples: int) -> BlendedDataset:
    common, rare = prefixes
    options = options_for(data_path=[str(1 - RARE), common, str(RARE), rare], seq_length=16)
    train = build_datasets(options, samples, 0, 0).train
    assert isinstance(train, BlendedDataset)
    return train


def test_a_longer_training_that_would_shuffle_a_rare_source_alone_has_another_order(make_pair: MakePair) -> None:
    prefixes = [make_pair("common", [range(16 * 4096)] * 16), make_pair("rare", lengths=[40] * 8)]
    short, long = blend_of(prefixes, 3000), blend_of(prefixes, 60_000)
    rare = [place for place in range(len(short)) if short.source_of(place)[0] == 1]
    assert any(short[place].tolist() != long[place].tolist() for place in rare) and min(rare) < 3000
    assert sample_order(short) != sample_order(long)


def test_a_longer_training_within_the_same_passes_has_the_same_order(make_pair: MakePair) -> None:
    prefixes = [make_pair("common", [range(16 * 4096)] * 16), make_pair("rare", lengths=[40] * 8)]
    short, long = blend_of(prefixes, 3000), blend_of(prefixes, 30_000)
    assert [short[place].tolist() for place in range(3000)] == [long[place].tolist() for place in range(3000)]
    assert sample_order(short) == sample_order(long)
