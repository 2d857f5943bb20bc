"""A save between its snapshot and its publishing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tests.unit.trainer.checkpoint.test_publish import manifest_of, names
from trainer.checkpoint.destination import Destination
from trainer.checkpoint.publish import make_room, write
from trainer.checkpoint.save import BackgroundWrite, SaveUnderWay
from trainer.core.files import HeldFolder
from trainer.formats.checkpoint.manifest import SavedFile, latest_checkpoint
from trainer.formats.errors import CheckpointError
from trainer.parallel.agreement import Refusal

pytestmark = pytest.mark.usefixtures("alone")


class Gate:
    """Holds the write up until it is opened, and may let it fail."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None


def begun(folder: Path, gate: Gate, iteration: int = 3) -> SaveUnderWay:
    destination = Destination(HeldFolder(folder / "checkpoints"))
    name = make_room(destination, iteration)

    def written() -> Mapping[str, SavedFile]:
        assert gate.opened.wait(30)
        if gate.error is not None:
            raise gate.error
        return write({"weights": lambda: {"iteration": iteration}}, destination.folder.place() / name)

    stall_ms = 5.0
    return SaveUnderWay(
        destination, name, manifest_of(iteration), BackgroundWrite(written), stall_ms, torch.device("cpu")
    )


def test_nothing_counts_before_it_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate()
    save = begun(tmp_path, gate)
    assert not save.is_written() and names(tmp_path) == set()
    gate.opened.set()
    while not save.is_written():
        pass
    assert "latest" not in names(tmp_path) and capsys.readouterr().out == ""
    took = save.publish()
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None and (found.manifest.iteration, list(found.manifest.files)) == (3, ["weights"])
    assert "successfully saved checkpoint at iteration       3 to " in capsys.readouterr().out
    assert took.stall > 5.0 and took.background is not None


def test_publishing_waits_for_what_is_still_being_written(tmp_path: Path) -> None:
    gate = Gate()
    save = begun(tmp_path, gate)
    threading.Timer(0.2, gate.opened.set).start()
    took = save.publish()
    assert names(tmp_path) == {"global_step3", "latest"}
    assert took.background is not None and took.background >= 150


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (CheckpointError("x: No space left on device"), "x: No space left on device"),
        (MemoryError("no room"), "MemoryError: no room"),
    ],
    ids=["the disk", "anything else"],
)
def test_what_the_thread_met_is_raised_where_it_is_published_and_nothing_is_left(
    tmp_path: Path, error: Exception, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate()
    gate.opened.set()
    gate.error = error
    save = begun(tmp_path, gate)
    with pytest.raises(Refusal, match=fact):
        save.publish()
    assert names(tmp_path) == set() and "saved" not in capsys.readouterr().out
