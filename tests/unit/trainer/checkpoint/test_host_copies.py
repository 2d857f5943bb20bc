"""Copies that the next save writes over."""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Any

import pytest
import torch

from trainer.engine.snapshot import HostCopies


class Scaler:
    """Plain state in an object of its own, as a loss scaler is."""

    def __init__(self) -> None:
        self.scale = 2.0


def state(scaler: Scaler) -> dict[str, Any]:
    flat = torch.arange(10.0)
    return OrderedDict(
        view=flat[2:5], again=flat[2:5], nested=[{"step": torch.tensor(3)}, (1, "text", None)], scaler=scaler
    )


def test_a_copy_stays_as_it_was_whatever_becomes_of_the_state() -> None:
    scaler = Scaler()
    original = state(scaler)
    copied = HostCopies().of("file", original)
    original["view"].add_(1)
    original["nested"][0]["step"].add_(1)
    original["nested"].append("later")
    scaler.scale = 4.0
    assert type(copied) is OrderedDict and list(copied) == list(original)
    assert copied["view"].tolist() == [2.0, 3.0, 4.0]
    assert copied["nested"] == [{"step": torch.tensor(3)}, (1, "text", None)]
    assert copied["scaler"].scale == 2.0


def test_a_copy_holds_no_more_than_the_tensor_and_what_stands_there_twice_once() -> None:
    copied = HostCopies().of("file", state(Scaler()))
    assert copied["view"].untyped_storage().nbytes() == 3 * 4
    assert copied["view"].data_ptr() == copied["again"].data_ptr()


def test_the_next_copy_of_a_file_takes_the_place_of_the_last_one() -> None:
    copies = HostCopies()
    first = [copies.of(name, {"weight": torch.full((3, 5), 1.0)})["weight"].data_ptr() for name in ("a", "b")]
    second = [copies.of(name, {"weight": torch.full((3, 5), 2.0)})["weight"] for name in ("a", "b")]
    assert [one.data_ptr() for one in second] == first and len(set(first)) == 2
    assert second[0].eq(2.0).all()


def test_what_has_another_form_gets_a_place_of_its_own() -> None:
    copies = HostCopies()
    copies.of("file", {"weight": torch.ones(4), "bias": torch.ones(2)})
    for other in ({"weight": torch.ones(5), "bias": torch.zeros(2)}, {"weight": torch.ones(4).bfloat16()}, {}):
        copied = copies.of("file", other)
        assert copied.keys() == other.keys()
        assert all(
            torch.equal(copied[name], value) and copied[name].dtype == value.dtype for name, value in other.items()
        )


def test_a_second_save_touches_no_fresh_memory() -> None:
    """Every page that the kernel has to hand out is counted as a fault: 64 MiB are 16,384 of them."""
    weights = {"weight": torch.ones(1 << 24)}
    copies = HostCopies()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        copies.of("file", weights)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    first, second = faults(), faults()
    assert second < first / 10 or first < 100, (first, second)  # where whole huge pages come, both are few
    assert second < 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_with_a_number_that_is_not_finite_are_known(dtype: torch.dtype) -> None:
    copies, state = HostCopies(), {"weight": torch.ones(4, dtype=dtype), "rng": torch.ones(2, dtype=torch.uint8)}
    copies.of("file", {**state, "empty": torch.ones(0)})
    assert copies.are_finite()
    state["weight"][2] = float("nan")
    copies.of("file", state)
    assert not copies.are_finite()
