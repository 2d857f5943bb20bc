"""What makes a run impossible, and the line that says so."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from opsctl.errors import RunFileError
from opsctl.runs.checks import check_run, exit_duration_minutes, exit_margin_problem, find_problems
from opsctl.runs.data_files import pair_problem
from tests.unit.runs.run_files import VALID, changed, loaded


def write_pair(prefix: Path, lengths: list[int], code: int = 8, token_bytes: int = 2) -> None:
    """A `.bin/.idx` pair as Megatron lays it out: header, lengths, byte offsets, document entries."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    offsets = [sum(lengths[:index]) * token_bytes for index in range(len(lengths))]
    raw = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    raw += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *offsets)
    raw += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    Path(f"{prefix}.idx").write_bytes(raw)
    Path(f"{prefix}.bin").write_bytes(bytes(sum(lengths) * token_bytes))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    prefix = tmp_path / "data" / "corpus_text_document"
    write_pair(prefix, [1411, 918, 1046])
    return prefix


@pytest.mark.usefixtures("corpus")
class TestDivisibility:
    def problems(self, folder: Path, *changes: tuple[str, str]) -> tuple[str, ...]:
        text = VALID
        for old, new in changes:
            text = changed(old, new, text)
        return find_problems(loaded(folder, text)).problems

    def test_a_sound_run_has_no_problem(self, tmp_path: Path) -> None:
        assert self.problems(tmp_path) == ()

    @pytest.mark.parametrize(
        ("old", "new", "line"),
        [
            (
                "global_batch_size = 32",
                "global_batch_size = 40",
                "[trainer] global_batch_size 40 is not divisible by micro_batch_size 8 x DP 2 = 16; "
                "the nearest that are: 32 and 48",
            ),
            (
                "global_batch_size = 32",
                "rampup_batch_size = [8, 8, 100]\nglobal_batch_size = 32",
                "[trainer] the start of rampup_batch_size, 8 is not divisible by micro_batch_size 8 x DP 2 = 16",
            ),
            (
                "global_batch_size = 32",
                "rampup_batch_size = [16, 8, 100]\nglobal_batch_size = 32",
                "[trainer] the increment of rampup_batch_size, 8 is not divisible by micro_batch_size 8 x DP 2 = 16",
            ),
            (
                "num_attention_heads = 4",
                "num_attention_heads = 1",
                "[trainer] num_attention_heads 1 is not divisible by tensor_model_parallel_size 2",
            ),
            (
                "num_attention_heads = 4",
                "num_attention_heads = 6",
                "[trainer] hidden_size 128 is not divisible by num_attention_heads 6",
            ),
            (
                "num_layers = 4",
                "num_layers = 5",
                "[trainer] num_layers 5 is not divisible by pipeline_model_parallel_size 2; the nearest",
            ),
            (
                "num_layers = 4",
                'num_layers = 5\npp_partition_method = "type:transformer|embedding"',
                "[trainer] num_layers 5 + 2 embeddings is not divisible by pipeline_model_parallel_size 2; "
                "the nearest that are: 4 and 6",
            ),
            ("nodes = 4", "nodes = 3", "3 nodes x 2 GPUs: 6 ranks do not divide by tensor x pipeline = 2 x 2 = 4"),
            ("train_samples = 5_120", "train_iters = 100\nrampup_batch_size = [16, 16, 100]", "needs train_samples"),
            ("save_interval = 40", "", "[checkpoints] save_interval is missing"),
            (
                "train_samples = 5_120",
                "train_samples = 31",
                "[trainer] train_samples 31 make no single step of 32 samples",
            ),
            ("lr = 3e-3", "", "lr is missing"),
        ],
    )
    def test_what_does_not_divide_is_named_with_what_would(self, tmp_path: Path, old: str, new: str, line: str) -> None:
        problems = self.problems(tmp_path, (old, new))
        assert any(line in problem for problem in problems), problems
        assert all("\n" not in problem for problem in problems)

    def test_the_nearest_layers_count_the_embeddings(self, tmp_path: Path) -> None:
        (problem,) = self.problems(
            tmp_path,
            ("num_layers = 4", 'num_layers = 5\npp_partition_method = "type:transformer|embedding"'),
            ("pipeline_model_parallel_size = 2", "pipeline_model_parallel_size = 4"),
        )
        assert problem.endswith("; the nearest that are: 2 and 6")  # 2 + 2 and 6 + 2 divide by 4

    def test_every_problem_is_found_not_just_the_first(self, tmp_path: Path) -> None:
        problems = self.problems(tmp_path, ("num_layers = 4", "num_layers = 5"), ("save_interval = 40", ""))
        assert len(problems) == 2

    def test_check_run_raises_the_first_and_counts_the_rest(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, changed("num_layers = 4", "num_layers = 5", changed("save_interval = 40", "")))
        with pytest.raises(RunFileError, match=r"num_layers 5 .*\(and 1 more: opsctl plan shows all\)"):
            check_run(run)

    def test_other_nodes_are_checked_as_asked(self, tmp_path: Path) -> None:
        run = loaded(tmp_path)
        assert check_run(run, nodes=2)[1]  # warnings only
        with pytest.raises(RunFileError, match="3 nodes x 2 GPUs"):
            check_run(run, nodes=3)
        with pytest.raises(RunFileError, match="DP 4 = 32"):
            check_run(loaded(tmp_path, changed("global_batch_size = 32", "global_batch_size = 48")), nodes=8)


