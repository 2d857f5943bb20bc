"""Inspection of data sets and samples, compared with files read by hand."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.facts import missing
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl
from tests.unit.trainer.data.conftest import MakePair
from trainer.data.build import build_datasets
from trainer.data.index import main as build_ahead
from trainer.data.inspection import main as program
from trainer.data.prepare import main as prepare
from trainer.recipe.options import parse

#: 3 batches of 4 samples, which are the 12 of the ramp, and then 49 of 8.
OPTIONS = (
    *("--num-layers=2", "--hidden-size=32", "--num-attention-heads=4", "--seq-length=8", "--micro-batch-size=1"),
    *("--global-batch-size=8", "--rampup-batch-size", "4", "4", "12", "--train-samples=404", "--lr=1e-3"),
    *("--vocab-size=3000", "--eval-iters=0", "--split=8,2,0", "--train-range-to-skip", "5", "6", "2", "2"),
)
BATCHES = [4, 4, 4, *[8] * 49]


def documents_of(prefix: str) -> list[list[int]]:
    """Return the documents of a uint16 pair, by the format alone."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    (count,) = struct.unpack_from("<Q", index, 18)
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    starts = struct.unpack_from(f"<{count}q", index, 34 + 4 * count)
    return [list(struct.unpack_from(f"<{length}H", data, start)) for length, start in zip(lengths, starts, strict=True)]


@pytest.fixture
def blend(make_pair: MakePair) -> list[str]:
    """Return a blend of 7 to 3, the second one small enough to be gone through often."""
    return [
        *("0.7", make_pair("large", lengths=[(3 * number) % 40 for number in range(90)])),
        *("0.3", make_pair("small", lengths=[25 + number for number in range(10)])),
    ]


