"""What makes a run impossible, and the line that says so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opsctl.errors import RunFileError
from opsctl.runs.checks import check_run, exit_margin_problem, find_problems, slow_warnings
from opsctl.runs.schema import Reckoning
from tests.unit.runs.run_files import VALID, changed, loaded


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


class TestWhatIsNotHere:
    def test_who_only_looks_at_a_script_is_warned_of_missing_files(self, tmp_path: Path) -> None:
        _, warnings = check_run(loaded(tmp_path), files=False)
        assert warnings[0].startswith(f"[data] data_path: no data at {tmp_path}")

    def test_with_variables_not_set_here_nothing_is_looked_at_and_that_is_said(self, tmp_path: Path) -> None:
        findings = find_problems(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))
        assert findings.problems == ()
        assert findings.warnings[0].startswith("not set here: ${NOWHERE}")
        with pytest.raises(RunFileError, match="NOWHERE"):
            check_run(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))


def reckoning(
    iteration_s: float | None = None, evaluation_s: float | None = None, save_s: float | None = None
) -> Reckoning:
    return Reckoning(seconds_per_iteration=iteration_s, evaluation_seconds=evaluation_s, save_seconds=save_s)


class TestExitMargin:
    def test_what_must_fit_is_an_iteration_an_evaluation_and_a_save(self) -> None:
        assert exit_margin_problem(865, reckoning(105, 720, 40)) is None
        problem = str(exit_margin_problem(864, reckoning(105, 720, 40)))
        assert "an iteration 105 s + an evaluation 720 s + a save 40 s = 865 s" in problem
        assert 'set exit_margin = "14:25" or more' in problem  # 865 s

    def test_a_save_beside_the_training_may_have_to_be_waited_for_before_the_last_one(self) -> None:
        assert exit_margin_problem(905, reckoning(105, 720, 40), async_save=True) is None
        problem = str(exit_margin_problem(904, reckoning(105, 720, 40), async_save=True))
        assert "the save under way 40 s + a save 40 s = 905 s" in problem

    def test_what_the_log_measured_is_called_the_median_that_it_is(self) -> None:
        seen = msgspec.structs.replace(reckoning(10, 20, 40), evaluations=3, saves=10)
        problem = str(exit_margin_problem(60, seen))
        assert "an evaluation 20 s (median of the last 3) + a save 40 s (median of the last 10) = 70 s" in problem

    def test_one_slow_save_is_warned_of_and_forbids_nothing(self) -> None:
        seen = msgspec.structs.replace(reckoning(10, 20, 10), saves=10, longest_save_seconds=77.0)
        assert exit_margin_problem(60, seen) is None
        (warning,) = slow_warnings(60, seen)
        assert warning.startswith("one of the last 10 saves took 77 s")
        assert slow_warnings(120, seen) == []

    def test_what_is_unknown_forbids_nothing(self) -> None:
        assert exit_margin_problem(600, reckoning()) is None
        assert exit_margin_problem(100, reckoning(105)) is not None

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
