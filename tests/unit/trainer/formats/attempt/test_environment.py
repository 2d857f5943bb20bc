from __future__ import annotations

import msgspec
import pytest

from trainer.formats.attempt.environment import Commit, Environment, Package, differences, digest_of

BEFORE = Environment(
    node="x01",
    python="CPython 3.11.2",
    executable="/a/bin/python",
    packages={"torch": Package("2.6.0", digest="aa"), "model": Package("0.1")},
    commits={"model": Commit("1234567890abcdef", "", "/a/model")},
    modules=("gcc/12.2", "cuda/12.4"),
    driver="550.54",
    kernels={"adam.so": "00112233445566"},
    torch={"version": "2.6.0", "cuda": "12.4"},
    variables={"NCCL_DEBUG": "WARN"},
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"packages": {"model": Package("0.1")}}, ["torch 2.6.0 is gone"]),
        (
            {"packages": {**BEFORE.packages, "torch": Package("2.6.0", commit="fedcba9876543")}},
            ["torch 2.6.0 -> 2.6.0 at fedcba9876"],
        ),
        (
            {"commits": {"model": Commit("1234567890abcdef", "99aa")}},
            ["model 1234567890 -> 1234567890 with changes 99aa"],
        ),
        (
            {"modules": ("gcc/12.2", "cuda/12.6", "git/2")},
            ["module cuda cuda/12.4 -> cuda/12.6", "module git git/2 is new"],
        ),
        ({"driver": "560.1"}, ["driver 550.54 -> 560.1"]),
        ({"kernels": {}}, ["kernel adam.so 0011223344 is gone"]),
        ({"torch": {"version": "2.6.0", "cuda": "12.6"}}, ["torch's cuda 12.4 -> 12.6"]),
        ({"variables": {}}, ["NCCL_DEBUG WARN is gone"]),
        ({"python": "CPython 3.12.1"}, ["Python CPython 3.11.2 -> CPython 3.12.1"]),
    ],
)
def test_what_differs_is_said_and_makes_another_digest(changed: dict[str, object], words: list[str]) -> None:
    after = msgspec.structs.replace(BEFORE, **changed)
    assert differences(BEFORE, after) == words
    assert digest_of(after) != digest_of(BEFORE)


def test_where_it_lies_and_who_looked_makes_no_other_environment() -> None:
    elsewhere = msgspec.structs.replace(
        BEFORE,
        node="x02",
        executable="/b/bin/python",
        commits={"model": Commit("1234567890abcdef", "", "/b/model")},
        took_s=3.0,
        problems=("git is slow",),
    )
    assert (digest_of(elsewhere), differences(BEFORE, elsewhere)) == (digest_of(BEFORE), [])


def test_a_field_that_another_release_will_add_is_passed_over_when_reading() -> None:
    said = {**msgspec.to_builtins(BEFORE), "firmware": "1.0"}
    assert digest_of(msgspec.convert(said, Environment)) == digest_of(BEFORE)
