"""Preparations that are killed or interrupted, and continued: what comes out is what an uninterrupted one writes."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.killed_in_python import killed_at_every_step
from tests.unit.trainer.data.unfinished.at_work import PIECE_BYTES, AtWork, children_of
from trainer.data import prepare


@pytest.mark.parametrize("workers", [pytest.param("--workers=1", marks=pytest.mark.nightly), "--workers=2"])
def test_what_was_killed_is_gone_on_with_to_the_same_bytes(
    at_work: AtWork, wanted: dict[str, bytes], workers: str
) -> None:
    process = at_work.paused(*at_work.tokenizer, workers)
    encoding = children_of(process)
    assert len(encoding) == (2 if workers == "--workers=2" else 0)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{one}").exists() for one in encoding):  # they end with the process that they work for
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (at_work.out / "c_text_document.idx").exists()
    kept = json.loads((at_work.out / "c_text_document.state.partial").read_text())["documents"]
    assert kept and f"{kept:,} documents" in at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted


def test_killed_right_before_any_step_on_the_disk_it_goes_on_to_the_same_bytes(
    corpus: Path, in_memory: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.pieces.PIECE_BYTES", 8 * PIECE_BYTES)
    monkeypatch.setattr("trainer.data.unfinished.SAVE_EVERY_S", 0.0)
    monkeypatch.setattr("trainer.data.program.QUIET_S", 1e9)
    out = in_memory / "out"
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


def test_killed_while_it_replaces_a_pair_it_leaves_the_old_one_the_new_one_or_none(
    corpus: Path, in_memory: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.program.QUIET_S", 1e9)
    out = in_memory / "out"
    words = [str(corpus / "corpus.jsonl"), f"--output-prefix={out}/c", f"--tokenizer={corpus}", "--workers=1"]
    assert prepare.main([*words, "--no-append-eod"]) == 0
    old = {path.name: path.read_bytes() for path in out.iterdir()}
    for _ in killed_at_every_step(lambda: prepare.main([*words, "--overwrite"])):
        if (out / "c_text_document.idx").exists():
            pair = {name: (out / name).read_bytes() for name in wanted}
            assert pair in (old, wanted)
        shutil.rmtree(out)
        out.mkdir()
        for name, content in old.items():
            (out / name).write_bytes(content)


def test_a_worker_that_is_killed_ends_it_with_a_word_and_costs_nothing(
    at_work: AtWork, wanted: dict[str, bytes]
) -> None:
    process = at_work.paused(*at_work.tokenizer, "--workers=2")
    for one in children_of(process):
        os.kill(one, signal.SIGKILL)
    at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "killed" in err and re.search(r"\d documents", err) and err.count("\n") == 1
    at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_what_was_interrupted_keeps_what_is_whole_and_says_so(
    at_work: AtWork, wanted: dict[str, bytes], number: signal.Signals
) -> None:
    process = at_work.paused(*at_work.tokenizer, "--workers=2")
    os.killpg(process.pid, number)  # as a terminal or Slurm does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    kept = json.loads((at_work.out / "c_text_document.state.partial").read_text())["documents"]
    assert f"{kept:,} documents" in err and err.count("\n") == 1
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
    assert "File too large" in err and re.search(r"\d documents", err)
    assert not (at_work.out / "c_text_document.bin").exists()
    at_work.finished(*at_work.tokenizer)
    assert at_work.written() == wanted
