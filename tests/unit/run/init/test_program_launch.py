"""Launch scripts of other training programs as run files, with the lines that a user still has to edit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opsctl.core.errors import UsageError
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.jobs.control.submit import check
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.program import Program, program_of
from opsctl.run.init.draft import Draft, run_text
from opsctl.run.init.launch_script import from_script

SCRIPTS = Path(__file__).parent / "scripts" / "programs"
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH --time=20:00:00\n"
LIGHTNING = 'import lightning as L\nparser.add_argument("--ckpt_path", default=None)\n'


@dataclass(frozen=True)
class Wild:
    """A script, the files of its project, and what its user edits: a pattern in the run file -> the new line."""

    files: dict[str, str] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    kind: str = "command"
    launch: str = "torchrun"
    command: tuple[str, ...] = ()  # the beginning
    checkpoints: str = ""
    steps: int | None = None


CHECKPOINTS, PROGRESS, STOP = r"# checkpoints = .*", r"# progress = .*", r"# stop = .*"
SOME_PROGRESS = r"progress = 'step (?P<iteration>\d+) loss (?P<loss>\S+)'"
WILD = {
    "torchrun-nodes.sbatch": Wild(
        {"train.py": ""},
        {CHECKPOINTS: 'checkpoints = "saved/step-*.pt"', PROGRESS: SOME_PROGRESS, STOP: 'stop = "SIGTERM"'},
        command=("torchrun", "train.py", "--config", "configs/gpt-1b.yaml"),
        checkpoints="saved/step-*.pt",
        steps=120_000,
    ),
    "accelerate-config.slurm": Wild(
        {"run_sft.py": "from transformers import Trainer"},
        {r"# steps = .*": "steps = 9000"},
        kind="transformers",
        launch="accelerate",
        command=("accelerate", "launch", "--deepspeed_multinode_launcher", "standard", "--config_file"),
        checkpoints="runs/sft-8b/checkpoint-*",
        steps=9000,
    ),
    "deepspeed-hostfile.sh": Wild(
        {"src/train_moe.py": "import deepspeed"},
        {
            CHECKPOINTS: 'checkpoints = "/work/moe/ckpt/global_step*"',
            PROGRESS: SOME_PROGRESS,
            r"# resume = .*": "resume = []",
        },
        command=("torchrun", "src/train_moe.py", "--dim", "2048", "--experts", "16", "--total_steps", "50000"),
        checkpoints="/work/moe/ckpt/global_step*",
        steps=50_000,
    ),
    "lightning-srun.sbatch": Wild(
        {"main.py": LIGHTNING},
        {CHECKPOINTS: 'checkpoints = "logs/*/checkpoints/*.ckpt"'},
        kind="lightning",
        launch="ranks",
        command=("python", "-u", "main.py", "--devices", "4", "--num_nodes", "2"),
        checkpoints="logs/*/checkpoints/*.ckpt",
        steps=40_000,
    ),
    "megatron-core.sh": Wild(
        {"pretrain_gpt.py": ""},
        {r'    "torchrun", "pre': '    "apptainer", "exec", "--nv", "image.sif", "torchrun", "pre'},
        kind="megatron-lm",
        command=("apptainer", "exec", "--nv", "image.sif", "torchrun", "pretrain_gpt.py", "--use-mcore-models"),
        checkpoints="/ckpt/7b/iter_*",
        steps=250_000,
    ),
    "torchtitan.sh": Wild(
        {},
        {r', "\$\{FILL_IN\}",': ","},
        kind="torchtitan",
        command=(
            *("torchrun", "--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
            *("-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_8b"),
        ),
        checkpoints="outputs/8b/checkpoint/step-*",
        steps=60_000,
    ),
    "clip-srun.sbatch": Wild(
        {"src/clip_train/main.py": "import torch"},
        {CHECKPOINTS: 'checkpoints = "/p/scratch/vision/logs/*/checkpoints/epoch_*.pt"', PROGRESS: SOME_PROGRESS},
        launch="ranks",
        command=("python", "-u", "src/clip_train/main.py", "--save-frequency", "1"),
        checkpoints="/p/scratch/vision/logs/*/checkpoints/epoch_*.pt",
    ),
    "container-bash.slurm": Wild(
        {"lm/train.py": ""},
        {
            CHECKPOINTS: 'checkpoints = "/scratch/proj-77/finnish/ckpt-*.pt"',
            PROGRESS: SOME_PROGRESS,
            r"# resume = .*": "resume = []",
        },
        command=(
            *("singularity", "exec", "-B", "/scratch:/scratch", "-B", "/pfs:/pfs"),
            *("/appl/containers/pytorch-2.5-rocm.sif", "torchrun", "lm/train.py", "config/finnish.py"),
        ),
        checkpoints="/scratch/proj-77/finnish/ckpt-*.pt",
        steps=200_000,
    ),
    "factory-cli.sh": Wild(
        {},
        {
            r'kind = "command"': 'kind = "transformers"',
            CHECKPOINTS: 'checkpoints = "/work/factory/qwen/checkpoint-*"',
            r"# resume = .*": 'resume = ["resume_from_checkpoint={checkpoint}"]',
        },
        kind="transformers",
        command=("llamafactory-cli", "train", "conf/qwen_full_sft.yaml"),
        checkpoints="/work/factory/qwen/checkpoint-*",
        steps=3000,
    ),
}


def made(name: str, project: Path) -> Draft:
    """The run of a script in its project, of which the script's own folders are folders below it."""
    for path, content in WILD[name].files.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(content)
    text = (SCRIPTS / name).read_text().replace("/proj/llm/Megatron-LM", str(project))
    text = text.replace("cd /p/project/vision/clip", f"cd {project}")

    def read_file(path: str) -> str | None:
        return Path(path).read_text() if Path(path).is_file() else None

    return from_script(text, "mine", str(project), {}, read_file, run_folder=str(project / "mine"))


