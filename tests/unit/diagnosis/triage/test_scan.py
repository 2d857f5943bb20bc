"""Logs of every kind: without line ends, binary, with holes, larger than the limit, growing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.triage import log_part
from opsctl.diagnosis.triage import scan as scanning
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.diagnosis.triage.scan import scan
from opsctl.run.logs import line_text

ECC = b"[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
ITERATION = b" iteration %8d/  500000 | consumed samples: %d | lm loss: 2.1E+00 |\n"


def found(tmp_path: Path, text: bytes, most_bytes: int | None = None) -> list[tuple[int, bytes]]:
    path = tmp_path / "log"
    path.write_bytes(text)
    fd = os.open(path, os.O_RDONLY)
    try:
        hits = scan(fd, 0, len(text), shipped_rules(), time.monotonic() + 60, most_bytes=most_bytes).hits
    finally:
        os.close(fd)
    return [(hit.begin, hit.line) for hit in hits]


def verdict(tmp_path: Path, text: bytes) -> tuple[str, int | None]:
    path = tmp_path / "log"
    path.write_bytes(text)
    said = decide(read_log(LogPart(path), shipped_rules(), 60), shipped_rules())
    return said.cause, said.rank


@pytest.mark.parametrize("window", [1 << 10, 1 << 12, 1 << 26])
def test_each_line_is_found_once_at_its_place_however_the_file_is_cut_into_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(scanning, "_WINDOW_BYTES", window)
    lines = [ITERATION % (number, number) for number in range(400)]
    for number in range(0, 400, 7):
        lines[number] = b"node%03d: RuntimeError: bad thing %d\n" % (number, number)
    text = b"".join(lines)
    expected = [(text.index(line), line[:-1]) for line in lines if b"RuntimeError" in line]
    assert found(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        ECC,
        ITERATION % (1, 1) + ECC,
        os.urandom(300_000).replace(b"\n", b"") + b"\n" + ECC + b"\n" + bytes(range(256)) * 100,
        b"x" * 3_000_000 + b"\n" + ECC + b"\n" + b"y" * 3_000_000,
        b"\r".join(b" 3%%| %d/100 [00:01<00:02]" % number for number in range(5000)) + b"\r" + ECC + b"\n",
        b"\0" * 500_000 + b"\n" + ECC + b"\n",
    ],
    ids=["no line end", "no last line end", "binary", "endless lines", "progress bars", "NULs"],
)
def test_a_log_that_is_hardly_one_still_tells_its_cause(tmp_path: Path, text: bytes) -> None:
    assert verdict(tmp_path, text) == ("gpu-ecc", 5)


def test_of_a_log_that_is_too_long_the_newest_part_is_read_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"MemoryError\n" + ITERATION % (1, 1) * 10_000 + ECC + b"\n"
    assert [line for _, line in found(tmp_path, text, most_bytes=100_000)] == [ECC]
    (tmp_path / "log").write_bytes(text)
    monkeypatch.setattr(scanning, "MOST_BYTES", 100_000)
    facts = read_log(LogPart(tmp_path / "log"), shipped_rules(), 60)
    assert len(facts.unread) == 1 and f"{len(text)} bytes" in facts.unread[0] and "100000" in facts.unread[0]


def test_an_empty_log_and_one_that_cannot_be_read_are_told_as_such(tmp_path: Path) -> None:
    assert verdict(tmp_path, b"") == ("unknown", None)
    with pytest.raises(OpsctlError, match="none"):
        read_log(LogPart(tmp_path / "none"), shipped_rules(), 60)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OpsctlError, match=r"pipe.*regular file"):
        read_log(LogPart(tmp_path / "pipe"), shipped_rules(), 60)


def test_nothing_is_claimed_of_a_log_that_only_trains(tmp_path: Path) -> None:
    assert verdict(tmp_path, b"".join(ITERATION % (number, number) for number in range(100))) == ("unknown", None)


def test_what_the_training_went_on_after_is_not_what_killed_it(tmp_path: Path) -> None:
    text = b"[rank3]: KeyError: 'optional'\n" + b"".join(ITERATION % (n, n) for n in range(50)) + ECC + b"\n"
    assert verdict(tmp_path, text) == ("gpu-ecc", 5)


def test_the_newest_lines_are_judged_though_time_is_over_before_older_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a clock that advances by a second at each reading, over lines that differ in more than digits."""
    path, seconds = tmp_path / "log", iter(range(1000))
    path.write_bytes(b"".join(b"MemoryError %s\n" % os.urandom(40).hex().encode() for _ in range(100_000)) + ECC)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    fd = os.open(path, os.O_RDONLY)
    try:
        read = scan(fd, 0, path.stat().st_size, shipped_rules(), 12.0)
    finally:
        os.close(fd)
    assert read.hits[-1].line == ECC
    assert not read.is_whole and 0 < read.end - read.begin < 4 << 20


