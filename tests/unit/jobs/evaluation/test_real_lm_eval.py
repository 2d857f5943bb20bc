"""With lm-eval itself, in a Python of its own as `make evaluation` makes one: the numbers of its own `simple_evaluate`.

Tasks are made of local files, and nothing is fetched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.shipped import templates_folder
from opsctl.jobs.evaluation.brief import evaluations_seen
from opsctl.run.config.load import load_run_file
from tests.printed_json import printed
from tests.unit.jobs.evaluation.evaluated_runs import checkpoint_of_a_model, paths_of
from trainer.convert.hf import export_program
from trainer.tasks import curves

PYTHON = Path(sys.prefix, "lm-eval", "bin", "python")
if not PYTHON.exists():
    pytest.skip("no lm-eval here: make evaluation", allow_module_level=True)

STEP = 20
_CHOICE = """\
task: cats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
fewshot_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["mat", "hat"]
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
_WORD = """\
task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: " mat"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


def tasks_in(folder: Path) -> Path:
    """Two tasks that are answered, and one whose data are not there."""
    folder.mkdir()
    data = folder / "data.jsonl"
    rows = [{"question": f"the cat sat on the {['mat', 'hat', 'sofa'][n % 3]} {n}", "answer": n % 2} for n in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "cats.yaml").write_text(_CHOICE.format(data=data))
    (folder / "words.yaml").write_text(_WORD.format(data=data))
    (folder / "lost.yaml").write_text(_CHOICE.format(data=folder / "none.jsonl").replace("task: cats", "task: lost"))
    return folder


#: What lm-eval says by itself of a model's folder and tasks; and of names.
_BY_ITSELF = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
model, tasks, to = sys.argv[1:]
manager = TaskManager(include_path=tasks, metadata={"pretrained": model})
found = simple_evaluate(model="hf", model_args={"pretrained": model}, tasks=["cats", "words"], num_fewshot=2, limit=10,
                        batch_size="4", device="cpu", task_manager=manager, log_samples=False)
open(to, "w").write(json.dumps(found["results"]))
"""
_NAMES = """
import json, sys
from lm_eval.tasks import TaskManager
manager = TaskManager()
open(sys.argv[1], "w").write(json.dumps({"single": manager.all_subtasks, "tags": manager.all_tags}))
"""


def asked_itself(folder: Path, program: str, *words: str) -> Any:
    """Return what such a program writes, run in lm-eval's Python."""
    answer = folder / "answer.json"
    subprocess.run([PYTHON, "-c", program, *words, str(answer)], check=True, timeout=600, capture_output=True)
    return json.loads(answer.read_text())


def opsctl(folder: Path, *words: str, code: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", *words], capture_output=True, text=True, timeout=900, check=False, cwd=folder
    )
    assert done.returncode == code, done.stderr
    return done


def points_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {tag: [(one.step, one.value) for one in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}


def test_every_task_of_blooms_example_is_one_task_of_todays(tmp_path: Path) -> None:
    file = load_run_file(templates_folder() / "examples" / "tr11-176B-ml.toml", {}).file
    assert file.evaluation is not None and len(set(file.evaluation.tasks)) == 28
    found = asked_itself(tmp_path, _NAMES)
    assert [one for one in file.evaluation.tasks if one not in found["single"]] == []


def test_the_results_are_lm_evals_own_on_the_same_export(tmp_path: Path) -> None:
    tasks, folder = tasks_in(tmp_path / "tasks"), tmp_path / "run"
    (folder / "output").mkdir(parents=True)
    (folder / "run.toml").write_text(
        '[run]\nname = "judged"\n[slurm]\nnodes = 1\ngpus_per_node = 1\ntime = "1:00:00"\n[evaluation]\n'
        f'every = {STEP}\ntasks = ["cats", "words", "lost", "no_such_task"]\npython = "{PYTHON}"\ndevice = "cpu"\n'
        f'few_shot = 2\nlimit = 10\nbatch_size = "4"\ninclude = ["{tasks}"]\n'
        f'[env]\nHF_DATASETS_OFFLINE = "1"\nHF_HUB_OFFLINE = "1"\nHF_HOME = "{tmp_path / "hf"}"\n'
    )
    checkpoint_of_a_model(tmp_path, paths_of(folder).checkpoints, STEP)

    done = opsctl(folder, "evaluate", "--json", code=1)
    (found,) = printed("evaluate", done.stdout)
    assert {one["name"]: one["state"] for one in found["tasks"]} == {
        "cats": "done",
        "words": "done",
        "lost": "failed",
        "no_such_task": "missing",
    }
    assert " lost (" in found["detail"] and ": no_such_task" in found["detail"]

    exported = tmp_path / "exported"
    assert export_program.main([f"--output={exported}", f"--step={STEP}", "--", str(paths_of(folder).checkpoints)]) == 0
    theirs = asked_itself(tmp_path, _BY_ITSELF, str(exported), str(tasks))
    for name in ("cats", "words"):
        ours = json.loads((paths_of(folder).evaluation(STEP) / f"{name}.json").read_text())
        assert ours["results"][name] == theirs[name]
    metrics = {one["name"]: one["metrics"].get(one["name"], {}) for one in found["tasks"]}
    assert metrics["cats"]["acc"] == theirs["cats"]["acc,none"]

    points = points_in(paths_of(folder).tensorboard / "lm-eval")
    ((step, acc),) = points["lm-eval/cats/acc"]
    ((samples, other),) = points["lm-eval/words/acc vs samples"]
    assert (step, samples) == (STEP, 160)
    assert [acc, other] == pytest.approx([theirs["cats"]["acc,none"], theirs["words"]["acc,none"]])
    seen = evaluations_seen(paths_of(folder))
    assert seen is not None and f"iteration {STEP} failed, 2 of 4 tasks" in seen.told and "lost" in seen.told
    curves.main([f"{found['folder']}/results.json", str(paths_of(folder).tensorboard / "lm-eval")])
    assert points_in(paths_of(folder).tensorboard / "lm-eval") == points  # drawn twice, there once

    (tasks / "lost.yaml").write_text((tasks / "cats.yaml").read_text().replace("task: cats", "task: lost"))
    again = opsctl(folder, "evaluate", "--step", str(STEP), code=1)  # one is missing still
    assert "cats: answered before" in again.stderr and "[1 of 1] lost: done" in again.stderr
