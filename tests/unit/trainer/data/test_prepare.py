"""`python -m trainer.data.prepare`: what is written, what is refused, and what is left when it is stopped."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from tests.facts import missing
from trainer.data import prepare
from trainer.data import tokenizer as bpe
from trainer.data.corpus import Placed
from trainer.data.encoding import Encoded
from trainer.data.indexed import IndexedTokens
from trainer.data.unfinished import UnfinishedPair, add_counts

TEXTS = ["def add(a, b):\n    return a + b\n" * 9, "naïve café\n" * 9, "x = [1, 2, 3]\n" * 9]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence progress, on however busy a machine. A test of progress turns it on."""
    monkeypatch.setattr("trainer.data.program.QUIET_S", 1e9)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a preparation in this process."""
    code = prepare.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def prepared(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    code, out, err = run(capsys, "--json", *words)
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    assert document["schema_version"] == 1
    data: dict[str, Any] = document["data"]
    return data


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Return a JSON-lines file with the three texts, one of them empty in between."""
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in [TEXTS[0], "", *TEXTS[1:]]))
    return file


def decoded(prefix: str, tokenizer: Path, eod: int | None = 0) -> list[str]:
    """Return the documents' texts, each checked to end with `eod`."""
    data = IndexedTokens(prefix)
    data.check_every_entry()
    speaker = Tokenizer.from_file(str(tokenizer))
    documents = [data[number].tolist() for number in range(len(data))]
    if eod is not None:
        assert all(document[-1] == eod and eod not in document[:-1] for document in documents)
        documents = [document[:-1] for document in documents]
    return [speaker.decode(document) for document in documents]


