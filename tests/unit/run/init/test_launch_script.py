"""Launch scripts as run files, compared with bash's execution of the scripts and the trainer's own table."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from opsctl.core.errors import UsageError
from opsctl.run.config.checks import all_options, find_problems
from opsctl.run.config.load import load_run_file
from opsctl.run.init.draft import Draft, run_text
from opsctl.run.init.launch_script import from_script, launches
from opsctl.run.init.shell_script import read_script
from trainer.recipe.options import BY_KEY, check_mapping, from_tables, given

BASH = shutil.which("bash") or "bash"
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
def read(name: str, **said: object) -> Draft:
    return from_script((SCRIPTS / name).read_text(), "mine", "/where/it/is", said, lambda _: None)


def options_by_bash(name: str, folder: Path, **variables: str) -> dict[str, object]:
    """Return the trainer's options when bash executes the script."""
    written = folder / "arguments"
    environment = {"PATH": os.environ["PATH"], "WRITTEN": str(written), **PLACES, **variables}
    script = STUBS + (SCRIPTS / name).read_text()
    subprocess.run(["bash", "-c", script], env=environment, cwd=folder, timeout=30, check=True, capture_output=True)
    words = written.read_text().split("\0")[:-1]
    begin = next(number for number, word in enumerate(words) if word.endswith(".py")) + 1
    text = "\0".join(words[begin:]).replace("\0--fp16-lm-cross-entropy", "").replace("\0--not-an-option\0005", "")
    return given(text.split("\0"))


def noted(begun: Draft, line: int, *facts: str) -> bool:
    """Return whether a note of that line of the script names all of `facts`."""
    return any(note.line == line and all(fact in note.text for fact in facts) for note in begun.notes)


def values(begun: Draft, *tables: str) -> dict[str, object]:
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
    said = [note.text for note in begun.notes]
    assert any(text.startswith("--loss-scale 12: ") for text in said)
    assert any("train_batch_size 256" in text and "--global-batch-size 512" in text for text in said)
    assert any("offload_optimizer" in text for text in said)


def test_deepspeeds_file_scales_the_loss_by_itself_where_it_names_no_scale() -> None:
    config = '{"fp16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    lines = f"cat <<E > ds.json\n{config}\nE\nsrun python pretrain_gpt.py {MODEL} --fp16 --loss-scale 12"
    begun = begun_of(f"{lines} --deepspeed --deepspeed_config ds.json")
    assert begun.value("trainer", "loss_scale") is None and begun.value("trainer", "fp16") is True
    assert any(note.text.startswith("--loss-scale 12: ") for note in begun.notes)


@pytest.mark.parametrize(
    ("name", "said", "line", "facts"),
    [
        ("rounds.slurm", {}, 64, ["--fp16-lm-cross-entropy", "fp32"]),
        ("rounds.slurm", {}, 65, ["--not-an-option"]),
        ("rounds.slurm", {}, 66, ["${EXIT}: ", "line 43"]),
        ("rounds.slurm", {}, 100, ["--load ${LAB_SCRATCH}/other: "]),
        ("arrays.sh", {"time": "2:00:00"}, 32, ["--train-range-to-skip 10 20 ${MORE_SKIPPED}: ", " MORE_SKIPPED"]),
        ("arrays.sh", {"time": "2:00:00"}, 39, ["--save-interval ${SAVE_EVERY}: ", " SAVE_EVERY"]),
        ("arrays.sh", {"time": "2:00:00"}, 40, ["--eval-iters ${LAST}: ", "line 16"]),
        ("arrays.sh", {"time": "2:00:00"}, 41, ["--lr-warmup-iters $(python warm.py): "]),
        ("arrays.sh", {"time": "2:00:00"}, 42, ["${EXTRA_ARGS}: ", " EXTRA_ARGS"]),
        ("sweep.slurm", {}, 5, ["#SBATCH --dependency=singleton: "]),
        ("sweep.slurm", {}, 7, ["#SBATCH --account=too-late: "]),
        ("sweep.slurm", {}, 9, ["finetune_t0.py: ", "pretrain_gpt.py"]),
        ("sweep.slurm", {}, 9, ["4 nodes", "Slurm 2"]),
        ("sweep.slurm", {}, 10, ["--lr ${1}: ", "$1 "]),
        ("sweep.slurm", {}, 11, ["--deepspeed_config engine.json: "]),
        ("sweep.slurm", {}, 11, ["--mup"]),
        ("large.slurm", {}, 34, ["HUB_TOKEN"]),
        ("large.slurm", {}, 132, ["--save ${LAB_SCRATCH}/lm-40B/checkpoints/main: "]),
    ],
)
def test_what_could_not_be_taken_is_said_with_its_line(
    name: str, said: dict[str, object], line: int, facts: list[str]
) -> None:
    begun = read(name, **said)
    assert noted(begun, line, *facts), begun.notes
    assert any(
        f"line {line}: " in one and all(fact in one for fact in facts) for one in run_text(begun, ["made"]).splitlines()
    ), "the run file has it too"


