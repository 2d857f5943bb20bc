"""Runs whose checkpoints are evaluated, and an lm-eval that does as it is told: no real one fails when a test likes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsctl.jobs.evaluation.execute import Evaluation
from opsctl.jobs.evaluation.harness import Harness
from opsctl.jobs.evaluation.records import Due, choose
from opsctl.jobs.evaluation.settings import Settings, settings_of
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import view
from tests.unit.jobs.control.checkpoint_runs import save

#: What stands where lm-eval would. `told/NAME` says what becomes of a task: words of an error, or `wait`.
_STANDS_IN = """
import json, pathlib, time
TOLD = pathlib.Path("{told}")
__version__ = "9.9"

def simple_evaluate(model, tasks, **settings):
    name = tasks[0]
    with (TOLD / "ran").open("a") as file:
        file.write(name + "\\n")
    assert (pathlib.Path(model) / "model.safetensors").is_file()
    told = (TOLD / name).read_text() if (TOLD / name).exists() else ""
    while told == "wait":
        (TOLD / "waits").touch()
        time.sleep(0.02)
    if told:
        raise RuntimeError(told)
    found = {{"alias": name, "sample_len": 4, "acc,none": 0.25, "acc_stderr,none": float("nan"), "em,strict": 1}}
    return {{"results": {{name: found}}, "samples": [1], "versions": {{name: 1}}}}
"""
_TASKS = """
class TaskManager:
    def __init__(self, include_path=None, metadata=None):
        self.all_tasks = ["cats", "dogs", "sst2", "birds"]
"""
_REGISTRY = """
class _Model:
    @classmethod
    def create_from_arg_obj(cls, arguments, settings):
        return arguments["pretrained"]

def get_model(name):
    assert name == "hf"
    return _Model
"""


def a_run(folder: Path, *iterations: int, tasks: Sequence[str] = ("cats", "dogs"), more: str = "every = 10") -> Path:
    """A run's folder with such checkpoints, not published, and an lm-eval that stands in."""
    folder.mkdir()
    package = folder / "python" / "lm_eval"
    (package / "api").mkdir(parents=True)
    (folder / "told").mkdir()
    (package / "__init__.py").write_text(_STANDS_IN.format(told=folder / "told"))
    (package / "tasks.py").write_text(_TASKS)
    (package / "utils.py").write_text("def simple_parse_args_string(text):\n    return {}\n")
    (package / "api" / "__init__.py").write_text("")
    (package / "api" / "registry.py").write_text(_REGISTRY)
    (folder / "output").mkdir()
    (folder / "run.toml").write_text(
        '[run]\nname = "judged"\n[slurm]\nnodes = 1\ngpus_per_node = 1\ntime = "1:00:00"\n[evaluation]\n'
        f'tasks = {json.dumps(list(tasks))}\ndevice = "cpu"\n{more}\n[env]\nPYTHONPATH = "{folder / "python"}"\n'
    )
    for iteration in iterations:
        save(folder, iteration)
    return folder


def checkpoint_of_a_model(folder: Path, checkpoints: Path, step: int) -> None:
    """A model of transformers' with its tokenizer, as a run's checkpoint after `step` iterations of eight samples."""
    from transformers import PreTrainedTokenizerFast

    from tests.unit.trainer.convert.hf.conftest import random_model
    from trainer.convert.hf import import_program
    from trainer.data import tokenizer as bpe

    published, tokens = folder / "published", 280
    random_model("bloom", vocab_size=tokens).save_pretrained(published)
    bpe.train(["the cat sat on the mat, the cat sat on the hat"] * 9, tokens).save(str(folder / "tokenizer.json"))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>")
    tokenizer.save_pretrained(published)
    assert import_program.main([str(published), "--output", str(checkpoints)]) == 0
    saved = checkpoints / f"global_step{step}"
    (checkpoints / "global_step0").rename(saved)
    manifest = json.loads((saved / "manifest.json").read_text())
    changed = {**manifest, "iteration": step, "consumed_train_samples": 8 * step}
    (saved / "manifest.json").write_text(json.dumps(changed))


def paths_of(folder: Path) -> RunPaths:
    return RunPaths(folder / "output")


def settings(folder: Path) -> Settings:
    found = settings_of(view(str(folder / "run.toml")))
    assert found is not None
    return found


def due(folder: Path, step: int) -> Due:
    return choose(paths_of(folder), settings(folder).table, step, again=True).due[0]


def trainer(module: str, arguments: Sequence[str]) -> int:
    """Return where the export would be written, a folder with something in it; curves are another user's."""
    if module.endswith("export_program"):
        output = Path(arguments[0].removeprefix("--output="))
        output.mkdir(parents=True)
        (output / "model.safetensors").write_text("weights")
    return 0


def evaluation(
    folder: Path, said: list[str] | None = None, export: Callable[[str, Sequence[str]], int] = trainer
) -> Evaluation:
    own = settings(folder)
    return Evaluation("judged", paths_of(folder), own, Harness(own), export, (said if said is not None else []).append)


def ran(folder: Path) -> list[str]:
    """The tasks that lm-eval was asked for, each time that it was."""
    file = folder / "told" / "ran"
    return file.read_text().split() if file.exists() else []
