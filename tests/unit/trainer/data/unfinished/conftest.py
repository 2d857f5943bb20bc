"""A corpus, who prepares it, and what a preparation writes that nothing happened to."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native_libraries import built_library
from tests.unit.trainer.data.unfinished.at_work import FILES, AtWork
from trainer.data import compiled
from trainer.data import tokenizer as bpe


@pytest.fixture(scope="session", autouse=True)
def one_engine() -> None:
    """Build the encoder before any preparation: one that is built meanwhile would be recorded in only some of them."""
    with contextlib.suppress(pytest.skip.Exception):  # without a compiler no process has it
        built_library("data")
    compiled.library.cache_clear()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `corpus.jsonl`, some pieces long, and a `tokenizer.json`."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(3)
    words = ["alpha", "beta", "naïve", "12", "漢字", "\n"]
    texts = [" ".join(draw.choices(words, k=draw.randrange(80))) for _ in range(120)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    bpe.train(texts, 300).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with cheap fsync, if this machine has one. A kill has the same effect there."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def at_work(corpus: Path, tmp_path: Path) -> Iterator[AtWork]:
    """In `tmp_path`, tidied up after the test."""
    one = AtWork(corpus, tmp_path)
    yield one
    one.tidy_up()


@pytest.fixture(scope="session")
def wanted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of an undisturbed preparation."""
    one = AtWork(corpus, tmp_path_factory.mktemp("wanted"))
    one.finished(*one.tokenizer)
    assert sorted(one.written()) == FILES
    return one.written()