def written(draft: Draft, folder: Path) -> LoadedRun:
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(run_text(draft, ["made"]))
    if draft.environment_script:
        (folder / "environment.sh").write_text("\n".join(draft.environment_script))
    for name, text in draft.files.items():
        (folder / name).write_text(text)
    return load_run_file(folder / "run.toml", {})


@pytest.mark.parametrize("name", WILD)
def test_a_script_from_the_wild_needs_at_most_five_edited_lines(name: str, tmp_path: Path) -> None:
    wild, project = WILD[name], tmp_path / "project"
    project.mkdir()
    draft = made(name, project)
    loaded = written(draft, project / "mine")
    text = before = loaded.path.read_text()
    for pattern, line in {**wild.edits, r"# channels = .*": 'channels = ["mailto://ann@lab.org"]'}.items():
        text, count = re.subn(pattern, lambda _, line=line: line, text)  # type: ignore[misc]
        assert count == 1, pattern
    loaded.path.write_text(text)
    edited = [new for old, new in zip(before.splitlines(), text.splitlines(), strict=True) if old != new]
    assert len(edited) <= 5

    checked = check(
        load_run_file(loaded.path, {"USER": "ann", "SCRATCH": "/scratch"}), ChainOptions(array="1-3%1")
    )  # as `submit --dry-run` does
    program = program_of(checked.run.file, loaded.path.parent)
    assert program is not None
    assert (program.kind.name, program.launch) == (wild.kind, wild.launch)
    assert program.command[: len(wild.command)] == wild.command
    assert (program.folder, program.steps) == (project, wild.steps)
    assert (program.checkpoints or "").endswith(wild.checkpoints)
    assert not [word for word in program.command if "$" in word]
    assert not any("tasks" in one for one in checked.run.file.slurm.extra)


