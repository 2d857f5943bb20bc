"""Problems that make a run impossible, each in one line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.checks import check_run, exit_margin_problem, find_problems, slow_warnings
from opsctl.run.config.schema import Reckoning
from tests.facts import missing
from tests.unit.run.config.run_files import VALID, changed, loaded


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
        ("old", "new", "facts"),
        [
            (
                "global_batch_size = 32",
                "global_batch_size = 40",
                ("[trainer] global_batch_size 40", "micro_batch_size 8", "DP 2", "16"),
            ),
            (
                "global_batch_size = 32",
                "rampup_batch_size = [8, 8, 100]\nglobal_batch_size = 32",
                ("[trainer]", "start", "rampup_batch_size", "8", "16"),
            ),
            (
                "global_batch_size = 32",
                "rampup_batch_size = [16, 8, 100]\nglobal_batch_size = 32",
                ("[trainer]", "increment", "rampup_batch_size", "8", "16"),
            ),
            (
                "num_attention_heads = 4",
                "num_attention_heads = 1",
                ("[trainer] num_attention_heads 1", "tensor_model_parallel_size 2"),
            ),
            (
                "num_attention_heads = 4",
                "num_attention_heads = 6",
                ("[trainer] hidden_size 128", "num_attention_heads 6"),
            ),
            (
                "num_layers = 4",
                "num_layers = 5",
                ("[trainer] num_layers 5", "pipeline_model_parallel_size 2"),
            ),
            (
                "num_layers = 4",
                'num_layers = 5\npp_partition_method = "type:transformer|embedding"',
                ("[trainer] num_layers 5 + 2", "pipeline_model_parallel_size 2"),
            ),
            ("nodes = 4", "nodes = 3", ("3 nodes x 2 GPUs", "6 ranks", "2 x 2 = 4")),
            (
                "train_samples = 5_120",
                "train_iters = 100\nrampup_batch_size = [16, 16, 100]",
                ("rampup_batch_size", "train_samples"),
            ),
            ("save_interval = 40", "", ("[checkpoints] save_interval",)),
            ("train_samples = 5_120", "train_samples = 31", ("[trainer] train_samples 31", "32 samples")),
            ("lr = 3e-3", "", ("lr is missing",)),
        ],
    )
    def test_numbers_that_do_not_divide_are_named(
        self, tmp_path: Path, old: str, new: str, facts: tuple[str, ...]
    ) -> None:
        problems = self.problems(tmp_path, (old, new))
        assert any(missing(problem, *facts) == [] for problem in problems), problems
        assert all("\n" not in problem for problem in problems)

    def test_every_problem_is_found_not_just_the_first(self, tmp_path: Path) -> None:
        problems = self.problems(tmp_path, ("num_layers = 4", "num_layers = 5"), ("save_interval = 40", ""))
        assert len(problems) == 2

    def test_check_run_raises_the_first_and_counts_the_rest(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, changed("num_layers = 4", "num_layers = 5", changed("save_interval = 40", "")))
        with pytest.raises(RunFileError, match=r"num_layers 5 .*1 more.*opsctl plan"):
            check_run(run)

    def test_other_nodes_are_checked_as_asked(self, tmp_path: Path) -> None:
        run = loaded(tmp_path)
        assert check_run(run, nodes=2)[1]  # warnings only
        with pytest.raises(RunFileError, match="3 nodes x 2 GPUs"):
            check_run(run, nodes=3)
        with pytest.raises(RunFileError, match="DP 4 = 32"):
            check_run(loaded(tmp_path, changed("global_batch_size = 32", "global_batch_size = 48")), nodes=8)


class TestWhatIsNotHere:
    def test_missing_files_are_a_warning_if_files_are_not_checked(self, tmp_path: Path) -> None:
        _, warnings = check_run(loaded(tmp_path), files=False)
        assert missing(warnings[0], "[data] data_path", tmp_path) == []

    def test_an_unset_variable_is_a_warning_in_a_plan_and_an_error_for_a_job(self, tmp_path: Path) -> None:
        findings = find_problems(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))
        assert findings.problems == ()
        assert "${NOWHERE}" in findings.warnings[0]
        with pytest.raises(RunFileError, match="NOWHERE"):
            check_run(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))


def reckoning(
    iteration_s: float | None = None, evaluation_s: float | None = None, save_s: float | None = None
) -> Reckoning:
    return Reckoning(seconds_per_iteration=iteration_s, evaluation_seconds=evaluation_s, save_seconds=save_s)


class TestExitMargin:
    def test_an_iteration_an_evaluation_and_a_save_must_fit(self) -> None:
        assert exit_margin_problem(865, reckoning(105, 720, 40)) is None
        problem = str(exit_margin_problem(864, reckoning(105, 720, 40)))
        assert missing(problem, "105 s", "720 s", "40 s", "= 865 s", 'exit_margin = "14:25"') == []

    def test_an_asynchronous_save_may_delay_the_last_one(self) -> None:
        assert exit_margin_problem(905, reckoning(105, 720, 40), async_save=True) is None
        problem = str(exit_margin_problem(904, reckoning(105, 720, 40), async_save=True))
        assert problem.count("40 s") == 2 and "= 905 s" in problem

    def test_measured_times_are_named_as_medians(self) -> None:
        seen = msgspec.structs.replace(reckoning(10, 20, 40), evaluations=3, saves=10)
        problem = str(exit_margin_problem(60, seen))
        assert missing(problem, "20 s (median", "last 3)", "40 s (median", "last 10)", "= 70 s") == []

    def test_one_slow_save_is_a_warning_only(self) -> None:
        seen = msgspec.structs.replace(reckoning(10, 20, 10), saves=10, longest_save_seconds=77.0)
        assert exit_margin_problem(60, seen) is None
        (warning,) = slow_warnings(60, seen)
        assert missing(warning, "10 saves", "77 s") == []
        assert slow_warnings(120, seen) == []

    def test_what_is_unknown_forbids_nothing(self) -> None:
        assert exit_margin_problem(600, reckoning()) is None
        assert exit_margin_problem(100, reckoning(105)) is not None

    @pytest.mark.usefixtures("corpus")
    def test_it_is_a_problem_when_expected_and_a_warning_while_unknown(self, tmp_path: Path) -> None:
        tight = VALID + "\n[expect]\nseconds_per_iteration = 700\n"
        assert missing(find_problems(loaded(tmp_path, tight)).problems[0], "[slurm] exit_margin", "600 s") == []
        (warning,) = find_problems(loaded(tmp_path)).warnings
        assert "seconds_per_iteration, evaluation_seconds, save_seconds" in warning

    @pytest.mark.usefixtures("corpus")
    def test_a_run_that_never_evaluates_needs_no_time_for_it(self, tmp_path: Path) -> None:
        text = (
            changed("lr = 3e-3", "lr = 3e-3\neval_iters = 0")
            + "\n[expect]\nseconds_per_iteration = 1\nsave_seconds = 1\n"
        )
        assert find_problems(loaded(tmp_path, text)).warnings == ()
