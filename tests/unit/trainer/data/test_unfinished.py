"""Preparations that are killed or interrupted, and gone on with: what comes out is what an uninterrupted one writes."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.killed_in_python import killed_at_every_step
from trainer.data import prepare
from trainer.data import tokenizer as bpe
from trainer.data.corpus import Position
from trainer.data.indexed import IndexedWriter
from trainer.data.unfinished import Asked, differences

#: A preparation that pauses after its second save until a file named `go` is there.
PAUSING = """
import sys, time
from pathlib import Path
from trainer.data import prepare, progress, unfinished
from trainer.data.texts import lines

folder, pieces, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
unfinished.SAVE_EVERY_S, progress.QUIET_S = 0.0, 1e9
lines.PIECE_BYTES = unfinished.PIECE_BYTES = pieces
save, saves = unfinished.UnfinishedPair.save, []

def pausing(pair):
    save(pair)
    saves.append(1)
    if len(saves) == 2 and (folder / "pauses").exists():
        (folder / "paused").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)

unfinished.UnfinishedPair.save = pausing
sys.exit(prepare.main(words))
"""
PIECE_BYTES = 3000
FILES = ["c_text_document.bin", "c_text_document.idx", "c_text_document.json"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus.jsonl`, some pieces long, and a `tokenizer.json`."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(3)
    words = ["alpha", "beta", "naïve", "12", "漢字", "\n"]
    texts = [" ".join(draw.choices(words, k=draw.randrange(80))) for _ in range(120)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    bpe.train(texts, 300).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def at_work(corpus: Path, tmp_path: Path) -> Iterator[AtWork]:
    """In `tmp_path`, tidied up after the test."""
    one = AtWork(corpus, tmp_path)
    yield one
    one.tidy_up()


class AtWork:
    """Preparations of the corpus in processes of their own."""

    def __init__(self, corpus: Path, folder: Path):
        self.out, self._folder = folder / "out", folder
        self.words = [str(corpus / "corpus.jsonl"), f"--output-prefix={self.out}/c"]
        self.tokenizer = [f"--tokenizer={corpus}"]
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *words: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PAUSING, str(self._folder), str(PIECE_BYTES), *self.words, *words]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )
        self._all.append(process)
        return process

    def paused(self, *words: str) -> subprocess.Popen[str]:
        """One that has saved twice, and waits."""
        (self._folder / "pauses").touch()
        process = self.start(*words)
        deadline = time.monotonic() + 60
        while not (self._folder / "paused").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.005)
        (self._folder / "pauses").unlink()
        return process

    def go(self) -> None:
        (self._folder / "go").touch()

    def finished(self, *words: str) -> str:
        """What a whole run says on stderr."""
        process = self.start(*words)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return err

    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def tidy_up(self) -> None:
        for process in self._all:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def wanted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a preparation that nothing happened to."""
    one = AtWork(corpus, tmp_path_factory.mktemp("wanted"))
    one.finished(*one.tokenizer)
    assert sorted(one.written()) == FILES
    return one.written()


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that encode for it."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in found]


@pytest.mark.parametrize("workers", ["--workers=1", "--workers=2"])
def test_what_was_killed_is_gone_on_with_to_the_same_bytes(
    at_work: AtWork, wanted: dict[str, bytes], workers: str
) -> None:
    process = at_work.paused(*at_work.tokenizer, workers)
    encoding = children_of(process)
    assert len(encoding) == (2 if workers == "--workers=2" else 0)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{one}").exists() for one in encoding):  # they end with whoever they work for
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (at_work.out / "c_text_document.idx").exists()
    said = at_work.finished(*at_work.tokenizer)
    assert "documents were written before; going on after them\n" in said
    assert at_work.written() == wanted