PLACEMENT = re.compile(
    r"--(nnodes|nproc|node.rank|master|rdzv|max_restarts|num_machines|machine_rank|num_processes|main_process|hostfile"
    r"|launcher|resume_from)"
)


@pytest.mark.parametrize("name", WILD)
def test_where_and_how_many_are_opsctls_and_what_is_left_out_is_listed_with_its_line(name: str, tmp_path: Path) -> None:
    draft, lines = made(name, tmp_path), (SCRIPTS / name).read_text().splitlines()
    assert not [word for word in draft.value("program", "command") if PLACEMENT.match(word)]
    dropped = {word for line in lines if not line.startswith("#") for word in PLACEMENT.findall(line)}
    noted = " ".join(str(note) for note in draft.notes)
    assert all(f"--{option}" in noted for option in dropped)
    for note in [*draft.notes, *draft.fill_in]:
        assert 0 <= note.line <= len(lines)
        options = re.findall(r"^(--[\w-]+)", note.text)
        assert all(option.replace("-", "_") in lines[note.line - 1].replace("-", "_") for option in options), note


def test_a_secret_of_the_script_is_nowhere_in_the_run(tmp_path: Path) -> None:
    draft = made("torchrun-nodes.sbatch", tmp_path)
    assert "0123456789abcdef" not in f"{run_text(draft, [])}{draft.environment_script}"
    draft = program("torchrun train.py --hub_token hf_abc --api-key=xyz --pad_token '<pad>'")
    assert not re.search("hf_abc|xyz", run_text(draft, [])) and len(draft.fill_in) == 2
    assert "<pad>" in draft.value("program", "command")


def test_what_each_job_would_name_otherwise_has_the_runs_name(tmp_path: Path) -> None:
    command = made("torchrun-nodes.sbatch", tmp_path).value("program", "command")
    assert "/scratch/nlp-lab/${USER}/wiki-gpt/mine" in command
    lines = made("torchrun-nodes.sbatch", tmp_path).environment_script
    assert 'export TRITON_CACHE_DIR="/tmp/${USER}/triton-${SLURM_JOB_ID}"' in lines
    assert "sft-mine" in made("accelerate-config.slurm", tmp_path).value("program", "command")


def test_a_file_that_the_script_writes_is_next_to_the_run_file(tmp_path: Path) -> None:
    draft = made("accelerate-config.slurm", tmp_path)
    assert draft.files["zero3.yaml"].startswith("compute_environment:")
    assert str(tmp_path / "mine" / "zero3.yaml") in draft.value("program", "command")


def program(text: str, kind: str | None = None, files: dict[str, str] | None = None, head: str = HEAD) -> Draft:
    return from_script(f"{head}{text}\n", "mine", "/where", {}, (files or {}).get, kind=kind)