def test_hits_that_time_does_not_allow_to_judge_are_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"MemoryError\n" * 1000 + ECC + b"\n")
    judged = iter(range(5000))
    monkeypatch.setattr(log_part, "_is_over", lambda _ends_at: next(judged) >= 3)
    facts = read_log(LogPart(path), shipped_rules(), 60)
    assert [one.rule.name for one in facts.findings] == ["host-memory", "host-memory", "ecc"]
    assert len(facts.unread) == 1 and " 998 " in facts.unread[0]


def test_every_word_of_the_table_is_found_by_the_one_search_for_all_and_a_text_without_any_is_not(
    tmp_path: Path,
) -> None:
    lines = [b"_" + word + b"_" for word in sorted({word for row in shipped_rules().rows for word in row.words})]
    assert [line for _, line in found(tmp_path, b"a line\n" + b"\n".join(lines) + b"\n")] == lines


_TRIAGE = """
import sys
from pathlib import Path
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
print(decide(read_log(LogPart(Path(sys.argv[1])), shipped_rules(), 30), shipped_rules()).cause)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


_ERRORS = b"[rank{rank}]: RuntimeError: cannot read {text} of shard {number}\n"
_PLACES = b"n{rank}:7:8 [1] NCCL INFO Bootstrap : Using ib0 {text}\n"
_LONG = b"RuntimeError: ConnectionResetError {text} Xid MemoryError checkpoint {text}" + b" and" * 3000 + b"\n"
_ITERATIONS = b"[rank{rank}]: iteration {number}/ 500000 | lm loss: 2.1 | {text}\n"


def write_log(path: Path, line: bytes, size: int) -> None:
    """Write a cause, and below it about `size` bytes of lines that differ from each other in more than digits."""
    letters = bytes.maketrans(b"0123456789", b"abcdefghij")
    with path.open("wb") as file:
        file.write(ECC + b"\n")
        for number in range(size // len(line)):
            text = str(number * 7919).encode().translate(letters) * 3
            rank = str(number % 64).encode()
            one = line.replace(b"{rank}", rank).replace(b"{number}", b"%d" % number)
            file.write(one.replace(b"{text}", text))


@pytest.mark.parametrize("line", [_ERRORS, _LONG], ids=["errors", "long"])
def test_a_search_keeps_no_more_memory_than_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """A search with limits of a thirtieth takes 2 MiB; without one of the limits this log would take 4 to 7 MiB."""
    for name in ("_MOST_HITS", "_MOST_HITS_BYTES", "_MOST_ALIKE", "_MOST_SHAPES_BYTES", "_WINDOW_BYTES"):
        monkeypatch.setattr(scanning, name, getattr(scanning, name) // 32)
    monkeypatch.setattr(line_text, "_BLOCK_BYTES", 16 << 10)
    write_log(tmp_path / "log", line, 3 << 20)
    text = (tmp_path / "log").read_bytes()
    found(tmp_path, text[:1000])  # compiles the search
    tracemalloc.start()
    try:
        assert (0, ECC) in found(tmp_path, text)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 << 20


@pytest.mark.nightly
@pytest.mark.parametrize("line", [_ERRORS, _PLACES, _LONG, _ITERATIONS], ids=["errors", "places", "long", "iterations"])
def test_memory_has_a_limit_however_long_the_log_and_however_many_of_its_lines_mean_something(
    tmp_path: Path, line: bytes
) -> None:
    """The program's own modules take 30 MiB of the limit."""
    write_log(tmp_path / "log", line, 32 << 20)
    words = [sys.executable, "-c", _TRIAGE, str(tmp_path / "log")]
    out = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=120)
    _, kib = out.stdout.decode().split()
    assert int(kib) < 128 << 10


def test_the_first_and_another_kinds_lines_are_found_under_a_flood_of_lines_that_differ(tmp_path: Path) -> None:
    flood = [b"[rank%d]: RuntimeError: bad %s" % (n % 64, os.urandom(9).hex().encode()) for n in range(40_000)]
    text = [b"[rank7]: RuntimeError: first", *flood[:20_000], ECC, *flood[20_000:]]
    lines = [line for _, line in found(tmp_path, b"\n".join(text))]
    assert lines[0] == b"[rank7]: RuntimeError: first" and ECC in lines
    assert len(lines) < 20_000


def test_of_lines_that_differ_in_digits_alone_the_first_is_found_however_many_follow(tmp_path: Path) -> None:
    text = b"iteration\n" + b"".join(b"[rank%d]: RuntimeError: shard %d\n" % (n % 64, n) for n in range(200_000))
    lines = [line for _, line in found(tmp_path, text)]
    assert lines[0] == b"[rank0]: RuntimeError: shard 0" and len(lines) < 20_000
