"""Launch scripts read into run files, held to what bash makes of the same scripts and to the trainer's own table."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from opsctl.beginning.begun import Begun, run_text
from opsctl.beginning.from_script import from_script
from opsctl.errors import UsageError
from opsctl.runs.checks import all_options, find_problems
from opsctl.runs.load import load_run_file
from trainer.recipe.options import BY_KEY, from_tables, given

SCRIPTS = Path(__file__).parent / "scripts"
PLACES = {"LAB_WORK": "/lab/work", "LAB_SCRATCH": "/lab/scratch", "SLURM_JOB_ID": "7", "SLURM_JOBID": "7"}
#: In the place of what a compute node has: the last one writes down what it is started with.
STUBS = """
source() { :; }; module() { :; }; conda() { :; }; clear() { :; }; mkdir() { :; }; tee() { cat >/dev/null; }
scontrol() { echo first; }; perl() { echo first; }; cd() { :; }; cat() { command cat >/dev/null; }
srun() { while [ "$1" != bash ]; do shift; done; shift 2; case $1 in *torch.cuda*) ;; *) eval "$1" ;; esac; }
python() { case $* in *pretrain*) printf '%s\\0' "$@" >"$WRITTEN" ;; esac; }
torchrun() { python "$@"; }
"""


@cache
def read(name: str, **said: object) -> Begun:
    return from_script((SCRIPTS / name).read_text(), "mine", "/where/it/is", said, lambda _: None)


def options_by_bash(name: str, folder: Path, **variables: str) -> dict[str, object]:
    """The options that the script, carried out by bash, starts the trainer with."""
    written = folder / "arguments"
    environment = {"PATH": os.environ["PATH"], "WRITTEN": str(written), **PLACES, **variables}
    script = STUBS + (SCRIPTS / name).read_text()
    subprocess.run(["bash", "-c", script], env=environment, cwd=folder, timeout=30, check=True, capture_output=True)
    words = written.read_text().split("\0")[:-1]
    begin = next(number for number, word in enumerate(words) if word.endswith(".py")) + 1
    text = "\0".join(words[begin:]).replace("\0--fp16-lm-cross-entropy", "").replace("\0--not-an-option\0005", "")
    return given(text.split("\0"))


def values(begun: Begun, *tables: str) -> dict[str, object]:
    return {key: one.value for table in tables for key, one in begun.tables.get(table, {}).items()}


@pytest.mark.parametrize(
    ("name", "by_the_engine_or_slurm"),
    [
        ("large.slurm", {"separate_last_epoch_threshold"}),
        (
            "rounds.slurm",
            {"clip_grad", "hysteresis", "min_loss_scale", "loss_scale_window", "initial_loss_scale", "loss_scale"}
            | {"separate_last_epoch_threshold"},
        ),
    ],
)
def test_the_options_are_those_that_bash_would_start_the_trainer_with(
    name: str, by_the_engine_or_slurm: set[str], tmp_path: Path
) -> None:
    ours = values(read(name), "trainer", "data", "checkpoints")
    bashs = options_by_bash(name, tmp_path, SLURM_NNODES="24")
    bashs = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in bashs.items()}
    expanded = {key: _expanded(value) for key, value in ours.items() if key not in by_the_engine_or_slurm}
    theirs = {
        key: value
        for key, value in bashs.items()
        if BY_KEY[key].table != "opsctl" and not BY_KEY[key].notice and key not in by_the_engine_or_slurm
    }
    # The script changes into a folder, where its relative paths start; the stub of cd does not.
    relative = {key for key in theirs if key in ("vocab_file", "merge_file")}
    for key in relative:
        assert expanded.pop(key) == f"/where/it/is/Megatron-DeepSpeed/{theirs.pop(key)}"
    assert expanded == theirs


def _expanded(value: object) -> object:
    if not isinstance(value, str):
        return value
    for name, place in PLACES.items():
        value = value.replace("${" + name + "}", place)
    return value


@pytest.mark.parametrize("name", ["large.slurm", "rounds.slurm"])
def test_what_is_made_is_a_run_file_in_which_only_the_data_is_missing(name: str, tmp_path: Path) -> None:
    begun = read(name)
    if begun.environment_script:
        (tmp_path / "environment.sh").touch()
    (tmp_path / "run.toml").write_text(run_text(begun, ["made"]))
    found = find_problems(load_run_file(tmp_path / "run.toml", {}), files=False)
    assert found.problems == ()
    assert found.layout is not None
    (tmp_path / "run.toml").write_text(run_text(begun, ["made"]).replace("num_layers", "num_layer"))
    with pytest.raises(Exception, match="num_layer"):
        load_run_file(tmp_path / "run.toml", {})


def test_what_slurm_is_asked_for_goes_to_its_table() -> None:
    assert values(read("large.slurm"), "slurm") == {
        **{"partition": "big", "constraint": "a100", "nodes": 24, "cpus_per_task": 32, "gpus_per_node": 8},
        **{"extra": ["--hint=nomultithread"], "time": "50:00:00", "account": "lab@gpu", "exit_margin": "0:15:00"},
    }
    asked = values(read("rounds.slurm"), "slurm")
    assert (asked["gpus_per_node"], asked["gpu_type"]) == (4, "v100")


def test_each_value_names_its_line() -> None:
    begun, lines = read("large.slurm"), (SCRIPTS / "large.slurm").read_text().splitlines()
    for key, text in {"lr": "--lr 1e-4", "num_layers": "DEPTH - 2", "tensor_model_parallel_size": "$TP"}.items():
        remark = begun.tables["trainer"][key].remark
        assert text in lines[int(remark.removeprefix("line ")) - 1]


def test_what_deepspeeds_file_says_counts_as_it_does_in_deepspeed() -> None:
    begun = read("rounds.slurm")
    options = from_tables(values(begun, "trainer", "data", "checkpoints"), 64)
    assert (options.clip_grad, options.loss_scale, options.initial_loss_scale) == (0.5, None, 2**12)
    assert (options.loss_scale_window, options.hysteresis, options.min_loss_scale) == (500, 2, 1.0)
    said = " ".join(str(note) for note in begun.notes)
    assert "--loss-scale 12: DeepSpeed's file has a dynamic one" in said
    assert "train_batch_size 256 in DeepSpeed's file: --global-batch-size 512 counts" in said
    assert "offload_optimizer" in said


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("rounds.slurm", {}, "line 64: --fp16-lm-cross-entropy is refused: the loss is always computed in fp32"),
        ("rounds.slurm", {}, "line 65: --not-an-option is no option of the trainer"),
        ("rounds.slurm", {}, "line 66: ${EXIT}: EXIT is set in line 43, in a loop or under a condition"),
        ("rounds.slurm", {}, "line 100: --load ${LAB_SCRATCH}/other: a run goes on from its own checkpoints"),
        ("arrays.sh", {"time": "2:00:00"}, "line 32: --train-range-to-skip 10 20 ${MORE_SKIPPED}: the script does not"),
        ("arrays.sh", {"time": "2:00:00"}, "line 39: --save-interval ${SAVE_EVERY}: the script does not set"),
        ("arrays.sh", {"time": "2:00:00"}, "line 40: --eval-iters ${LAST}: LAST is set in line 16, in a loop"),
        ("arrays.sh", {"time": "2:00:00"}, "line 41: --lr-warmup-iters $(python warm.py): it is what a command prints"),
        ("arrays.sh", {"time": "2:00:00"}, "line 42: ${EXTRA_ARGS}: the script does not set EXTRA_ARGS, so what it"),
        ("sweep.slurm", {}, "line 5: #SBATCH --dependency=singleton: opsctl sets it itself"),
        ("sweep.slurm", {}, "line 7: #SBATCH --account=too-late: Slurm does not read it behind the first command"),
        ("sweep.slurm", {}, "line 9: finetune_t0.py: the trainer trains as pretrain_gpt.py does"),
        ("sweep.slurm", {}, "line 9: the launcher is told of 4 nodes, Slurm of 2: taken is 2"),
        ("sweep.slurm", {}, "line 10: --lr ${1}: $1 is what the script is called with"),
        ("sweep.slurm", {}, "line 11: --deepspeed_config engine.json: the script does not write it"),
        ("sweep.slurm", {}, "line 11: --mup is refused"),
        ("large.slurm", {}, "line 34: HUB_TOKEN looks like a secret"),
        ("large.slurm", {}, "line 132: --save ${LAB_SCRATCH}/lm-40B/checkpoints/main: opsctl keeps"),
    ],
)
def test_what_could_not_be_taken_is_said_with_its_line(name: str, said: dict[str, object], expected: str) -> None:
    begun = read(name, **said)
    notes = [str(note) for note in begun.notes]
    assert any(note.startswith(expected) for note in notes), notes
    assert expected in run_text(begun, ["made"]), "it stands in the run file too"


def test_arrays_defaults_and_cases_are_followed() -> None:
    begun = read("arrays.sh", time="2:00:00")
    options = values(begun, "trainer", "data")
    assert (options["num_layers"], options["hidden_size"], options["micro_batch_size"]) == (32, 4096, 4)
    assert options["data_path"] == [
        *(0.7, "/where/it/is/first_text_document"),
        *(0.3, "${DATA_ROOT}/second_text_document"),
    ]
    assert options["tokenizer_name_or_path"] == "/where/it/is/tokenizer"
    assert values(begun, "slurm") == {"time": "2:00:00", "nodes": 2, "gpus_per_node": 8}


def test_what_makes_the_environment_becomes_a_script_unless_it_is_one_already() -> None:
    assert values(read("large.slurm"), "run")["environment"] == "${LAB_WORK}/lm-40B/start-lm"
    assert read("large.slurm").environment_script == []
    begun = read("rounds.slurm")
    assert values(begun, "run")["environment"] == "environment.sh"
    lines = ['source "${LAB_WORK}/start-prod"', "module load cuda/11.4", "conda activate lm"]
    assert begun.environment_script == lines
    assert read("arrays.sh", time="1:00:00").environment_script == ['export PATH="/opt/lm/bin:${PATH}"']


def test_variables_of_the_ranks_go_to_env_and_the_command_line_does_not() -> None:
    assert values(read("large.slurm"), "env") == {
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_CACHE": "${LAB_WORK}/models",
        "CUDA_LAUNCH_BLOCKING": "1",
    }


def test_a_script_that_starts_no_training_is_refused() -> None:
    with pytest.raises(UsageError, match="starts no training"):
        from_script("#!/bin/bash\n#SBATCH --nodes=1\npython sync.py --repo-path x\n", "x", "/x", {}, lambda _: None)


def test_what_every_run_has_to_say_is_asked_for_by_name() -> None:
    with pytest.raises(UsageError, match=r"does not say time .*give --time"):
        read("arrays.sh")


def test_a_file_of_deepspeed_that_the_script_does_not_write_is_read_where_it_is() -> None:
    asked = []

    def read_file(path: str) -> str:
        asked.append(path)
        return '{"gradient_clipping": 0.25, "zero_optimization": {"stage": 2}}'

    begun = from_script((SCRIPTS / "sweep.slurm").read_text(), "x", "/where", {}, read_file)
    assert asked == ["/where/engine.json"]
    assert values(begun, "trainer")["clip_grad"] == 0.25
    assert any("ZeRO stage 2" in note.text for note in begun.notes)


def test_a_run_file_says_nothing_that_its_loader_would_not_take_as_it_is(tmp_path: Path) -> None:
    begun = read("large.slurm")
    (tmp_path / "run.toml").write_text(run_text(begun, ["made"]))
    loaded = load_run_file(tmp_path / "run.toml", {}).file
    assert all_options(loaded) == values(begun, "trainer", "data", "checkpoints")


HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n#SBATCH --time=20:00:00\n"
MODEL = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --micro-batch-size 2"


def begun_of(text: str) -> Begun:
    return from_script(HEAD + text + "\n", "mine", "/where/it/is", {}, lambda _: None)


def launched_after(text: str) -> Begun:
    return begun_of(f"{text}\nsrun python pretrain_gpt.py {MODEL}")


@pytest.mark.parametrize("before", ["", "if [ -f /tmp/x ]; then "])
def test_what_is_evaluated_or_generated_behind_the_training_is_not_the_training(before: str) -> None:
    end = "; fi" if before else ""
    begun = begun_of(
        f"{before}srun python pretrain_gpt.py {MODEL} --lr 1e-4{end}\npython tools/generate.py {MODEL} --lr 1"
    )
    assert begun.value("trainer", "lr") == 1e-4
    assert "another training is started here; taken is that of line 5" in str(begun.notes)
    assert begun_of(f"python tools/train.py {MODEL} --lr 1").value("trainer", "lr") == 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "C=/cuda\nexport LIB=$C/lib:${LIB:-}\nexport LIB=/more${LIB:+:$LIB}",
            ['export LIB="/cuda/lib:${LIB:-}"', 'export LIB="/more${LIB:+:$LIB}"'],
        ),
        (
            'eval "$(conda shell.bash hook)"\nconda activate lm\numask 007\nunset LD_PRELOAD\nshopt -s nullglob',
            [
                *('eval "$(conda shell.bash hook)"', "conda activate lm", "umask 007", "unset LD_PRELOAD"),
                "shopt -s nullglob",
            ],
        ),
    ],
)
def test_the_environment_is_kept_as_it_is_made(text: str, lines: list[str]) -> None:
    assert launched_after(text).environment_script == lines


def test_a_command_that_is_left_out_is_said_to_be() -> None:
    notes = [str(note) for note in launched_after("set -e\necho x\nnvidia-smi -pm 1").notes]
    assert "line 7: nvidia-smi: of the script, nothing but the training is run" in notes
    assert not any("line 5" in note or "line 6" in note for note in notes)


def test_a_variable_that_is_unset_and_set_again_is_not_unset_in_the_environment() -> None:
    begun = launched_after("unset NCCL_DEBUG\nexport NCCL_DEBUG=INFO")
    assert begun.environment_script == [] and begun.value("env", "NCCL_DEBUG") == "INFO"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(cd data && make)", "/where/it/is"),
        ("cd /lab\ncd a/b\ncd ..", "/lab/a"),
        ("cd a\ncd b", "/where/it/is/a/b"),
        ("cd $LAB\ncd a", "${LAB}/a"),
        ("cd /lab\ncd -", "/where/it/is"),
        ("cd /lab\npushd a", "/where/it/is"),
    ],
)
def test_relative_paths_start_where_the_training_is_started(text: str, expected: str) -> None:
    script = f"{text}\nsrun python pretrain_gpt.py {MODEL} --vocab-file v.json"
    begun = begun_of(script + "\ncd /elsewhere")
    assert begun.value("data", "vocab_file") == f"{expected}/v.json"
    if "-" in text or "pushd" in text:
        assert "not known; relative paths are taken to start at" in str(begun.notes)
