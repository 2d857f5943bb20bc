"""The predicted effect of a changed length equals that of the built orders."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.facts import missing
from tests.tiny_run import MANIFEST
from tests.unit.trainer.data.conftest import MakePair, make_pair, options_for
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.sample_order import sample_order
from trainer.formats.checkpoint.changes import sample_order_change, training_changes
from trainer.formats.checkpoint.manifest import Manifest

__all__ = ["make_pair"]
LENGTH = {
    "train_samples": None,
    "train_iters": None,
    "train_tokens": None,
    "global_batch_size": 4,
    "rampup_batch_size": None,
}


def order_of(options: dict[str, Any], samples: int) -> dict[str, str]:
    train = build_datasets(options, samples, 0, 0).train
    assert isinstance(train, GPTDataset | BlendedDataset)
    return sample_order(train)


def saved(order: dict[str, str], **settings: object) -> Manifest:
    """Return the manifest of a checkpoint after ten iterations."""
    settings = {**LENGTH, "separate_last_epoch_threshold": 0.80, **settings}
    progress = {"iteration": 10, "consumed_train_samples": 40, "consumed_train_tokens": 320}
    return msgspec.convert(
        {**MANIFEST, **progress, "training": {"sample_order": order}, "settings": settings}, Manifest
    )


@pytest.mark.parametrize("split", ["1,0,0", "90,10,0"])
@pytest.mark.parametrize("is_blend", [False, True])
def test_whether_a_length_shuffles_the_data_anew_is_told_as_the_trainer_finds_it(
    make_pair: MakePair, split: str, is_blend: bool
) -> None:
    one, other = make_pair("one", lengths=[40, 9, 60, 30, 11] * 8), make_pair("other", lengths=[50] * 20)
    path = ["0.3", one, "0.7", other] if is_blend else [one]
    options = options_for(data_path=path, split=split, **LENGTH)
    lengths = (60, 100, 140, 150, 200, 300, 320, 600)
    orders = {samples: order_of(options, samples) for samples in lengths}
    told = 0
    for before in lengths:
        for now in lengths:
            manifest = saved(orders[before], train_samples=before)
            why = sample_order_change(manifest, {**options, "train_samples": now})
            found = training_changes(manifest, {"sample_order": orders[now]})
            assert (why is None) == (not found), (before, now, why)
            told += why is not None
    assert 0 < told < len(lengths) ** 2


def test_a_length_in_iterations_is_told_of_where_every_step_had_the_same_batch(make_pair: MakePair) -> None:
    options = options_for(data_path=[make_pair("one", lengths=[50] * 20)], **LENGTH)
    manifest = saved(order_of(options, 100), train_iters=25)
    longer = {**options, "train_iters": 75}
    assert sample_order_change(manifest, {**options, "train_iters": 30}) is None
    why = sample_order_change(manifest, longer) or ""
    assert not missing(why, "1 pass -> 3 passes", options["data_path"][0], "100 -> 300 samples")
    for unlike in ({"rampup_batch_size": [4, 4, 40]}, {"train_tokens": 4000}, {"global_batch_size": 8}):
        assert sample_order_change(manifest, {**longer, **unlike}) is None


def test_of_a_checkpoint_that_does_not_say_what_it_was_trained_with_nothing_is_told(make_pair: MakePair) -> None:
    options = options_for(data_path=[make_pair("one", lengths=[50] * 20)], **LENGTH)
    manifest, longer = saved(order_of(options, 100), train_samples=100), {**options, "train_samples": 900}
    assert sample_order_change(manifest, longer) is not None
    manifest.settings.pop("rampup_batch_size")
    assert sample_order_change(manifest, longer) is None