def test_arrays_and_defaults_are_followed_and_a_case_is_listed() -> None:
    begun = read("arrays.sh", time="2:00:00")
    options = values(begun, "trainer", "data")
    assert (options["seq_length"], options["micro_batch_size"], "num_layers" in options) == (4096, 4, False)
    assert noted(begun, 11, "case: ") and noted(begun, 20, "--num-layers ${LAYERS}: ", "line 13")
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
    lines = ["export CUDA_DEVICE_MAX_CONNECTIONS=1", 'export PATH="/opt/lm/bin:${PATH}"']
    assert read("arrays.sh", time="1:00:00").environment_script == lines


def test_variables_of_the_ranks_go_to_env_and_the_command_line_does_not() -> None:
    assert values(read("large.slurm"), "env") == {
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_CACHE": "${LAB_WORK}/models",
        "CUDA_LAUNCH_BLOCKING": "1",
    }


def test_a_script_that_starts_no_training_is_refused() -> None:
    with pytest.raises(UsageError, match="training"):
        from_script("#!/bin/bash\n#SBATCH --nodes=1\npython sync.py --repo-path x\n", "x", "/x", {}, lambda _: None)


def test_what_every_run_has_to_say_is_asked_for_by_name() -> None:
    with pytest.raises(UsageError, match="--time"):
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


def begun_of(text: str) -> Draft:
    return from_script(HEAD + text + "\n", "mine", "/where/it/is", {}, lambda _: None)


def launched_after(text: str) -> Draft:
    return begun_of(f"{text}\nsrun python pretrain_gpt.py {MODEL}")


@pytest.mark.parametrize("precision", ["--fp16", "--bf16", ""])
def test_the_zero_stage_of_a_script_is_taken_as_it_is(precision: str) -> None:
    words = f"{precision} --zero-stage 0 --lr 1e-4 --train-iters 10"
    begun = begun_of(f"srun python pretrain_gpt.py {MODEL} {words}")
    assert begun.value("trainer", "zero_stage") == 0
    assert check_mapping({**values(begun, "trainer"), "vocab_size": 100}, world_size=8) == []


@pytest.mark.parametrize("before", ["", "if [ -f /tmp/x ]; then "])
def test_what_is_evaluated_or_generated_behind_the_training_is_not_the_training(before: str) -> None:
    end = "; fi" if before else ""
    begun = begun_of(
        f"{before}srun python pretrain_gpt.py {MODEL} --lr 1e-4{end}\npython tools/generate.py {MODEL} --lr 1"
    )
    assert begun.value("trainer", "lr") == 1e-4
    assert any(note.line > 5 and note.text.endswith("line 5") for note in begun.notes)
    assert begun_of(f"python tools/train.py {MODEL} --lr 1").value("trainer", "lr") == 1


@pytest.mark.parametrize("start", ["./", "exec srun python ", "exec > >(tee log)\npython ", "time python -u "])
def test_a_training_is_found_whatever_is_in_front_of_its_program(start: str) -> None:
    assert begun_of(f"{start}pretrain_gpt.py {MODEL} --lr 1").value("trainer", "lr") == 1