#: A command of a script, and the words and the launch of its run.
STARTS = {
    "python -m torch.distributed.run --nproc_per_node=4 t/train.py --x 1": (
        "python -m torch.distributed.run t/train.py --x 1",
        None,
    ),
    "python3 -u -m torch.distributed.launch --use_env --nnodes 2 train.py": (
        "python3 -u -m torch.distributed.launch --use_env train.py",
        None,
    ),
    "/opt/v/bin/torchrun --standalone --nproc-per-node gpu -m pkg.train -c x": (
        "/opt/v/bin/torchrun -m pkg.train -c x",
        None,
    ),
    "srun -N 2 --ntasks-per-node=4 -l python train.py --lr 1": ("python train.py --lr 1", "ranks"),
    "srun singularity exec i.sif bash -c 'torchrun train.py'": ("singularity exec i.sif torchrun train.py", None),
    "cat > r.sh <<'E'\ntorchrun train.py --a $1\nE\nchmod +x r.sh\nsrun ./r.sh 5": ("torchrun train.py --a 5", None),
    "srun fairseq-train data --lr 1": ("fairseq-train data --lr 1", None),
    "srun --ntasks-per-node 1 uv run train.py": ("uv run train.py", None),
    "srun --kill-on-bad-exit=1 apptainer exec --nv i.sif torchrun --nnodes=2 train.py": (
        "apptainer exec --nv i.sif torchrun train.py",
        None,
    ),
    "accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 train.py": (
        "accelerate launch --multi_gpu --mixed_precision bf16 train.py",
        "accelerate",
    ),
    "python -m accelerate.commands.launch --num_machines 2 train.py": ("accelerate launch train.py", "accelerate"),
    "deepspeed --num_gpus=4 --module pkg.train --deepspeed c.json": ("torchrun -m pkg.train --deepspeed c.json", None),
    "/opt/v/bin/deepspeed --include localhost:0,1 --no_local_rank train.py": ("/opt/v/bin/torchrun train.py", None),
    "mpirun -np 8 -x NCCL_DEBUG --bind-to none python train.py": ("python train.py", "ranks"),
    "srun litgpt pretrain pythia-160m --devices 4": ("litgpt pretrain pythia-160m --devices 4", None),
    "LR=3; torchrun train.py --lr $LR --url tcp://$MASTER_ADDR:$MASTER_PORT": (
        "torchrun train.py --lr 3 --url tcp://{master_address}:{master_port}",
        None,
    ),
    "LAUNCH='torchrun --nnodes=2'; srun bash -c \"$LAUNCH --node_rank \\$SLURM_PROCID train.py --lr 1\"": (
        "torchrun train.py --lr 1",
        None,
    ),
    'ARGS=(--lr 1 --note "a b"); torchrun train.py "${ARGS[@]}" "$@"': ("torchrun train.py --lr 1 --note|a b", None),
    "python prepare.py --train\nsrun torchrun train.py\npython evaluate_training.py": ("torchrun train.py", None),
}


@pytest.mark.parametrize("text", STARTS)
def test_a_command_is_started_without_what_opsctl_sets(text: str) -> None:
    words, launch = STARTS[text]
    draft = program(text, head=HEAD + "#SBATCH --ntasks-per-node=4\n" if "mpirun" in text else HEAD)
    expected = words.split("|")[0].split() + words.split("|")[1:]
    assert (draft.value("program", "command"), draft.value("program", "launch")) == (expected, launch)


@pytest.mark.parametrize(
    ("text", "kind", "checkpoints"),
    [
        ("torchrun run_clm.py --output_dir out/ --save_steps 5", "transformers", "out/checkpoint-*"),
        ("torchrun run_clm_no_trainer.py --output_dir out --checkpointing_steps 5 --seed 1", "command", None),
        ("torchrun t2i.py --output_dir out --max_train_steps 5 --seed 1 --bf16 --lr 1", "command", None),
        ("torchrun train.py --job.config_file x.toml", "torchtitan", None),
        ("srun litgpt finetune m --out_dir out/x", "litgpt", "out/x/step-*"),
        (
            "srun python gpt_pretraining.py exp_manager.explicit_log_dir=/r/x trainer.max_steps=9",
            "nemo",
            "/r/x/checkpoints/*",
        ),
        (
            "srun python main.py fit --config c.yaml --trainer.default_root_dir=r",
            "lightning",
            "r/lightning_logs/version_*/checkpoints/*.ckpt",
        ),
        ("torchrun pretrain_t5.py --use-mcore-models --save /s", "megatron-lm", "/s/iter_*"),
        ("torchrun train.py --num-layers 2 --lr 1 --seed 3 --bf16 --weight-decay 0 --train-iters 5", "command", None),
    ],
)
def test_the_kind_and_its_checkpoints_are_seen_in_the_words(text: str, kind: str, checkpoints: str | None) -> None:
    draft = program(text)
    assert (draft.value("program", "kind"), draft.value("program", "checkpoints")) == (kind, checkpoints)