def test_killed_right_before_any_step_on_the_disk_it_goes_on_to_the_same_bytes(
    corpus: Path, tmp_path: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.texts.lines.PIECE_BYTES", 4 * PIECE_BYTES)
    monkeypatch.setattr("trainer.data.unfinished.SAVE_EVERY_S", 0.0)
    monkeypatch.setattr("trainer.data.progress.QUIET_S", 1e9)
    out = tmp_path / "out"
    words = [str(corpus / "corpus.jsonl"), f"--output-prefix={out}/c", f"--tokenizer={corpus}", "--workers=1"]
    deaths = 0
    for _ in killed_at_every_step(lambda: prepare.main(words)):
        deaths += 1
        code = prepare.main(words)
        # Killed when all was in its place, it has only to say so.
        assert code == 0 or (out / "c_text_document.idx").exists()
        assert {path.name: path.read_bytes() for path in out.iterdir()} == wanted
        shutil.rmtree(out)
    assert deaths > 20


def test_a_worker_that_is_killed_ends_it_with_a_word_and_costs_nothing(
    at_work: AtWork, wanted: dict[str, bytes]
) -> None:
    process = at_work.paused(*at_work.tokenizer, "--workers=2")
    for one in children_of(process):
        os.kill(one, signal.SIGKILL)
    at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("opsctl: a process that encodes was killed by signal 9, for want of memory perhaps; ")
    assert err.endswith(" documents are kept, from which the same command goes on\n") and err.count("\n") == 1
    at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_interrupted_keeps_what_is_whole_and_says_so(
    at_work: AtWork, wanted: dict[str, bytes], number: signal.Signals
) -> None:
    process = at_work.paused(*at_work.tokenizer, "--workers=2")
    os.killpg(process.pid, number)  # as a terminal or Slurm does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    kept = json.loads((at_work.out / "c_text_document.state.partial").read_text())["documents"]
    assert err == f"opsctl: interrupted; {kept:,} documents are kept, from which the same command goes on\n"
    assert kept and not (at_work.out / "c_text_document.idx").exists()
    at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted


def test_on_a_full_disk_what_is_whole_is_kept(at_work: AtWork, wanted: dict[str, bytes]) -> None:
    most = len(wanted["c_text_document.bin"]) // 2

    def no_room() -> None:
        # Stands for a full disk: every write beyond half of the data fails, in any folder and for any user.
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    process = at_work.start(*at_work.tokenizer, limit=no_room)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("\n") == 1
    assert err.startswith("opsctl: File too large while writing ") and "documents are kept" in err
    assert not (at_work.out / "c_text_document.bin").exists()
    at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted


def test_a_second_one_on_the_same_output_is_refused_while_the_first_lives(
    at_work: AtWork, wanted: dict[str, bytes]
) -> None:
    first = at_work.paused(*at_work.tokenizer)
    second = at_work.start(*at_work.tokenizer)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and "somebody else is writing" in err and err.count("\n") == 1
    at_work.go()
    first.communicate(timeout=60)
    assert first.returncode == 0 and at_work.written() == wanted


@pytest.mark.parametrize("moment", ["its tokens are in their place", "all is in its place"])
def test_a_second_one_while_the_first_puts_its_files_in_their_place_takes_none_of_them(
    corpus: Path, tmp_path: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr("trainer.data.texts.lines.PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("trainer.data.progress.QUIET_S", 1e9)
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

    if moment == "all is in its place":
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
    assert "begun with something else: --append-eod was True, not False; --overwrite begins anew" in err
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
    assert other.returncode == 1 and "is not what was written to it; begin anew with --overwrite" in err
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
    assert other.returncode == 1 and "was begun with another tokenizer; --overwrite begins anew" in err
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
        assert "second.jsonl, line 1" in err and err.endswith("kept, from which the same command goes on\n")
        second.write_text(good)
        assert "going on after them" in at_work.finished(*at_work.tokenizer)
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
    assert err.endswith("kept, but not beyond a change of this input: mend it and give --overwrite\n")


@pytest.mark.parametrize("is_trained", [False, True])
def test_in_a_folder_that_is_read_what_is_written_is_no_input(at_work: AtWork, corpus: Path, is_trained: bool) -> None:
    tokenizer = ["--vocab-size=290"] if is_trained else at_work.tokenizer
    at_work.out.mkdir()
    for name in "abc":
        (at_work.out / name).write_text((corpus / "corpus.jsonl").read_text())
    at_work.words[0] = str(at_work.out)
    process = at_work.paused(*tokenizer)
    process.kill()
    process.communicate(timeout=60)
    (at_work.out / ".c_text_document.state.partial.host.1.ab.tmp").write_text("begun")
    at_work.finished(*tokenizer)
    at_work.finished(*tokenizer, "--overwrite")
    assert json.loads((at_work.out / "c_text_document.json").read_text())["documents"] == 3


@pytest.mark.parametrize("how", ["shorter", "longer", "gone"])
def test_what_changes_while_it_is_read_is_refused_by_name(
    at_work: AtWork, corpus: Path, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "changing.jsonl"
    shutil.copy(corpus / "corpus.jsonl", file)
    at_work.words[0] = str(file)
    process = at_work.paused(*at_work.tokenizer, "--workers=1")
    if how == "shorter":
        os.truncate(file, file.stat().st_size - 2 * PIECE_BYTES)
    elif how == "longer":
        file.write_text(file.read_text() + '{"text": "more"}\n')
    else:
        file.unlink()
    at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("\n") == 1 and str(file) in err
    assert {"shorter": "became shorter while", "longer": "changed while", "gone": "cannot read"}[how] in err
    assert not (at_work.out / "c_text_document.idx").exists()


def asked(*sources: tuple[str, str], **options: str) -> Asked:
    return Asked({f"--{name.replace('_', '-')}": value for name, value in options.items()}, list(sources))


@pytest.mark.parametrize(
    ("now", "behind", "said"),
    [
        (asked(("a", "1"), ("b", "2"), tokenizer="t"), Position(1, 3), ""),
        (asked(("a", "1"), ("b", "9"), tokenizer="t"), Position(1, 0), ""),
        (asked(("a", "1"), ("b", "9"), tokenizer="t"), Position(1, 1), "b has changed since"),
        (asked(("a", "9"), ("b", "2"), tokenizer="t"), Position(1, 0), "a has changed since"),
        (asked(("c", "1"), ("b", "2"), tokenizer="t"), Position(1, 0), "the input had a, not c"),
        (asked(("a", "1"), tokenizer="t"), Position(1, 0), "the input was 2 files or folders, not 1"),
        (asked(("a", "1"), ("b", "2"), tokenizer="u"), Position(), "--tokenizer was t, not u"),
        (asked(("a", "1"), ("b", "2"), vocab_size="9"), Position(), "--tokenizer was t, not nothing"),
    ],
)
def test_what_was_begun_has_to_be_of_the_same_input_and_options(now: Asked, behind: Position, said: str) -> None:
    assert differences(asked(("a", "1"), ("b", "2"), tokenizer="t"), now, behind) == said


def test_with_a_trained_tokenizer_all_of_the_input_has_to_be_the_same() -> None:
    was, now = (asked(("a", "1"), ("b", number), vocab_size="9") for number in "12")
    assert differences(was, now, Position()) == "b has changed since"