#: Ways in which a launch script comes to the words that it starts its training with. TRAIN: srun and the program.
FORMS = {
    "what it is called with": 'ARGS="--lr $1 --min-lr ${2:-1e-6}"\nTRAIN $ARGS --seed ${3}',
    "all that it is called with": 'TRAIN --lr "$1" --seed $# --split "$@"',
    "a branch": 'if [ $MODE = test ]; then\n  ARGS="--lr 1"\nelse\n  ARGS="--lr 2"\n  EXTRA=(--seed 4)\nfi\n'
    'TRAIN $ARGS "${EXTRA[@]}"',
    "tests that are joined": "[[ $MODE == prod ]] && LR=1\n[ $MODE = prod ] || LR=2\nTRAIN --lr $LR",
    "a variable of its own": "export MODEL\nLR=1\n"
    "LR=2 S=3 srun bash -c 'python pretrain_gpt.py $MODEL --lr $LR --seed $S'",
    "a shell of its own": "LR=1\n(LR=2; cd /)\n{ LR=3; } | tee log\nTRAIN --lr $LR",
    "a training in brackets": "LR=1\n(\n  LR=2\n  TRAIN --lr $LR\n) 2>&1 | tee log",
    "a shell's own arguments": "export MODEL\n"
    "srun bash -c 'python pretrain_gpt.py $MODEL --lr $1 --split \"$2\" --seed $#' _ 3 'x y'",
    "exports that are taken back": "LR=1\ndeclare -x MODEL T=1\nexport LR\nexport -n LR\n"
    "srun bash -c 'python pretrain_gpt.py $MODEL --seed $T'",
    "arrays": "A=(--lr 1)\nA+=(--seed 3)\nB=(--split '9,1 ,0')\n"
    'CMD=(python pretrain_gpt.py $MODEL "${A[@]}" "${B[@]}")\nsrun "${CMD[@]}"',
    "launchers": "torchrun --nproc_per_node 4 --nnodes=2 --rdzv_endpoint $H:1 pretrain_gpt.py $MODEL --lr 1",
    "deepspeed": "deepspeed --num_gpus 4 ./pretrain_gpt.py $MODEL --deepspeed_config=x.json",
    "behind an assignment and a test": "true && LR=1 && S=2; false || T=3\nTRAIN --lr $LR$S$T",
    "a variable that holds a script": "export MODEL\nread -r -d '' CMD <<'END'\n"
    'cd .. && cd - >/dev/null; python pretrain_gpt.py $MODEL \\\n  --lr 1\nEND\nsrun bash -c "$CMD"',
    "pwd in quotes": 'export CMD=" \\\n    `pwd`/pretrain_gpt.py \\\n    $MODEL \\\n"\n'
    'srun bash -c "python $CMD --lr 1" 2>&1 | tee -a log',
}


