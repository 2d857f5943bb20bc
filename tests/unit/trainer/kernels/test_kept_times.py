"""The files with measured times: written whole, found again by device and versions, never needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.unit.trainer.kernels.test_choice import CPU
from tests.unit.trainer.kernels.test_measured_choice import times
from trainer.formats.attempt.kernels import FamilyTimes, KernelTimes
from trainer.kernels import times as room
from trainer.kernels.times import (
    KeptTimes,
    device_name,
    keep,
    kept_times,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def of(*families: FamilyTimes) -> KernelTimes:
    return KernelTimes(device=device_name(CPU), torch="2", cuda=None, families=list(families))


def test_without_a_measurement_nothing_is_known_and_nothing_said() -> None:
    assert kept_times(CPU) == KeptTimes(device_name(CPU))


def test_what_is_kept_is_found_again_and_nothing_else_lies_beside_it(cache: Path) -> None:
    first, second = times(columns=8, torch=1.0), times(columns=16, torch=2.0)
    assert keep(of(first), CPU) != keep(of(second), CPU)
    assert set(map(str, kept_times(CPU).families)) == set(map(str, (first, second)))
    assert [one.suffix for one in cache.iterdir()] == [".json", ".json"]


def test_the_newest_measurement_of_a_size_counts(cache: Path) -> None:
    old = times(torch=1.0)
    new = msgspec.structs.replace(old, seconds={"torch": 2.0}, measured_at="2026-11-24T10:00:00+00:00")
    keep(of(new, times("Adam", torch=1.0)), CPU)
    keep(of(old), CPU)
    assert len(list(cache.iterdir())) == 2
    assert [one.seconds for one in kept_times(CPU).families if one.family == "norms"] == [{"torch": 2.0}]
    keep(of(msgspec.structs.replace(old, seconds={"torch": 3.0})), CPU)
    assert len(list(cache.iterdir())) == 2, "the same sizes take the same file"


def test_those_of_other_sources_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(of(times(torch=1.0)), CPU)
    own = room._artifact(CPU)
    assert own is not None and kept_times(CPU).families
    monkeypatch.setattr(room, "_artifact", lambda _device: replace(own, key="other"))
    assert kept_times(CPU).families == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"schema_version": 2, "all": "else"}), "version 2"),
        ("{", "damaged"),
        ("", "damaged"),
        (json.dumps({"schema_version": 1, "device": 3}), "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_newer_or_broken_one_is_passed_over_with_a_word(text: str, said: str) -> None:
    good, bad = keep(of(times(torch=1.0)), CPU), keep(of(times("Adam", torch=1.0)), CPU)
    bad.write_text(text)
    found = kept_times(CPU)
    assert [one.family for one in found.families] == ["norms"] and good.exists()
    (note,) = found.notes
    assert note.startswith(str(bad)) and said in note and "opsctl kernels measure" in note


def test_one_that_others_could_have_written_is_not_believed() -> None:
    target = keep(of(times(torch=1.0)), CPU)
    target.chmod(0o666)
    found = kept_times(CPU)
    assert found.families == () and str(target) in found.notes[0]
