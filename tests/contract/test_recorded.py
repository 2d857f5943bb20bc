"""The contract's sentences of each release, by what its commands once said (`python -m tests.contract.record`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from opsctl.slurm import commands
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import CommandClient
from opsctl.slurm.process import Answer, judged
from opsctl.slurm.rows import ROW_END
from tests.contract.record import RECORDED, key_of
from tests.contract.scene import Scene
from tests.contract.sentences import SENTENCES, Sentence

RELEASES = ("22.05", "24.11", "25.11", "26.05")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda one: one.__name__)
def test_a_sentence_holds_of_what_a_release_said(
    release: str, sentence: Sentence, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((RECORDED / f"{release}.json").read_text())
    assert record["slurm"].startswith(release)

    def said(
        command: Sequence[str],
        environment: dict[str, str],
        timeout_s: float,
        stdin: str | None = None,
        take: Callable[[bytes], None] | None = None,
    ) -> Answer:
        answer = record["answers"].get(key_of(command, stdin))
        assert answer is not None, f"no record has asked Slurm {release} this: {command}; record it again"
        if take is not None:
            take(answer["stdout"].encode())
        return judged(Answer(**answer), command[0])

    monkeypatch.setattr(commands, "run_slurm", said)
    monkeypatch.setattr(commands, "new_row_end", lambda: ROW_END)
    sentence(CommandClient(Cluster(), Deadline(60)), Scene(**record["scene"]))


def test_every_record_is_of_a_release_that_is_tried() -> None:
    assert {path.stem for path in Path(RECORDED).glob("*.json")} == set(RELEASES)
