"""`opsctl data prepare`, writing included, beside a loop of tokenizers' own `encode_batch` on one core, ids compared.

Text is the Python sources of this interpreter and its packages, as JSON-lines; the tokenizer is trained on a part of
it. Each program runs in a process of its own, the peer with one thread; it encodes the first documents, ours all.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

GOAL = 3.5
VOCABULARY = 8192
TEXT_BYTES, PEER_BYTES, TRAINING_BYTES = 48_000_000, 2_500_000, 1_500_000
ROUNDS = 3

OURS = """
import sys, time
from trainer.data import prepare
started = time.perf_counter()
code = prepare.main(sys.argv[1:])
print(time.perf_counter() - started, file=sys.stderr)
sys.exit(code)
"""
PEER = """
import hashlib, itertools, json, sys, time
import numpy
from tokenizers import Tokenizer
corpus, file, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
started = time.perf_counter()
tokenizer = Tokenizer.from_file(file)
tokenizer.encode_special_tokens = True
read = documents = 0
ids = []
with open(corpus) as lines:
    while read < most:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 64)]
        for one in tokenizer.encode_batch(texts, add_special_tokens=False):
            ids += [*one.ids, 0]
        documents += len(texts)
        read += sum(len(text.encode()) for text in texts)
        if not texts:
            break
took_s = time.perf_counter() - started
tokens = numpy.array(ids, "<u2")
print(json.dumps([read, took_s, documents, len(ids), hashlib.sha256(tokens.tobytes()).hexdigest()]))
"""


def main() -> dict[str, Any]:
    """Measure, print megabytes a second and core and their ratio, and return them. Raises where ids differ."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text_bytes = _write_corpus(folder / "corpus.jsonl")
        _train(folder)
        workers = sorted({1, len(os.sched_getaffinity(0))})
        rounds = []
        for _ in range(ROUNDS):
            peer = _peer(folder)
            rounds.append((peer[0] / peer[1], {count: _ours(folder, count, text_bytes, peer) for count in workers}))
    encode_batch = statistics.median(peer_rate for peer_rate, _ in rounds) / 1e6
    print(f"tokenizers encode_batch: {encode_batch:.2f} MB/s on one core")
    found: dict[str, Any] = {"encode_batch_mb_s": encode_batch, "goal": GOAL, "text_bytes": text_bytes}
    for count in workers:
        engine = rounds[0][1][count][0]
        each = statistics.median(ours[count][1] for _, ours in rounds) / 1e6
        ratio = statistics.median(ours[count][1] / peer_rate for peer_rate, ours in rounds)
        print(f"opsctl data prepare, {count} at work ({engine}): {each:.1f} MB/s a core, {ratio:.1f}x (goal >= {GOAL})")
        found[f"{count} workers"] = {"engine": engine, "mb_s_a_core": each, "ratio": ratio}
    return found


def _write_corpus(target: Path) -> int:
    """Returns the texts' bytes."""
    written = 0
    with target.open("w") as file:
        for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
            for source in sorted(Path(folder).rglob("*.py")):
                try:
                    text = source.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    continue
                if text and written < TEXT_BYTES:
                    written += len(text.encode())
                    file.write(json.dumps({"path": str(source), "text": text}) + "\n")
    return written


def _train(folder: Path) -> None:
    from trainer.data import tokenizer as bpe

    texts, characters = [], 0
    with (folder / "corpus.jsonl").open() as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            characters += len(texts[-1])
            if characters >= TRAINING_BYTES:
                break
    bpe.train(texts, VOCABULARY).save(str(folder / "tokenizer.json"))


def _peer(folder: Path) -> list[Any]:
    words = [str(folder / "corpus.jsonl"), str(folder / "tokenizer.json"), str(PEER_BYTES)]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", PEER, *words]
    ran = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True, env=environment)
    measured: list[Any] = json.loads(ran.stdout)
    return measured


def _ours(folder: Path, workers: int, text_bytes: int, peer: list[Any]) -> tuple[str, float]:
    """(engine, bytes of text a second and core)."""
    words = [f"--output-prefix={folder}/out{workers}", f"--tokenizer={folder}", f"--workers={workers}"]
    flags = ["--overwrite", "--json", str(folder / "corpus.jsonl")]
    command = [sys.executable, "-c", OURS, *words, *flags]
    ran = subprocess.run(command, capture_output=True, timeout=600, check=True)
    noted = json.loads(ran.stdout)["data"]
    _refuse_other_ids(Path(noted["data_path"]), peer)
    return noted["engine"], text_bytes / float(ran.stderr.splitlines()[-1]) / workers


def _refuse_other_ids(prefix: Path, peer: list[Any]) -> None:
    """Raises AssertionError where the first documents are not what the peer made of them."""
    from trainer.data.indexed import IndexedTokens

    _, _, documents, count, digest = peer
    data = IndexedTokens(prefix)
    assert int(data.lengths[:documents].sum(dtype="int64")) == count
    assert hashlib.sha256(data.tokens[:count].tobytes()).hexdigest() == digest, "ids differ"


if __name__ == "__main__":
    main()