def inspected(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert program(["--json", *words]) == 0, capsys.readouterr().err
    return printed("data inspect", capsys.readouterr().out)


def batch_of(iteration: int) -> tuple[int, int]:
    return sum(BATCHES[: iteration - 1]), sum(BATCHES[:iteration])


class TestSets:
    def test_counts_and_lengths_are_those_of_the_files(
        self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lengths = [0, 7, 7, 8, 9, 10, 11, 12, 13, 1000]
        prefix = make_pair("data.set", [[5] * length for length in lengths], dtype="<i4")
        (one,) = inspected(capsys, "--", prefix)
        assert (one["documents"], one["sequences"], one["tokens"], one["empty"]) == (10, 10, 1077, 1)
        assert (one["dtype"], one["bin_bytes"], one["notes"]) == ("int32", 4308, None)
        # In order the 1st, 5th, 9th and 10th of ten are a tenth, half, nine tenths and all.
        assert one["lengths"] == {
            **{"shortest": 0, "p10": 0, "median": 9, "p90": 13, "p99": 1000, "longest": 1000, "mean": 107.7}
        }

    def test_one_without_documents_has_no_lengths(
        self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (one,) = inspected(capsys, "--", make_pair("empty", []))
        assert (one["documents"], one["tokens"], one["lengths"]) == (0, 0, None)
        assert program([one["data"]]) == 0
        assert "0" in capsys.readouterr().out.split()

    def test_the_notes_name_the_tokenizer(self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]) -> None:
        prefix = make_pair("data", [[1, 2]])
        noted = {"vocab_size": 300, "eod": 0, "tokenizer": "/t/tokenizer.json", "tokenizer_sha256": "ab"}
        Path(f"{prefix}.json").write_text(json.dumps(noted))
        (one,) = inspected(capsys, "--", prefix)
        assert one["notes"] == noted
        assert program([prefix]) == 0
        said = capsys.readouterr().out
        assert not missing(said, "/t/tokenizer.json", "300")

    def test_a_damaged_one_is_refused(self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]) -> None:
        prefix = make_pair("data", [[1, 2], [3]])
        index = bytearray(Path(f"{prefix}.idx").read_bytes())
        struct.pack_into("<i", index, 34, 1)  # the first of two lengths
        Path(f"{prefix}.idx").write_bytes(bytes(index))
        assert program([prefix]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert not missing(line, "data.idx", "sequence 1", "4", "2")

    def test_a_name_that_would_steer_a_terminal_is_written_out(
        self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prefix = make_pair("a\x1b[2J\n\u202eb", [[1, 2]])
        assert program([prefix]) == 0
        assert capsys.readouterr().out.startswith(prefix.replace("\x1b", r"\x1b").replace("\n", r"\n")[:-2])


class TestSamples:
    def test_each_is_the_documents_it_names_end_to_end_and_read_by_the_iteration_it_names(
        self, blend: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        documents = {prefix: documents_of(prefix) for prefix in blend[1::2]}
        found = inspected(capsys, "--iterations=1:52", "--", *OPTIONS, "--data-path", *blend)
        samples = found["samples"]
        assert [one["sample"] for one in samples] == list(range(404))
        assert found["tokenizer"] is None and found["is_checkpoints_order"] is None
        for iteration in range(1, len(BATCHES) + 1):
            for one in samples[slice(*batch_of(iteration))]:
                assert (one["iteration"], one["skipped"]) == (iteration, iteration in (2, 5, 6))
        for one in samples:
            read = [
                documents[one["data"]][piece["document"]][piece["start"] : piece["stop"]] for piece in one["pieces"]
            ]
            assert one["tokens"] == [token for tokens in read for token in tokens] and len(one["tokens"]) == 9

    def test_they_are_what_the_training_reads(self, blend: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        found = inspected(capsys, "--iterations=4:5", "--", *OPTIONS, "--data-path", *blend)
        options = parse([*OPTIONS, "--data-path", *blend], 1, consumed_samples=None)
        train = build_datasets(options, 404, 0, 0).train
        assert train is not None and (found["first_sample"], found["end_sample"]) == (12, 28)
        assert [one["tokens"] for one in found["samples"]] == [train[place].tolist() for place in range(12, 28)]

    def test_nothing_is_written_and_an_order_that_was_built_ahead_is_taken(
        self, blend: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = (*OPTIONS, "--data-path", *blend)
        before = sorted(tmp_path.rglob("*"))
        built = inspected(capsys, "--iterations=3", "--", *words)
        assert sorted(tmp_path.rglob("*")) == before
        assert build_ahead(["--world-size=1", "--", *words]) == 0
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("trainer.data.build.build_order", None)
            assert inspected(capsys, "--iterations=3", "--", *words) == built

    def test_text_comes_by_the_tokenizer_that_is_noted_until_that_is_another(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = "zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich\x1b[2J "
        (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text * 9}) for _ in range(9)))
        where = f"--output-prefix={tmp_path}/data"
        assert prepare([str(tmp_path / "text.jsonl"), where, "--vocab-size=300", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["data"]
        words = ("--iterations=1:6", "--", *OPTIONS, "--data-path", data["data_path"])
        found = inspected(capsys, *words)
        assert found["tokenizer"] == data["tokenizer"]
        for one in found["samples"]:
            inner = one["text"].strip("\ufffd").removesuffix("<|endoftext|>").removeprefix("<|endoftext|>")
            assert inner in text * 9 or "<|endoftext|>" in inner
        assert program([*words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 * len(found["samples"]) and all(line.isprintable() for line in lines)
        Path(data["tokenizer"]).write_text(Path(data["tokenizer"]).read_text().replace('"!"', '"\u2603"'))
        assert program(["--json", *words]) == 0
        out, err = capsys.readouterr()
        assert {one["text"] for one in printed("data inspect", out)["samples"]} == {None}
        assert err.startswith("warning: ") and data["tokenizer"] in err

    @pytest.mark.parametrize(
        ("asked", "facts"),
        [
            ("--iterations=-1:5", ["A:B"]),
            ("--iterations=1:2:3", ["A:B"]),
            ("--iterations=\u0661:\u0662", ["A:B"]),
            ("--iterations=0:3", ["A:B", "1 <= A <= B"]),
            ("--iterations=4:3", ["A:B", "1 <= A <= B"]),
            ("--iterations=1:53", ["52 iterations"]),
        ],
    )
    def test_a_range_that_is_none_is_refused_with_its_values(
        self, blend: list[str], capsys: pytest.CaptureFixture[str], asked: str, facts: list[str]
    ) -> None:
        assert program([asked, "--", *OPTIONS, "--data-path", *blend]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert not missing(line, asked.replace("=", " "), *facts)

    def test_a_set_smaller_than_a_sample_is_refused_as_by_the_training(
        self, make_pair: MakePair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert program(["--iterations=1", "--", *OPTIONS, "--data-path", make_pair("data", lengths=[8])]) == 2
        assert not missing(capsys.readouterr().err, "train", "8 tokens", "9")

    def test_more_than_one_json_text_should_hold_is_refused(
        self, blend: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainer.data.inspection.MOST_JSON_TOKENS", 80)
        words = ("--", *OPTIONS, "--data-path", *blend)
        assert len(inspected(capsys, "--iterations=1:2", *words)["samples"]) == 8
        assert program(["--json", "--iterations=1:3", *words]) == 2
        assert not missing(capsys.readouterr().err, "12 samples", "108 tokens", "80")


class TestTheCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        write_run(tmp_path)  # 4,000 samples of 16 tokens, 8 a batch
        return go_into(tmp_path, monkeypatch)

    def test_a_run_is_looked_into_without_torch(self, folder: Path) -> None:
        (folder / "torch.py").write_text("raise SystemExit('torch')")
        ran = subprocess.run(
            [sys.executable, "-m", "opsctl", "data", "inspect", "--iterations", "500:500", "--json"],
            capture_output=True, text=True, timeout=60, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": "."},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        found = printed("data inspect", ran.stdout)
        assert (found["first_sample"], found["end_sample"], found["samples"][7]["iteration"]) == (3992, 4000, 500)

    def test_without_a_prefix_it_is_the_runs_own_data(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert opsctl("data", "inspect", "--json") == 0
        assert [one["data"] for one in printed("data inspect", capfd.readouterr().out)] == [str(folder / "data")]

    @pytest.mark.parametrize("words", [["--iterations", "1:2", "data"], ["--run", ".", "data"]])
    def test_wrong_usage_is_refused_before_anything_starts(
        self, folder: Path, capfd: pytest.CaptureFixture[str], words: list[str]
    ) -> None:
        assert opsctl("data", "inspect", *words) == 2
        assert "PREFIX" in capfd.readouterr().err