def started_by_bash(text: str, folder: Path) -> list[str]:
    """Return the words of the last training that bash starts, from its program on."""
    for name in ("srun", "python", "torchrun", "deepspeed", "tee"):
        body = {"srun": 'exec "$@"', "tee": "cat >/dev/null"}.get(name, f'printf "%s\\0" "$@" >{folder}/arguments')
        (folder / name).write_text(f"#!{BASH}\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    script = ["bash", "-c", text, "script", "0.1", "a b"]
    subprocess.run(script, executable=BASH, env=environment, cwd=folder, timeout=30, check=True, capture_output=True)
    words = (folder / "arguments").read_text().split("\0")[:-1]
    return words[next(place for place, word in enumerate(words) if word.endswith("pretrain_gpt.py")) + 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_a_training_has_the_words_that_bash_starts_it_with(form: str, tmp_path: Path) -> None:
    body = FORMS[form].replace("TRAIN", "srun python pretrain_gpt.py $MODEL")
    text = f"MODEL='{MODEL}'\nMODE=prod\nD=\n{body}\n"
    launch = launches(read_script(text, {}, ["0.1", "a b"]))[-1]
    ours = [*launch.program[1:]]
    assert [word for word in ours if word != "${3}"] == started_by_bash(text, tmp_path)


#: Ways that are not evaluated, with the lines that are noted.
NOT_EVALUATED = {
    "a case": ("case $MODE in prod*|x) LR=1 ;; *) LR=2 ;; esac\nTRAIN --seed 1 --lr $LR", [8, 9]),
    "a test of two parts": ("[[ $MODE == prod && -n $MODE ]] && LR=1\nTRAIN --seed 1 --lr $LR", [9]),
    "arguments by name": ("while [[ $# -gt 0 ]]; do\n LR=$1; shift\ndone\nTRAIN --seed 1 --lr $LR", [8, 11]),
    "a function": ("start() {\nsrun python pretrain_gpt.py $MODEL --lr $1\nD=1\n}\nstart 1e-4\nX=1", [9, 12]),
    "a loop of trainings": ('for L in 512 1024; do\nA="--seq-length $L"\nTRAIN --seed 1 $A\ndone', [8, 10]),
    "a string made by a loop": ('for n in 1 2; do D="$D 0.$n part-$n"; done\nTRAIN --data-path $D', [8, 9]),
    "a value that is cut": ("C=/a/x.json\nTRAIN --seed 1 --data-path ${C%.json}", [9]),
    "what a command prints": ("LR=$(date)\nTRAIN --lr $LR --seed `date`", [9]),
}


@pytest.mark.parametrize("form", NOT_EVALUATED)
def test_a_form_that_is_not_evaluated_is_listed_with_its_line(form: str) -> None:
    body, lines = NOT_EVALUATED[form]
    script = f"MODEL='{MODEL}'\nMODE=prod\nD=\n{body}\n".replace("TRAIN", "srun python pretrain_gpt.py $MODEL")
    draft = begun_of(script)
    assert draft.value("trainer", "num_layers") == 24
    assert all(draft.value(*key) is None for key in (("trainer", "lr"), ("data", "data_path")))
    assert {note.line for note in draft.notes} >= set(lines), draft.notes


def test_what_the_script_is_called_with_is_taken_and_what_is_missing_named() -> None:
    text = HEAD + f"srun python pretrain_gpt.py {MODEL} --lr $1 --weight-decay ${{2:-0.5}} --seed $3\n"
    begun = from_script(text, "mine", "/x", {}, lambda _: None, ["1e-4"])
    assert (begun.value("trainer", "lr"), begun.value("trainer", "weight_decay")) == (1e-4, 0.5)
    assert noted(begun, 5, "--seed ${3}: $3 ", "--")


@pytest.mark.parametrize("option", ["--eval-only", "--eval-only 1", "--eval-only True", "--skip-train"])
def test_a_script_that_only_evaluates_is_said_to(option: str) -> None:
    begun = begun_of(f"srun python pretrain_gpt.py {MODEL} {option}")
    assert noted(begun, 5, f"{option.split()[0]}: ", "opsctl evaluate") and len(begun.notes) == 1


def test_what_no_shell_reads_is_said_with_its_line() -> None:
    assert noted(launched_after("OUT=/x/<YOUR_NAME>"), 5, ">: ")


def test_a_shell_within_has_what_is_exported_and_of_the_rest_that_is_said() -> None:
    begun = begun_of(f"LR=1\nexport S=2\nsrun bash -c 'python pretrain_gpt.py {MODEL} --lr $LR --seed $S'")
    assert (begun.value("trainer", "lr"), begun.value("trainer", "seed")) == (None, 2)
    assert noted(begun, 7, "--lr ${LR}: ", "line 5", "export")
    begun = begun_of(f"set -a\nLR=1\nsrun bash -c 'python pretrain_gpt.py {MODEL} --lr $LR'")
    assert begun.value("trainer", "lr") is None and noted(begun, 5, "set -a: ")


@pytest.mark.parametrize("sum_of", ["$((S * 2))", "$((126_953 * 2))", "$((2#101 + 1))", "$((!2 == 2))"])
def test_arithmetic_that_python_does_otherwise_is_not_done(sum_of: str) -> None:
    begun = begun_of(f"S=126_953\nsrun python pretrain_gpt.py {MODEL} --train-samples $S --lr-decay-samples {sum_of}")
    assert begun.value("trainer", "train_samples") == 126_953
    assert begun.value("trainer", "lr_decay_samples") is None
    assert any(note.text.startswith(f"--lr-decay-samples {sum_of}: ") for note in begun.notes)


def test_the_environment_is_the_trainings_own() -> None:
    begun = begun_of(
        "export A=1\n(module load x; export B=2; make)\n(\nmodule load y\nexport C=3\n"
        f"D=4 A=5 srun python pretrain_gpt.py {MODEL}\n)\nexport E=6\nmodule load z"
    )
    lines = ["export A=1", "module load y", "export C=3", "export D=4", "export A=5"]
    assert begun.environment_script == lines and values(begun, "env") == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"gradient_clipping": ' + "[" * 100_000,
        '{"zero_optimization": {"reduce_bucket_size": 1e999}}',
        '{"fp16": {"enabled": true, "hysteresis": NaN}}',
        '{"gradient_clipping": ' + "9" * 400 + "}",
    ],
)
def test_numbers_and_brackets_that_no_file_of_deepspeed_has_are_said(text: str) -> None:
    begun = begun_of(
        f"cat > ds.json <<E\n{text}\nE\npython pretrain_gpt.py {MODEL} --lr 1 --deepspeed --deepspeed_config ds.json"
    )
    assert any("DeepSpeed's file" in note.text for note in begun.notes) and begun.value("trainer", "clip_grad") is None


