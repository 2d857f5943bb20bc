"""Two preparations of one output: the second takes nothing of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainer.data.unfinished.at_work import PIECE_BYTES, AtWork
from trainer.data import prepare


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


def test_a_second_one_while_the_first_puts_its_files_in_their_place_takes_none_of_them(
    corpus: Path, tmp_path: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.pieces.PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("trainer.data.program.QUIET_S", 1e9)
    out = tmp_path / "out"
    words = [str(corpus / "corpus.jsonl"), f"--output-prefix={out}/c", f"--tokenizer={corpus}", "--workers=1"]
    replace, codes = Path.replace, []

    def replaced(path: Path, target: Path) -> Path:
        result = replace(path, target)
        if str(target).endswith(".bin"):
            monkeypatch.setattr(Path, "replace", replace)
            codes.append(prepare.main([*words, "--overwrite"]))
        return result

    monkeypatch.setattr(Path, "replace", replaced)
    assert prepare.main(words) == 0
    assert codes == [1]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == wanted
