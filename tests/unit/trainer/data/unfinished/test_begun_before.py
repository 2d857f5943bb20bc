"""Only the same command on the same input continues an unfinished preparation."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.facts import missing
from tests.unit.trainer.data.unfinished.at_work import FILES, AtWork
from trainer.data.corpus import Position
from trainer.data.unfinished import State
from trainer.formats.errors import DataError


def test_a_tokenizer_that_was_trained_is_trained_once(at_work: AtWork, corpus: Path) -> None:
    process = at_work.paused("--vocab-size=290")
    process.kill()
    process.communicate(timeout=60)
    kept = at_work.out / "c_text_document.tokenizer.partial"
    inode = kept.stat().st_ino
    assert not (at_work.out / "tokenizer.json").exists()
    again = at_work.paused("--vocab-size=290")
    assert kept.stat().st_ino == inode
    again.kill()
    again.communicate(timeout=60)
    at_work.finished("--vocab-size=290")
    assert sorted(at_work.written()) == [*FILES, "tokenizer.json"]


def test_another_preparation_is_not_taken_for_the_one_that_was_begun(at_work: AtWork, wanted: dict[str, bytes]) -> None:
    process = at_work.paused(*at_work.tokenizer)
    process.kill()
    process.communicate(timeout=60)
    before = at_work.written()
    other = at_work.start(*at_work.tokenizer, "--no-append-eod")
    _, err = other.communicate(timeout=60)
    assert other.returncode == 1 and err.count("\n") == 1
    assert not missing(err, "--append-eod", "True", "--overwrite")
    assert at_work.written() == before
    at_work.finished(*at_work.tokenizer, "--no-append-eod", "--overwrite")
    assert sorted(at_work.written()) == FILES and at_work.written() != wanted


def test_tokens_that_are_not_what_was_written_are_refused(at_work: AtWork, wanted: dict[str, bytes]) -> None:
    process = at_work.paused(*at_work.tokenizer)
    process.kill()
    process.communicate(timeout=60)
    with (at_work.out / "c_text_document.bin.partial").open("r+b") as file:
        file.write(b"\xff\xff")  # beyond the vocabulary, too
    other = at_work.start(*at_work.tokenizer)
    _, err = other.communicate(timeout=60)
    assert other.returncode == 1 and not missing(err, "c_text_document.bin", "--overwrite")
    at_work.finished(*at_work.tokenizer, "--overwrite")
    assert at_work.written() == wanted


@pytest.mark.parametrize("is_lost", [True, False])
def test_where_the_trained_tokenizer_is_lost_or_another_overwrite_begins_anew(
    at_work: AtWork, corpus: Path, is_lost: bool
) -> None:
    process = at_work.paused("--vocab-size=290")
    process.kill()
    process.communicate(timeout=60)
    kept = at_work.out / "c_text_document.tokenizer.partial"
    if is_lost:
        kept.unlink()
    else:
        kept.write_text((corpus / "tokenizer.json").read_text())
    state = at_work.out / "c_text_document.state.partial"
    noted = json.loads(state.read_text())
    state.write_text(json.dumps({**noted, "tokenizer_sha256": "0" * 64}))  # as if training had come to another
    other = at_work.start("--vocab-size=290")
    _, err = other.communicate(timeout=60)
    assert other.returncode == 1 and not missing(err, "tokenizer", "--overwrite")
    at_work.finished("--vocab-size=290", "--overwrite")
    assert sorted(at_work.written()) == [*FILES, "tokenizer.json"]


def test_after_a_mistake_behind_what_was_begun_the_same_command_continues(
    at_work: AtWork, corpus: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    good = (corpus / "corpus.jsonl").read_text()
    second.write_text("no JSON\n")
    first.write_text(good)
    at_work.words[:1] = [str(first), str(second)]
    process = at_work.paused(*at_work.tokenizer)
    at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("\n") == 1
    assert "second.jsonl, line 1" in err and "run the same command again" in err
    second.write_text(good)
    assert "continuing" in at_work.finished(*at_work.tokenizer)


STATE = State({"--tokenizer": "t"}, ["a", "b"], "")


@pytest.mark.parametrize(
    ("sources", "behind", "is_refused"),
    [
        (["a", "b"], Position(1, 3), False),
        (["a", "c"], Position(1, 0), False),
        (["a", "c"], Position(1, 1), True),
        (["c", "b"], Position(1, 0), True),
        (["a"], Position(0, 1), True),
    ],
)
def test_input_that_was_not_started_may_have_changed(sources: list[str], behind: Position, is_refused: bool) -> None:
    state = msgspec.structs.replace(STATE, behind=behind)
    with pytest.raises(DataError, match=r"/c.*--overwrite") if is_refused else nullcontext():
        state.refuse_other(state.options, sources, Path("/c"))


@pytest.mark.parametrize("options", [{"--tokenizer": "u"}, {"--vocab-size": "9"}])
def test_what_was_begun_has_to_be_of_the_same_options(options: dict[str, str]) -> None:
    with pytest.raises(DataError, match="--tokenizer was t;"):
        STATE.refuse_other(options, STATE.sources, Path("/c"))


def test_with_a_trained_tokenizer_all_of_the_input_has_to_be_the_same() -> None:
    state = msgspec.structs.replace(STATE, options={"--vocab-size": "9"})
    with pytest.raises(DataError, match="input"):
        state.refuse_other(state.options, ["a", "c"], Path("/c"))