CLIP = 'cat > ds.json <<E\n{"gradient_clipping": 0.7}\nE\n'


@pytest.mark.parametrize(
    "text",
    [
        CLIP + "sed -i s/0.7/0.5/ ds.json",
        "sed s/CLIP/0.5/ template.json > ds.json",
        CLIP + "sed s/0.7/0.5/ ds.json > x.json\nmv x.json ds.json",
        "cp other/ds.json .",
        CLIP + "cp other.json ./ds.json",
        CLIP.replace("cat", "sed s/7/5/"),
        CLIP + CLIP.replace("cat > ds.json", "cat").replace("<<E", "<<E | sed s/7/5/ > ds.json"),
        CLIP + "cat x | tee ds.json",
        CLIP + "{ echo '{'; echo '}'; } > ds.json",
        CLIP + "for A in 1 2; do echo $A; done > $PWD/ds.json",
        CLIP + "[ -f x ] && echo {} > ds.json",
        f"if [ -f x ]; then\n{CLIP}else\n{CLIP.replace('7', '5')}fi",
        f"if [ -f x ]; then\nw() {{\n{CLIP}}}\nelse\nw() {{\n{CLIP.replace('7', '5')}}}\nfi\nw",
        CLIP + "python change.py --file ds.json",
        CLIP + "rm ds.json",
        "printf '{}' > ds.json",
        CLIP.replace("cat >", "tee"),
        "echo '{}' > ds.json",
        "cd $(mktemp -d)",
    ],
)
def test_what_nobody_can_tell_of_deepspeeds_file_is_not_taken_from_the_script_nor_the_disk(text: str) -> None:
    train = f"python pretrain_gpt.py {MODEL} --clip-grad 1 --deepspeed --deepspeed_config ds.json"
    begun = from_script(f"{HEAD}{text}\n{train}\n", "x", "/where", {}, lambda _: '{"gradient_clipping": 0.9}')
    assert begun.value("trainer", "clip_grad") == 1
    assert "--deepspeed_config ds.json: " in str(begun.notes)


@pytest.mark.parametrize(
    "text",
    [
        CLIP + "cat ds.json\nTRAIN\nrm ds.json",
        CLIP.replace("ds.json", "$PWD/ds.json") + "cd sub; cd ..",
        "mkdir sub; (cd sub; " + CLIP.replace("ds.json", "../ds.json") + ")",
        "cp ds.json old.json; cp x.json y.json; " + CLIP,
        f"if [ -f x ]; then\n{CLIP.replace('7', '5')}TRAIN\nfi\n{CLIP}",
    ],
)
def test_deepspeeds_file_is_what_the_script_has_written_by_then(text: str) -> None:
    train = f"python pretrain_gpt.py {MODEL} --clip-grad 1 --deepspeed --deepspeed_config ds.json"
    text = text.replace("TRAIN", train) if text.endswith("rm ds.json") else text.replace("TRAIN", train) + f"\n{train}"
    begun = from_script(f"{HEAD}{text}\n", "x", "/where", {}, lambda _: '{"gradient_clipping": 0.9}')
    assert begun.value("trainer", "clip_grad") == 0.7


def test_deepspeeds_file_is_read_in_the_folder_that_the_script_is_in() -> None:
    asked: list[str] = []
    train = f"python pretrain_gpt.py {MODEL} --deepspeed --deepspeed_config ds.json"
    from_script(f"{HEAD}cd sub\n{train}\n", "x", "/where", {}, lambda path: asked.append(path))
    assert asked == ["/where/sub/ds.json"]


@pytest.mark.parametrize(
    "text", ["source ./conf.sh", "[ -f .env ] && . .env", "set -a; . .env", "command source x", 'eval "$(cat conf)"']
)
def test_a_file_that_is_not_opened_is_listed(text: str) -> None:
    begun = begun_of(f"LR=1\n{text}\npython pretrain_gpt.py {MODEL} --lr $LR")
    assert begun.value("trainer", "lr") == 1
    assert any(note.line == 6 and "may change variables" in note.text for note in begun.notes)


