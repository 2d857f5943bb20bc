"""Only the same command on the same input continues an unfinished preparation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.facts import missing
from tests.unit.trainer.data.unfinished.at_work import FILES, AtWork
from trainer.data.corpus import Position
from trainer.data.unfinished import Asked, differences


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
    assert not missing(err, "--append-eod", "True", "False", "--overwrite")
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


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_mistake_in_what_was_begun_is_mended_with_overwrite_and_one_behind_it_without(
    at_work: AtWork, corpus: Path, tmp_path: Path, is_trained: bool
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    good = (corpus / "corpus.jsonl").read_text()
    second.write_text("no JSON\n")
    first.write_text(good)
    at_work.words[:1] = [str(first), str(second)]
    process = at_work.paused(*at_work.tokenizer) if not is_trained else None
    if process is not None:
        at_work.go()
        _, err = process.communicate(timeout=60)
        assert "second.jsonl, line 1" in err and "--overwrite" not in err
        second.write_text(good)
        at_work.finished(*at_work.tokenizer)
        shutil.rmtree(at_work.out)
        first.write_text(good + "no JSON\n")
        process = at_work.start(*at_work.tokenizer)
    else:
        second.write_text(good)
        process = at_work.paused("--vocab-size=290", "--workers=1")
        with second.open("r+b") as file:  # after the tokenizer was trained on it
            file.write(b"no JSON")
        at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("\n") == 1
    assert "--overwrite" in err


def asked(*sources: tuple[str, str], **options: str) -> Asked:
    return Asked({f"--{name.replace('_', '-')}": value for name, value in options.items()}, list(sources))


@pytest.mark.parametrize(
    ("now", "behind", "facts"),
    [
        (asked(("a", "1"), ("b", "2"), tokenizer="t"), Position(1, 3), []),
        (asked(("a", "1"), ("b", "9"), tokenizer="t"), Position(1, 0), []),
        (asked(("a", "1"), ("b", "9"), tokenizer="t"), Position(1, 1), ["b"]),
        (asked(("a", "9"), ("b", "2"), tokenizer="t"), Position(1, 0), ["a"]),
        (asked(("c", "1"), ("b", "2"), tokenizer="t"), Position(1, 0), ["a", "c"]),
        (asked(("a", "1"), tokenizer="t"), Position(1, 0), ["2 files", "1"]),
        (asked(("a", "1"), ("b", "2"), tokenizer="u"), Position(), ["--tokenizer", "t", "u"]),
        (asked(("a", "1"), ("b", "2"), vocab_size="9"), Position(), ["--tokenizer", "t"]),
    ],
)
def test_what_was_begun_has_to_be_of_the_same_input_and_options(now: Asked, behind: Position, facts: list[str]) -> None:
    found = differences(asked(("a", "1"), ("b", "2"), tokenizer="t"), now, behind)
    assert bool(found) == bool(facts) and not missing(found, *facts)


def test_with_a_trained_tokenizer_all_of_the_input_has_to_be_the_same() -> None:
    was, now = (asked(("a", "1"), ("b", number), vocab_size="9") for number in "12")
    assert not missing(differences(was, now, Position()), "b")