def test_json_lines_become_a_pair_a_tokenizer_and_a_note(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = prepared(capsys, lines, "--output-prefix", tmp_path / "out" / "c", "--vocab-size", "280")
    prefix = f"{tmp_path}/out/c_text_document"
    assert noted["data_path"] == prefix
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "c_text_document.bin",
        "c_text_document.idx",
        "c_text_document.json",
        "tokenizer.json",
    ]
    assert decoded(prefix, tmp_path / "out" / "tokenizer.json") == TEXTS
    assert noted["documents"] == 3 and noted["skipped"]["empty"] == 1
    assert noted["vocab_size"] == 280 and noted["dtype"] == "uint16"
    assert noted["text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert noted["bin_sha256"] == hashlib.sha256(Path(f"{prefix}.bin").read_bytes()).hexdigest()
    kept = json.loads(Path(f"{prefix}.json").read_text())
    assert {key: kept[key] for key in ("documents", "tokens", "vocab_size", "entropy_nats", "tokenizer")} == {
        key: noted[key] for key in ("documents", "tokens", "vocab_size", "entropy_nats", "tokenizer")
    }


def test_the_data_of_a_groups_folder_is_the_groups_whatever_the_umask(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o2770)
    before = os.umask(0o077)
    try:
        prepared(capsys, lines, "--output-prefix", tmp_path / "out" / "c", "--vocab-size", "280")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o2070 == 0o2070
    assert {path.name: path.stat().st_mode & 0o060 for path in (tmp_path / "out").iterdir()} == {
        "c_text_document.bin": 0o060,
        "c_text_document.idx": 0o060,
        "c_text_document.json": 0o060,
        "tokenizer.json": 0o060,
    }


def test_the_entropy_is_that_of_the_tokens_written(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    raw = Path(f"{noted['data_path']}.bin").read_bytes()
    counts = Counter(int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2))
    total = sum(counts.values())
    assert noted["tokens"] == total
    entropy = math.fsum(count / total * math.log(total / count) for count in counts.values())
    assert noted["entropy_nats"] == pytest.approx(entropy, rel=1e-12)
    assert noted["ln_vocab_nats"] == pytest.approx(math.log(280), rel=1e-12)


def test_the_report_shows_entropy_beside_the_logarithm_of_the_vocabulary(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    assert code == 0
    assert not missing(out, "3", "1 empty", "280", "5.63 nats", f"{tmp_path}/c_text_document")


def test_documents_that_come_to_no_token_are_refused_as_none(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strips = bpe.train(TEXTS, 280)
    strips.normalizer = normalizers.Strip()
    strips.save(str(tmp_path / "tokenizer.json"))
    lines.write_text('{"text": "  "}\n')
    code, _, err = run(
        capsys, lines, "--tokenizer", tmp_path, "--no-append-eod", "--output-prefix", tmp_path / "out" / "c"
    )
    assert code == 1 and not missing(err, str(lines), "1 documents") and err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())


def test_a_document_that_changes_while_others_are_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(TEXTS[0])
    append = UnfinishedPair.append

    def appended(pair: UnfinishedPair, placed: Placed, piece: Encoded) -> None:
        append(pair, placed, piece)
        (folder / "b").write_text("another")

    monkeypatch.setattr(UnfinishedPair, "append", appended)
    code, _, err = run(capsys, folder, "--vocab-size", "280", "--output-prefix", tmp_path / "out" / "c")
    assert code == 1 and f"{folder}/b" in err and err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("workers", ["1", "3"])
def test_workers_change_no_byte(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.pieces.PIECE_BYTES", 100)
    noted = prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280", "--workers", workers)
    assert decoded(noted["data_path"], tmp_path / "tokenizer.json") == TEXTS


def test_gzipped_lines_a_given_tokenizer_another_key_and_no_end_token(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    zipped = tmp_path / "other.gz"
    zipped.write_bytes(gzip.compress("\n".join(json.dumps({"body": text}) for text in TEXTS).encode()))
    noted = prepared(
        capsys,
        zipped,
        "--json-key",
        "body",
        "--no-append-eod",
        "--tokenizer",
        tmp_path,
        "--output-prefix",
        tmp_path / "d",
    )
    assert noted["data_path"] == f"{tmp_path}/d_body_document" and noted["eod"] is None
    assert noted["tokens"] == first["tokens"] - 3
    assert decoded(noted["data_path"], tmp_path / "tokenizer.json", eod=None) == TEXTS


def test_a_large_vocabulary_is_stored_in_32_bits(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    special = [
        {**spec["added_tokens"][0], "id": number, "content": f"<extra {number}>"} for number in range(280, 65_500)
    ]
    spec["added_tokens"] += special
    (tmp_path / "large.json").write_text(json.dumps(spec))
    noted = prepared(capsys, lines, "--output-prefix", tmp_path / "d", "--tokenizer", tmp_path / "large.json")
    assert noted["vocab_size"] == 65_500 and noted["dtype"] == "int32"
    assert Path(f"{noted['data_path']}.bin").stat().st_size == 4 * noted["tokens"]
    assert decoded(noted["data_path"], tmp_path / "tokenizer.json") == TEXTS


def test_a_folder_is_read_in_the_order_of_its_names_with_patterns_and_hostile_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = os.fsencode(tmp_path / "src")
    names = [b"a.py", b"b/z.py", b"new\nline.py", b"quo\"te's $(id).py", b"-dash.py", b"latin\xe9.py", b"B.py"]
    left_out = [b"tests/t.py", b"b/tests/u.py", b"c.txt", b"deep/site-packages/p.py", b"idlelib/i.py"]
    for name in names + left_out:
        path = os.path.join(root, name)  # noqa: PTH118
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "w") as file:  # noqa: PTH123
            file.write(f"text of {name!r}")
    (tmp_path / "src" / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "src" / "nul.py").write_bytes(b"a\0b")
    (tmp_path / "src" / "empty.py").touch()
    (tmp_path / "src" / "nowhere.py").symlink_to("missing")
    os.mkfifo(tmp_path / "src" / "pipe.py")
    source, prefix = tmp_path / "src", tmp_path / "c"
    words: list[str | Path] = [source, "--output-prefix", prefix, "--vocab-size", "280", "--include", "*.py"]
    noted = prepared(capsys, *words, "--exclude", "tests", "--exclude", "site-packages", "--exclude", "*/idlelib/*")
    assert decoded(noted["data_path"], tmp_path / "tokenizer.json") == [f"text of {name!r}" for name in sorted(names)]
    assert noted["skipped"] == {"empty": 1, "not_text": 2, "unreadable": 0}


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b'{"text": "a"}\n{"text": \n', ["line 2", "JSON"]),
        (b'\n\n["text"]\n', ["line 3", "list", "'text'"]),
        (b'{"body": "a", "id": 1}\n', ["line 1", "'text'", "body, id", "--json-key"]),
        (b'{"text": 5}\n', ["line 1", "'text'", "int"]),
        (b'{"text": null}\n', ["line 1", "'text'", "null"]),
        (b'{"text": "ok"}\n{"text": "\xff"}\n', ["line 2", "UTF-8", "byte 11", "iconv -t utf-8"]),
        (b"[" * 100_000 + b"\n", ["line 1", "JSON"]),
        (b"", ["JSON"]),
        (b'{"text": ""}\n\n', []),
        (gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-12], ["gzip", "line"]),
    ],
)
def test_lines_that_cannot_be_read_are_refused_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, facts: list[str]
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(content)
    code, out, err = run(capsys, file, "--output-prefix", tmp_path / "out" / "c", "--vocab-size", "280")
    assert (code, out) == (1, "")
    assert not missing(err, str(file), *facts) and err.count("\n") == 1
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"text": "a\\ud83d\\ude00b"}\n{"text": "c\\ud800d"}\n')
    noted = prepared(capsys, file, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    assert decoded(noted["data_path"], tmp_path / "tokenizer.json") == ["a😀b", "c\ufffdd"]


def test_wrong_input_and_wrong_options_are_one_line_each(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare").mkdir()
    cases: list[tuple[list[str | Path], list[str], int]] = [
        ([tmp_path / "none"], [f"{tmp_path}/none"], 1),
        ([tmp_path / "bare", "--include", "*.py"], [f"{tmp_path}/bare"], 1),
        ([lines, "--include", "*.py"], ["--include", "--exclude"], 1),
        ([lines, "--vocab-size", "100"], ["--vocab-size 100", "257"], 2),
        ([lines, "--tokenizer", tmp_path / "none"], [f"{tmp_path}/none"], 1),
        ([lines, "--workers", "0"], ["--workers 0", "1"], 2),
        ([lines, "--tokenizer", ".", "--vocab-size", "300"], ["--tokenizer", "--vocab-size"], 2),
    ]
    for words, facts, expected in cases:
        code, out, err = run(capsys, *words, "--output-prefix", tmp_path / "out" / "c")
        assert (code, out) == (expected, ""), words
        assert not missing(err, *facts) and err.count("\n") == 1


def test_what_is_there_is_replaced_only_when_asked(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    code, _, err = run(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "270")
    assert code == 1 and not missing(err, f"{tmp_path}/c_text_document.idx", "--overwrite")
    (tmp_path / "\x1b[2J_text_document.idx").touch()
    code, _, err = run(capsys, lines, "--output-prefix", tmp_path / "\x1b[2J", "--vocab-size", "270")
    assert code == 1 and r"/\x1b[2J_text_document.idx" in err and "\x1b" not in err
    code, _, err = run(capsys, lines, "--output-prefix", tmp_path / "d", "--vocab-size", "270")
    assert code == 1 and not missing(err, f"{tmp_path}/tokenizer.json", "--tokenizer")
    assert (
        prepared(capsys, lines, "--output-prefix", tmp_path / "d", "--vocab-size", "280")["tokens"] == first["tokens"]
    )
    again = prepared(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "270", "--overwrite")
    assert again["vocab_size"] == 270


def started(*words: str | Path, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trainer.data.prepare", *(str(word) for word in words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a corpus whose tokens do not fit where `no_room` lets a process write, and a tokenizer for it."""
    folder = tmp_path_factory.mktemp("large_corpus")
    file = folder / "corpus.jsonl"
    line = json.dumps({"text": "some words of text, again and again; " * 300}) + "\n"
    file.write_text(line * 300)
    bpe.train([line], 280).save(str(folder / "tokenizer.json"))
    return file, folder / "tokenizer.json"


def test_a_full_disk_is_one_line_and_leaves_nothing_half(large_corpus: tuple[Path, Path], tmp_path: Path) -> None:
    def no_room() -> None:
        # Stands for a full disk: every write beyond 40 KB fails, in any folder and for any user.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    words = (
        large_corpus[0],
        "--output-prefix",
        tmp_path / "out" / "c",
        "--tokenizer",
        large_corpus[1],
        "--workers",
        "1",
    )
    process = started(*words, preexec_fn=no_room)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert not missing(err, "File too large", f"{tmp_path}/out/c_text_document") and err.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_text_too_poor_for_the_vocabulary_asked_for_says_so(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "5000")
    assert "5,000" in out


def test_training_a_tokenizer_is_reported_if_it_takes_long(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpe, "QUIET_S", 0.0)
    code, _, err = run(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    assert code == 0 and not missing(err, "tokenizer", "280 tokens")


def test_beside_a_terminal_progress_is_a_line_now_and_then(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.program.QUIET_S", 0.0)
    code, out, err = run(capsys, lines, "--output-prefix", tmp_path / "c", "--vocab-size", "280")
    assert code == 0 and "%" not in out
    assert not missing(err, "100%", "0 s")


def test_a_job_that_carries_it_out_is_told_whenever_more_is_safe(tmp_path: Path, lines: Path) -> None:
    told = tmp_path / "progress.json"
    words = ("data", "prepare", str(lines), "--output-prefix", str(tmp_path / "out"), "--vocab-size", "300")
    subprocess.run(
        [sys.executable, "-m", "opsctl", *words],
        env={**os.environ, PROGRESS_VARIABLE: str(told)},
        check=True,
        timeout=60,
    )
    assert json.loads(told.read_text())["done"] == 2, "the tokenizer that was trained, and the tokens"


def test_a_token_beyond_the_vocabulary_is_not_counted() -> None:
    counts = np.ones(300, np.int64)
    add_counts(np.array([0, 299, 299], "<u2"), counts)
    assert counts[[0, 1, 299]].tolist() == [2, 1, 3]
    with pytest.raises(IndexError):
        add_counts(np.array([300], "<i4"), counts)