class TestData:
    def test_whole_files_are_fine(self, corpus: Path) -> None:
        assert pair_problem(str(corpus), 128) is None

    def test_missing_files_say_how_to_make_them(self, tmp_path: Path) -> None:
        problems = find_problems(loaded(tmp_path)).problems
        assert problems == (
            f"[data] data_path: no data at {tmp_path}/data/corpus_text_document: neither .bin nor .idx is there; "
            "give the prefix of a pair, or make one with opsctl data prepare",
        )

    def test_who_only_looks_at_a_script_is_warned_of_missing_files(self, tmp_path: Path) -> None:
        _, warnings = check_run(loaded(tmp_path), files=False)
        assert warnings[0].startswith(f"[data] data_path: no data at {tmp_path}")

    def test_half_a_pair_is_told_apart(self, corpus: Path) -> None:
        Path(f"{corpus}.bin").unlink()
        assert "although corpus_text_document.idx is there" in str(pair_problem(str(corpus), 128))

    def test_the_suffix_is_not_part_of_the_prefix(self, corpus: Path) -> None:
        assert "write the prefix without .bin or .idx" in str(pair_problem(f"{corpus}.bin", 128))

    @pytest.mark.parametrize(
        ("damage", "line"),
        [
            (lambda raw: raw[:20], "20 bytes, but the header alone has 34"),
            (lambda raw: raw[:-8], "but 3 sequences and 4 document entries take 102"),
            (lambda raw: b"TNTIDX\x00\x00\x00" + raw[9:], "it starts with"),
            (lambda raw: raw[:17] + b"\x06" + raw[18:], "dtype code 6"),
            (lambda raw: raw[:9] + struct.pack("<Q", 2) + raw[17:], "version 2"),
            (
                lambda raw: raw[:18] + struct.pack("<Q", 2**63) + raw[26:],
                "bytes, but 9,223,372,036,854,775,808 sequences",
            ),
            (lambda _raw: b"", "0 bytes, but the header alone has 34"),
        ],
    )
    def test_a_corrupt_index_is_one_line(self, corpus: Path, damage: object, line: str) -> None:
        index = Path(f"{corpus}.idx")
        index.write_bytes(damage(index.read_bytes()))  # type: ignore[operator]
        problem = str(pair_problem(str(corpus), 128))
        assert line in problem and "\n" not in problem

    def test_tokens_cut_short_are_seen(self, corpus: Path) -> None:
        tokens = Path(f"{corpus}.bin")
        tokens.write_bytes(tokens.read_bytes()[:-2])
        problem = str(pair_problem(str(corpus), 128))
        assert "6,748 bytes, but its index corpus_text_document.idx ends at 6,750" in problem

    def test_a_corpus_smaller_than_one_sample_is_refused(self, tmp_path: Path) -> None:
        write_pair(tmp_path / "tiny", [100, 28])
        assert "holds 128 tokens, less than one sample of seq_length + 1 = 129" in str(
            pair_problem(str(tmp_path / "tiny"), 128)
        )
        assert pair_problem(str(tmp_path / "tiny"), 127) is None

    def test_prefixes_in_a_split_file_are_looked_at(self, tmp_path: Path, corpus: Path) -> None:
        splits = tmp_path / "train.txt"
        splits.write_text(f'"train: 0.5 0:0.95 {corpus}, 0.5 0:0.95 {tmp_path}/absent"\n')
        text = changed("data_path = ", f'train_weighted_split_paths_path = "{splits}"\n#')
        (problem,) = find_problems(loaded(tmp_path, text)).problems
        assert problem.startswith(f"[data] train_weighted_split_paths_path: no data at {tmp_path}/absent:")

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ('split = "a,b"', "[data] --split 'a,b': expected up to three shares"),
            ('split = "1,0,2"', "train data is smaller than one sample: 1 of 3 documents"),
            ('train_weighted_split_paths = "t: 1 0.4:0.49 CORPUS"', "train data is smaller than one sample: 0 of 3"),
            ('train_weighted_split_paths = "t: x 0:1 CORPUS"', "[data] --train-weighted-split-paths: 'x 0:1 "),
            (
                'train_weighted_split_paths = "t: 1 0:1 CORPUS"\nvalid_weighted_split_paths = ["v: 1 1:0 CORPUS"]',
                "[data] --valid-weighted-split-paths: '1 1:0 ",
            ),
        ],
    )
    def test_shares_that_cannot_be_are_found_before_a_job_waits(self, tmp_path: Path, text: str, line: str) -> None:
        corpus = tmp_path / "data" / "corpus_text_document"
        write_pair(corpus, [9, 700, 1046])
        path, split = 'data_path = "data/corpus_text_document"', 'split = "1,0,0"'
        old = split if text.startswith("split") else f"{path}\n{split}"
        changes = changed(old, text.replace("CORPUS", str(corpus)))
        problems = find_problems(loaded(tmp_path, changes)).problems
        assert len(problems) == 1 and line in problems[0]

    def test_data_too_little_to_evaluate_on_is_a_problem_when_the_run_evaluates(self, tmp_path: Path) -> None:
        write_pair(tmp_path / "data" / "corpus_text_document", [1046, 700, 9])
        text = changed('split = "1,0,0"', 'split = "1,1,1"')
        (problem,) = find_problems(loaded(tmp_path, text)).problems
        assert "test data is smaller than one sample: 1 of 3 documents" in problem
        assert find_problems(loaded(tmp_path, text.replace("lr = 3e-3", "lr = 3e-3\neval_iters = 0"))).problems == ()

    def test_a_vocabulary_smaller_than_the_datas_is_a_problem(self, tmp_path: Path, corpus: Path) -> None:
        Path(f"{corpus}.json").write_text('{"vocab_size": 1024, "tokenizer": "/t/tokenizer.json"}')
        assert find_problems(loaded(tmp_path, VALID)).problems == ()
        (problem,) = find_problems(loaded(tmp_path, changed("vocab_size = 1_024", "vocab_size = 1_000"))).problems
        assert "was made with a vocabulary of 1,024 tokens, the vocabulary given has 1,000" in problem

    def test_no_data_at_all_is_a_problem(self, tmp_path: Path) -> None:
        assert "[data] names no training data" in find_problems(loaded(tmp_path, changed("data_path", "#"))).problems[0]

    def test_with_variables_not_set_here_nothing_is_looked_at_and_that_is_said(self, tmp_path: Path) -> None:
        findings = find_problems(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))
        assert findings.problems == ()
        assert findings.warnings[0].startswith("not set here: ${NOWHERE}")
        with pytest.raises(RunFileError, match="NOWHERE"):
            check_run(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))