@pytest.mark.parametrize(
    "launcher", ["srun --export=ALL,LR=2", "srun --export=LR=2", "env -i LR=2", "srun env -u WD LR=2"]
)
def test_what_the_launcher_of_a_shell_sets_is_not_known(launcher: str) -> None:
    begun = begun_of(
        f"export LR=1 WD=0.1\n{launcher} bash -c 'python pretrain_gpt.py {MODEL} --lr $LR --weight-decay $WD'"
    )
    assert begun.value("trainer", "lr") is None
    assert begun.value("trainer", "weight_decay") in (None, 0.1)


def test_a_curriculum_in_deepspeeds_file_is_said_to_be_left() -> None:
    said = '{"curriculum_learning": {"enabled": true}, "elastic_checkpoint": true}'
    begun = begun_of(f"cat <<E > e.json\n{said}\nE\nsrun python pretrain_gpt.py {MODEL} --deepspeed_config e.json")
    assert noted(begun, 6, "curriculum_learning") and noted(begun, 6, ": elastic_checkpoint")


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
        (
            "export MODULEPATH=/own/modules\nmodule load cuda\nexport NCCL_DEBUG=INFO\n",
            ["export MODULEPATH=/own/modules", "module load cuda", "export NCCL_DEBUG=INFO"],
        ),
        (
            "export PATH=/a:$PATH\nmodule load cuda\nPATH=/b:$PATH\nsource x\nLD_LIBRARY_PATH=/c:${LD_LIBRARY_PATH}",
            [
                *('export PATH="/a:${PATH}"', "module load cuda", 'export PATH="/b:${PATH}"', "source /where/it/is/x"),
                'export LD_LIBRARY_PATH="/c:${LD_LIBRARY_PATH}"',
            ],
        ),
    ],
)
def test_the_environment_is_kept_as_it_is_made(text: str, lines: list[str]) -> None:
    assert launched_after(text).environment_script == lines


def test_an_export_behind_what_may_set_it_over_counts() -> None:
    begun = launched_after("source x\nexport A=1\nPATHS=a:$B\nC=1")
    assert values(begun, "env") == {"A": "1"} and begun.value("run", "environment") == "/where/it/is/x"
    begun = launched_after("export A=1 B=1\nsource x\nA=2")
    assert begun.environment_script == ["export A=1", "export B=1", "source /where/it/is/x", "export A=2"]


def test_a_command_that_is_left_out_is_said_to_be() -> None:
    begun = launched_after("set -e\necho x\nnvidia-smi -pm 1")
    assert noted(begun, 7, "nvidia-smi: ") and not {5, 6} & {note.line for note in begun.notes}


def test_the_environment_is_that_of_the_folder_and_of_the_job() -> None:
    begun = launched_after("cd $SLURM_SUBMIT_DIR/code\nsource ../venv/bin/activate\nexport PYTHONPATH=$PWD:$PYTHONPATH")
    lines = ["source /where/it/is/venv/bin/activate", 'export PYTHONPATH="/where/it/is/code:${PYTHONPATH}"']
    assert begun.environment_script == lines
    begun = launched_after("export CACHE=/tmp/$SLURM_JOB_ID\nexport SEEN=$(pwd)/data")
    lines = ['export CACHE="/tmp/${SLURM_JOB_ID}"', "export SEEN=/where/it/is/data"]
    assert begun.environment_script == lines, "a job's own variables are not known at submission"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd $(dirname $0)/..", "/where/it"),
        ('cd "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"', "/where/it/is"),
        ("(cd data && make)", "/where/it/is"),
        ("cd /lab\ncd a/b\ncd ..", "/lab/a"),
        ("cd a\ncd b", "/where/it/is/a/b"),
        ("cd $LAB\ncd a", "${LAB}/a"),
        ("cd /lab\ncd -", "/where/it/is"),
        ("cd /lab && (cd /lib; make)\ncd a || exit 1", "/lab/a"),
        ("cd /lab\n[ -f x ] && cd a", "/where/it/is"),
    ],
)
def test_relative_paths_start_where_the_training_is_started(text: str, expected: str) -> None:
    script = f"{text}\nsrun python pretrain_gpt.py {MODEL} --vocab-file v.json"
    begun = begun_of(script + "\ncd /elsewhere")
    assert begun.value("data", "vocab_file") == f"{expected}/v.json"
    if "[ -f" in text or "cd -" in text:
        assert noted(begun, 7, "/where/it/is")
