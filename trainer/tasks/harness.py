"""`PYTHON trainer/tasks/harness.py REQUEST`: run lm-eval tasks one by one on a model's folder.

It runs in an environment that has lm-eval but not this project, so it imports nothing of ours. REQUEST is a JSON file,
or - for stdin. With `model` in it the tasks are run, and each result is written to OUTPUT/NAME.json when it is
complete. Without `model` the last printed line lists which names are tasks. Each task runs lm-eval's own
`simple_evaluate`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

#: Precedes the list of names, because libraries print other lines.
MARK = "opsctl-tasks:"
#: The parts of simple_evaluate's result to keep: no samples and no facts about the host.
_KEPT = ("results", "groups", "group_subtasks", "versions", "n-shot", "n-samples", "higher_is_better", "configs")


def main(path: str) -> int:
    """Return 0 if the request was handled, whatever the tasks' results; 1 if it could not be."""
    request = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        sys.stderr.write(f"opsctl: {sys.executable} has no lm-eval that starts: {error}\n")
        return 1
    manager = TaskManager(
        include_path=request["include"] or None, metadata=_model(request) if "model" in request else {}
    )
    if "model" not in request:
        known = [name for name in request["tasks"] if name in manager.all_tasks]
        print(MARK + json.dumps({"version": str(getattr(lm_eval, "__version__", "")), "known": known}), flush=True)
        return 0
    return _run(request, manager)


def _model(request: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of lm-eval's `hf` model, as on its own command line."""
    from lm_eval.utils import simple_parse_args_string

    return {"pretrained": request["model"], **simple_parse_args_string(",".join(request["model_args"]))}


def _run(request: dict[str, Any], manager: Any) -> int:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model

    device = request["device"] or _device()
    settings = {"batch_size": request["batch_size"], "max_batch_size": None, "device": device}
    try:
        model = get_model("hf").create_from_arg_obj(_model(request), settings)
    except Exception as error:
        sys.stderr.write(f"opsctl: lm-eval cannot load the model: {_one_line(error)}\n")
        return 1
    output = Path(request["output"])
    for number, name in enumerate(request["tasks"], 1):
        began = time.monotonic()
        try:
            found = simple_evaluate(
                model=model,
                tasks=[name],
                num_fewshot=request["few_shot"],
                limit=request["limit"] or None,
                batch_size=request["batch_size"],
                device=device,
                task_manager=manager,
                log_samples=False,
            )
            said = {key: found[key] for key in _KEPT if key in found}
        except Exception as error:  # one task's data may be missing, and the others must still run
            said = {"error": _one_line(error)}
        marks = {"task": name, "of": request["of"], "under": request["under"]}
        said = {**marks, "seconds": round(time.monotonic() - began, 3), **said}
        _write(output / f"{name}.json", json.dumps(_plain(said), indent=2) + "\n")
        state = said.get("error") or f"done in {said['seconds']} s"
        print(f"[{number} of {len(request['tasks'])}] {name}: {state}", flush=True)
    return 0


def _device() -> str:
    """Return the device. lm-eval's default requires a GPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _plain(value: Any) -> Any:
    """Return a value that JSON can express: numpy's numbers as numbers, no nan, functions by name."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    return getattr(value, "__name__", None) or str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