class TestExitMargin:
    def test_what_must_fit_is_an_iteration_an_evaluation_and_a_save(self) -> None:
        assert exit_margin_problem(865, 105, 720, 40) is None
        problem = str(exit_margin_problem(864, 105, 720, 40))
        assert "an iteration 105 s + an evaluation 720 s + a save 40 s = 865 s" in problem
        assert 'set exit_margin = "14:25" or more' in problem  # 865 s

    def test_what_is_unknown_forbids_nothing(self) -> None:
        assert exit_margin_problem(600, None, None, None) is None
        assert exit_margin_problem(100, 105, None, None) is not None

    @pytest.mark.usefixtures("corpus")
    def test_it_is_a_problem_when_expected_and_a_warning_while_unknown(self, tmp_path: Path) -> None:
        tight = VALID + "\n[expect]\nseconds_per_iteration = 700\n"
        assert "[slurm] exit_margin of 600 s is too short" in find_problems(loaded(tmp_path, tight)).problems[0]
        (warning,) = find_problems(loaded(tmp_path)).warnings
        assert "seconds_per_iteration, evaluation_seconds, save_seconds" in warning

    @pytest.mark.usefixtures("corpus")
    def test_a_run_that_never_evaluates_needs_no_time_for_it(self, tmp_path: Path) -> None:
        text = (
            changed("lr = 3e-3", "lr = 3e-3\neval_iters = 0")
            + "\n[expect]\nseconds_per_iteration = 1\nsave_seconds = 1\n"
        )
        assert find_problems(loaded(tmp_path, text)).warnings == ()

    @pytest.mark.parametrize(
        ("time", "minutes"), [("20:00:00", 1190), ("100:00:00", 5990), ("4-04:00:00", 5990), ("2:00", 1)]
    )
    def test_the_exit_duration_is_the_limit_less_the_margin(self, tmp_path: Path, time: str, minutes: int) -> None:
        margin = 'exit_margin = "0:30"' if time == "2:00" else ""
        run = loaded(tmp_path, changed('time = "20:00:00"', f'time = "{time}"\n{margin}'))
        assert exit_duration_minutes(run.file.slurm) == minutes