def test_the_kind_that_is_given_counts() -> None:
    text = "srun python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2 --lr 1"
    assert program(text).value("trainer", "num_layers") == 2
    assert program(text, kind="megatron-lm").value("program", "kind") == "megatron-lm"
    core = f"{text} --use-mcore-models"
    assert program(core).value("program", "kind") == "megatron-lm"
    assert program(core, kind="trainer").value("trainer", "num_layers") == 2
    with pytest.raises(UsageError, match="--num-layers"):
        program("torchrun train.py", kind="trainer")


def test_what_the_programs_file_shows_is_taken() -> None:
    source = (
        "signal.signal(signal.SIGUSR1, save)\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        'p.add_argument("--resume-from")'
    )
    draft = program("torchrun train.py", files={"/where/train.py": source})
    assert draft.value("program", "stop") == "SIGUSR1"
    assert draft.value("program", "resume") == ["--resume-from", "{checkpoint}"]


def test_the_batches_of_a_step_are_taken_where_a_bar_counts_batches() -> None:
    source = "import lightning\nt = lightning.Trainer(max_steps=8, accumulate_grad_batches=4)"
    draft = program("torchrun train.py", files={"/where/train.py": source})
    assert draft.value("program", "batches_per_step") == 4


def test_the_folder_is_the_one_that_has_the_program() -> None:
    script = f"{HEAD}torchrun src/train.py\n"

    def folder_of(files: dict[str, str]) -> object:
        made = from_script(script, "mine", "/repo/jobs", {}, files.get, submitted_in="/repo")
        return made.value("program", "folder")

    assert folder_of({"/repo/src/train.py": ""}) == "/repo"
    assert folder_of({"/repo/jobs/src/train.py": ""}) == "/repo/jobs"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("sbatch other.slurm", "other.slurm"),
        ("bash run/train.sh", "run/train.sh"),
        ("python -c 'import torch'", "torchrun"),
        ("ls train.py", "torchrun"),
    ],
)
def test_a_script_that_starts_none_says_what_was_looked_for(text: str, facts: str) -> None:
    with pytest.raises(UsageError, match=re.escape(facts)):
        program(text)


@pytest.mark.parametrize("more", ["", "import lightning\n"])
def test_a_program_that_imports_the_hook_is_stopped_by_it(more: str) -> None:
    source = f"{more}from opsctl_hook import saved, should_stop\nsignal.signal(signal.SIGTERM, save)\n"
    assert program("torchrun train.py", files={"/where/train.py": source}).value("program", "stop") == "hook"


def test_a_short_limit_and_a_warning_of_slurm_leave_time_for_the_save() -> None:
    head = HEAD.replace("20:00:00", "20:00")
    draft = program("torchrun train.py", head=head)
    assert (draft.value("slurm", "exit_margin"), draft.value("program", "grace")) == ("0:05:00", None)
    draft = program("torchrun train.py", head=f"{HEAD}#SBATCH --signal=USR1@120\n")
    assert (draft.value("slurm", "exit_margin"), draft.value("program", "grace")) == ("0:02:00", "0:01:00")
    assert draft.value("program", "stop") == "SIGUSR1"
    assert program("torchrun train.py", head=f"{HEAD}#SBATCH --signal=B:USR1@120\n").value("program", "stop") is None


def test_odd_commands_are_no_fault_of_the_reader() -> None:
    draft = program('srun -N\nsrun bash -c ""\ntorchrun train.py --all "$*" --some "x$@" --one $1')
    assert draft.value("program", "command")[:2] == ["torchrun", "train.py"]
    assert {note.line for note in (*draft.fill_in, *draft.notes)} >= {7}


def described(draft: Draft, folder: Path) -> Program:
    found = program_of(written(draft, folder).file, folder)
    assert found is not None
    return found


def test_every_run_file_is_read_back(tmp_path: Path) -> None:
    for number, text in enumerate(STARTS):
        draft = program(text, head=HEAD + "#SBATCH --ntasks-per-node=4\n")
        assert list(described(draft, tmp_path / str(number)).command) == draft.value("program", "command")
