"""`opsctl plan`, called as people call it, against the numbers that the original trainings printed."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.cli.json_schema import shapes
from opsctl.cli.plan import command
from opsctl.core.errors import OpsctlError
from opsctl.core.shipped import templates_folder
from opsctl.run.planning.plan import NumbersPlan, RunPlan
from tests.printed_json import printed
from tests.unit.run.config.run_files import VALID, changed

LOG_LINE = (
    "[default7]: iteration {0:8d}/     160 | consumed samples: {0:12d} | consumed tokens: {0:12d} | elapsed time per "
    "iteration (s): 700.25 | learning rate: 1.944E-05 | global batch size:    32 | lm loss: 5.396257E+00 | grad norm: "
    "0.765 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 1.051 | "
    "TFLOPs: 8.04 |\n"
)


def example(name: str) -> Path:
    return templates_folder() / "examples" / f"{name}.toml"


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"six_ALL_CCFRWORK": None, "OPSCTL_RUN": None})


def plan_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = printed("plan", plan("--json", *arguments).stdout)
    return found


@functools.cache
def shipped(name: str) -> dict[str, Any]:
    return plan_json(str(example(name)))


def keys_with_a_value(value: object) -> set[str]:
    """`Struct.key` of every key in `value` and in what it holds that is there and not null."""
    if isinstance(value, list):
        return set().union(*map(keys_with_a_value, value))
    if not isinstance(value, msgspec.Struct):
        return set()
    found = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    own = {f"{type(value).__name__}.{key}" for key, held in found.items() if held is not None}
    return own.union(*map(keys_with_a_value, found.values()))


class TestFromTheShippedRuns:
    def test_tr1_13B(self) -> None:
        answer = shipped("tr1-13B")
        assert answer["problems"] == []
        assert answer["model"]["billion_rounded"] == 13
        assert answer["layout"]["world_size"] == 128 and answer["layout"]["data"] == 16
        ramp = answer["batch"]["rampup"]
        assert (ramp["intervals"], ramp["samples_per_interval"]) == (63, 79365)
        assert [stage["batch_size"] for stage in ramp["stages"][:4]] == [16, 32, 48, 64]
        assert [stage["nominal_steps"] for stage in ramp["stages"][:4]] == [4960, 2480, 1653, 1240]
        assert [stage["actual_steps"] for stage in ramp["stages"][:4]] == [4961, 2480, 1654, 1240]
        assert answer["schedule"]["train_iterations"] == 311541
        assert answer["schedule"]["train_tokens"] == 614_400_000_000
        assert answer["schedule"]["decay_samples"] == 126_953_125
        assert answer["schedule"]["decay_tokens"] == 260_000_000_000
        assert answer["job"]["exit_duration_minutes"] == 1190

    def test_tr11_176B(self) -> None:
        answer = shipped("tr11-176B-ml")
        assert answer["problems"] == []
        model = answer["model"]
        assert model["billion_rounded"] == 176
        assert model["params"] == 176_247_271_424
        assert model["formula_params"] != model["params"]
        assert (model["hidden_per_layer"], model["hidden_per_head"]) == (204, 128)
        assert (model["embedding_params"], model["layer_params"]) == (3_596_615_680, 2_466_437_120)
        assert answer["init_std"]["sqrt_1_over_3h"] == pytest.approx(0.00482197968631537)
        assert answer["layout"]["pipeline_partition"] == {
            "method": "type:transformer|embedding",
            "blocks_per_stage": [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5],
        }
        assert answer["schedule"]["train_iterations"] == 115311  # as its own log counts them
        assert answer["job"]["exit_duration_minutes"] == 5990
        assert answer["throughput"]["hardware_tflops"] == pytest.approx(149.02 * 105.22 / 105, rel=1e-3)
        assert answer["throughput"]["model_tflops"] == pytest.approx(112.32 * 105.22 / 105, rel=1e-3)

    def test_tr11d_760M_which_is_published_as_bloom_1b1(self) -> None:
        answer = shipped("tr11d-760M-ml")
        assert answer["problems"] == []
        assert answer["model"]["params"] == 1_065_314_304  # as the published model's card counts them
        assert answer["layout"]["pipeline_partition"]["blocks_per_stage"] == [12, 12]
        assert answer["layout"]["data"] == 16

    def test_llama_1B(self) -> None:
        answer = shipped("llama-1B")
        assert [one.partition(":")[0] for one in answer["problems"]] == ["[data] data_path"]
        # Queries and output 2048 x 2048, keys and values 256 x 2048; three matrices of 5632 x 2048; two norms.
        block = 2 * 2048**2 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048
        assert answer["model"]["layer_params"] == block
        assert answer["model"]["params"] == 22 * block + 2 * 32_000 * 2048 + 2048 == 1_100_048_384
        assert (answer["model"]["key_value_heads"], answer["model"]["output_params"]) == (4, 32_000 * 2048)
        assert answer["schedule"]["train_tokens"] == 300_000_000_000
        screen = " ".join(plan(str(example("llama-1B"))).stdout.split())
        for fact in ("22 layers", "hidden size 2,048", "32 heads", "swiglu", "5,632", "rotary", "65,536,000"):
            assert fact in screen

    @pytest.mark.parametrize(
        ("name", "parameters", "facts"),
        [
            # As transformers counts those of the published models.
            ("qwen3-0.6B", 596_049_920, ("16 heads of 128", "8 of keys and values")),
            ("mistral-7B", 7_241_732_096, ("32 heads", "window of 4,096")),
            ("llama-3.1-8B", 8_030_261_248, ("rotary positions", "llama3 by 8 from 8192")),
        ],
    )
    def test_models_of_todays_kinds(self, name: str, parameters: int, facts: tuple[str, ...]) -> None:
        answer = shipped(name)
        assert [one.partition(":")[0] for one in answer["problems"]] == ["[data] data_path"]
        assert answer["model"]["params"] == parameters
        screen = " ".join(plan(str(example(name))).stdout.split())
        for fact in facts:
            assert fact in screen

    def test_tr11_as_first_planned_ramps_from_16(self, tmp_path: Path) -> None:
        text = example("tr11-176B-ml").read_text().replace("[192, 16, 9_765_625]", "[16, 16, 9_765_625]")
        (tmp_path / "run.toml").write_text(text)
        answer = plan_json(str(tmp_path))
        ramp = answer["batch"]["rampup"]
        assert (ramp["intervals"], ramp["samples_per_interval"]) == (127, 76894)
        assert [stage["nominal_steps"] for stage in ramp["stages"][:2]] == [4805, 2402]
        assert [stage["actual_steps"] for stage in ramp["stages"][:2]] == [4806, 2403]
        (at_384,) = [stage for stage in ramp["stages"] if stage["batch_size"] == 384]
        assert at_384["nominal_steps_through"] == 18146
        assert at_384["actual_steps_through"] == 18148
        assert at_384["actual_steps_through"] - at_384["actual_steps"] == 17948
        assert answer["schedule"]["train_iterations"] == 128728

    def test_process_groups_of_16_ranks(self, tmp_path: Path) -> None:
        text = changed(
            "nodes = 4", "nodes = 8", changed("pipeline_model_parallel_size = 2", "pipeline_model_parallel_size = 4")
        )
        (tmp_path / "run.toml").write_text(text)
        groups = plan_json(str(tmp_path))["process_groups"]
        assert groups["tensor_groups"][:3] == [[0, 1], [2, 3], [4, 5]]
        assert groups["pipeline_groups"] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
        assert groups["data_groups"][:3] == [[0, 2], [1, 3], [4, 6]]
        assert groups["model_parallel_groups"] == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]

    def test_what_the_log_has_measured_wins_over_what_was_expected(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(VALID + "\n[expect]\nseconds_per_iteration = 7\n")
        assert plan_json(str(tmp_path))["throughput"]["seconds_per_iteration"] == 7
        log = tmp_path / "output" / "logs" / "main_log.txt"
        log.parent.mkdir(parents=True)
        log.write_text("".join(LOG_LINE.format(iteration) for iteration in range(1, 8)))
        answer = plan_json(str(tmp_path))
        assert answer["throughput"]["seconds_per_iteration"] == answer["job"]["iteration_s"] == 700.25
        assert any(re.search(r"exit_margin\b.*\b600 s\b.*\b700 s", line) for line in answer["problems"])

    def test_other_nodes_make_other_replicas(self) -> None:
        assert plan_json(str(example("tr11-176B-ml")), "--nodes", "24")["layout"]["data"] == 4


class TestFromNumbers:
    @pytest.mark.parametrize(
        ("arguments", "days"),
        [
            ("--params 13e9 --tokens 300e9 --gpus 256 --tflops 45", 31.35),
            ("--params 167e9 --tokens 450e9 --gpus 384 --tflops 150", 120.8),
            ("--params 167B --tokens 450_000_000_000 --gpus 384 --tflops 150", 120.8),
        ],
    )
    def test_days(self, arguments: str, days: float) -> None:
        answer = plan_json(*arguments.split())
        assert answer["time"]["training_days"] == pytest.approx(days, abs=0.01)
        assert answer["time"]["gpu_hours"] == answer["time"]["training_days"] * 24 * answer["inputs"]["gpus"]

    @pytest.mark.parametrize("more", [(), ("--sequence-length", "2048")])
    def test_days_left(self, more: tuple[str, ...]) -> None:
        arguments = (
            "--consumed-tokens 192755367936 --goal-tokens 341e9 --seconds-per-iteration 105 --global-batch-size 2048"
        )
        answer = plan_json(*arguments.split(), *more)
        assert answer["days_left"]["days"] == pytest.approx(42.9531114154392, rel=1e-12)

    def test_checkpoints_and_memory(self) -> None:
        checkpoint = plan_json("--params", "176e9")["checkpoint"]
        assert checkpoint["weights_gib"] == pytest.approx(327.82, abs=0.01)
        assert checkpoint["full_gib"] == pytest.approx(2294.77, abs=0.01)
        memory = plan_json("--params", "13e9")["memory"]
        assert memory == {"bytes_per_param": 18, "replica_gb": 234}

    def test_sizes(self) -> None:
        shape = "--num-layers 70 --hidden-size 14336 --sequence-length 2048 --num-attention-heads 112"
        answer = plan_json(*shape.split(), "--vocab-size", "250680")
        assert answer["parts"]["block_bf16_gib"] == pytest.approx(4.59, abs=0.01)
        assert answer["parts"]["rest_bf16_gib"] == pytest.approx(6.75, abs=0.01)
        assert answer["parts"]["total_bf16_gib"] == pytest.approx(328.34, abs=0.01)
        answer = plan_json(*shape.split(), "--vocab-size", "250000")
        assert answer["model"]["billion_rounded"] == 176
        assert (answer["model"]["hidden_per_layer"], answer["model"]["hidden_per_head"]) == (204, 128)

    @pytest.mark.parametrize(
        ("batch", "seconds", "printed"), [(2048, 105.22, 149.02), (2048, 104.7, 149.77), (16, 15.23, 8.04)]
    )
    def test_tflops(self, batch: int, seconds: float, printed: float) -> None:
        shape = "--num-layers 70 --hidden-size 14336 --vocab-size 250880 --sequence-length 2048 --gpus 384"
        answer = plan_json(*shape.split(), "--global-batch-size", str(batch), "--seconds-per-iteration", str(seconds))
        assert answer["throughput"]["hardware_tflops"] == pytest.approx(printed, rel=1e-3)

    def test_samples_of_tokens(self) -> None:
        assert plan_json("--tokens", "260e9", "--sequence-length", "2048")["samples"]["samples"] == 126_953_125

    def test_too_few_numbers_say_what_is_missing(self) -> None:
        with pytest.raises(OpsctlError, match=r"--gpus\b.*--params --tokens"):
            CliRunner().invoke(command, ["--gpus", "8"], catch_exceptions=False)

    @pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e31", "many", "1.5", "1e-31", "--", "0x10"])
    def test_what_is_no_count_is_wrong_usage(self, value: str) -> None:
        result = plan(f"--gpus={value}", "--params", "1e9", "--tokens", "1e9", "--tflops", "100")
        assert result.exit_code == 2
        assert "Traceback" not in result.output

    def test_a_run_and_numbers_together_are_wrong_usage(self) -> None:
        result = plan(str(example("demo")), "--params", "1e9")
        assert result.exit_code == 2 and "--params" in result.output


PROGRAM = """
[run]
name = "own"
[slurm]
nodes = 2
gpus_per_node = 4
time = "20:00:00"
[program]
kind = "transformers"
command = ["torchrun", "train.py"]
steps = 1000
"""


class TestPrograms:
    def test_the_plan_of_another_program_says_how_it_starts_and_what_it_cannot_do(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(PROGRAM)
        found = plan_json(str(tmp_path))
        assert "layout" not in found and "model" not in found
        program = found["program"]
        assert (program["kind"], program["launch"], program["stop"]) == ("transformers", "torchrun", "SIGTERM")
        assert program["checkpoints"] == f"{tmp_path}/*/checkpoint-*" and program["lacks"] and not found["problems"]

    def test_a_command_with_the_option_that_saves_on_request_lacks_nothing(self, tmp_path: Path) -> None:
        text = PROGRAM.replace('"train.py"', '"train.py", "--enable_jit_checkpoint", "True"')
        (tmp_path / "run.toml").write_text(text)
        assert not plan_json(str(tmp_path))["program"]["lacks"]

    def test_the_grace_of_a_program_that_saves_on_no_request_is_not_checked(self, tmp_path: Path) -> None:
        text = PROGRAM.replace("transformers", "lightning").replace("[program]", 'exit_margin = "1:00"\n[program]')
        (tmp_path / "run.toml").write_text(text)
        assert not plan_json(str(tmp_path))["problems"]

    @pytest.mark.parametrize(
        ("line", "refusal"),
        [
            ('kind = "keras"', r"\[program\] kind"),
            ("command = []", r"\[program\] command"),
            ('grace = "1:00:00"', r"grace .*exit_margin"),
            ('progress = "step (?P<iteration>.*)"', r"\[program\] progress"),
            ('stop = "SIGKILL"', r"\[program\] stop"),
            ("[trainer]\nlr = 1e-3", r"\[trainer\]"),
            ("[carbon]\nmeasure = true", r"\[carbon\] measure"),
        ],
    )
    def test_what_cannot_be_is_refused_by_its_key(self, tmp_path: Path, line: str, refusal: str) -> None:
        key = line.partition(" ")[0]
        kept = [one for one in PROGRAM.splitlines() if not one.startswith(f"{key} =")]
        (tmp_path / "run.toml").write_text("\n".join([*kept, line, ""]))
        result = plan(str(tmp_path))
        assert re.search(refusal, f"{result.stderr}{result.exception}")
        assert 2 in (result.exit_code, getattr(result.exception, "exit_code", None))


class TestRefusals:
    def test_every_problem_is_listed_and_the_exit_code_is_2(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(changed("global_batch_size = 32", "global_batch_size = 40"))
        result = plan(str(tmp_path))
        assert result.exit_code == 2
        assert "Layout" in result.stdout
        assert re.search(r"global_batch_size 40\b.*\bmicro_batch_size 8\b.*\bDP 2\b.*\b16\b", result.stderr)
        assert re.search(r"corpus_text_document: .*\.bin\b.*\.idx\b", result.stderr)

    def test_json_holds_the_problems_too(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(changed("nodes = 4", "nodes = 3"))
        result = plan("--json", str(tmp_path))
        assert result.exit_code == 2
        answer = printed("plan", result.stdout)
        assert "layout" not in answer
        assert len(answer["problems"]) == 2

    def test_every_key_that_may_be_missing_or_null_has_a_value_in_some_plan(self, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(VALID + "\n[expect]\nevaluation_seconds = 7\nsave_seconds = 8\n")
        all_numbers = (
            "--params 1e9 --tokens 1e9 --gpus 8 --tflops 100 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
            "--vocab-size 100 --sequence-length 32 --consumed-tokens 1e6 --goal-tokens 1e9 --seconds-per-iteration 3 "
            "--global-batch-size 8"
        )
        seen = keys_with_a_value(msgspec.convert(plan_json(*all_numbers.split()), NumbersPlan))
        own = tmp_path / "own.toml"
        own.write_text(PROGRAM.replace('"transformers"', '"command"') + 'checkpoints = "step-*.pt"\nstop = "SIGTERM"\n')
        with zipfile.ZipFile(tmp_path / "step-5.pt", "w") as file:  # older than the run, so a submit is refused
            file.writestr("x", b"")
        fewer = tmp_path / "fewer.toml"
        fewer.write_text(VALID.replace("nodes = 4", "nodes = 4\nmin_nodes = 2"))
        more = map(plan_json, map(str, (tmp_path, own, fewer)))
        for found in (shipped("tr11-176B-ml"), shipped("llama-1B"), *more):
            seen |= keys_with_a_value(msgspec.convert(found, RunPlan))
        described = {
            f"{struct.__name__}.{field.encode_name}"
            for struct in shapes([RunPlan, NumbersPlan])
            for field in msgspec.structs.fields(struct)
        }
        assert described - seen == set()

    NUMBERS = (
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "seq_length",
        "micro_batch_size",
        "global_batch_size",
    )

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_whatever_whole_numbers_stand_there_it_plans_or_refuses(self, tmp_path: Path, data: st.DataObject) -> None:
        text = VALID
        keys = data.draw(
            st.lists(st.sampled_from((*self.NUMBERS, "train_samples", "nodes", "vocab_size")), max_size=5, unique=True)
        )
        for key in keys:
            old = next(line for line in VALID.splitlines() if line.startswith(f"{key} = "))
            text = changed(old, f"{key} = {data.draw(st.integers(-1, 300) | st.integers(-(2**70), 2**70))}", text)
        if data.draw(st.booleans()):
            ramp = data.draw(st.lists(st.integers(0, 64) | st.integers(0, 2**53), min_size=2, max_size=4))
            text = changed("lr = 3e-3", f"lr = 3e-3\nrampup_batch_size = {ramp}", text)
        (tmp_path / "run.toml").write_text(text)
        result = plan("--json", str(tmp_path))
        if isinstance(result.exception, OpsctlError):
            assert "\n" not in str(result.exception)
        else:
            assert result.exit_code == 2  # the data is missing
            printed("plan", result.stdout)


def test_planning_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, opsctl.cli.plan, opsctl.run.planning.from_run, opsctl.run.planning.from_inputs;"
        "import opsctl.run.config.checks;"
        "print([name for name in ('torch', 'numpy', 'deepspeed', 'rich', 'jinja2') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
