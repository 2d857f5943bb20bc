"""Two preparations of one output: the second takes nothing of the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainer.data.unfinished.at_work import PIECE_BYTES, AtWork
from trainer.data import prepare
from trainer.data.indexed import IndexedWriter


def test_a_second_one_on_the_same_output_is_refused_while_the_first_lives(
    at_work: AtWork, wanted: dict[str, bytes]
) -> None:
    first = at_work.paused(*at_work.tokenizer)
    second = at_work.start(*at_work.tokenizer)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and str(at_work.out) in err and err.count("\n") == 1
    at_work.go()
    first.communicate(timeout=60)
    assert first.returncode == 0 and at_work.written() == wanted


@pytest.mark.parametrize("moment", ["tokens in place", "all in place"])
def test_a_second_one_while_the_first_puts_its_files_in_their_place_takes_none_of_them(
    corpus: Path, tmp_path: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr("trainer.data.texts.lines.PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("trainer.data.program.QUIET_S", 1e9)
    out = tmp_path / "out"
    words = [str(corpus / "corpus.jsonl"), f"--output-prefix={out}/c", f"--tokenizer={corpus}", "--workers=1"]
    replace, place, codes = Path.replace, IndexedWriter.place, []

    def second() -> None:
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(IndexedWriter, "place", place)
        codes.append(prepare.main([*words, "--overwrite"]))

    def replaced(path: Path, target: Path) -> Path:
        result = replace(path, target)
        if str(target).endswith(".bin"):
            second()
        return result

    def placed(writer: IndexedWriter, others: Callable[[], None]) -> None:
        place(writer, others)
        second()

    if moment == "all in place":
        monkeypatch.setattr(IndexedWriter, "place", placed)
    else:
        monkeypatch.setattr(Path, "replace", replaced)
    assert prepare.main(words) == 0
    assert codes == [1]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == wanted


def test_whoever_is_through_leaves_what_another_has_begun_since(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", np.dtype("<u2")) as first:
        first.place()
        begun = tmp_path / "c.bin.partial"
        begun.write_bytes(b"another's")
    assert begun.read_bytes() == b"another's"
