"""What tasks of 2022 are called in today's lm-eval, and which of those that are wanted it has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

#: The tasks that BLOOM's training was held to every 10,000 iterations, by the names that they had then.
OF_BLOOM = (
    *("arc_challenge", "arc_easy", "boolq", "copa", "headqa", "hellaswag", "lambada", "logiqa", "mathqa", "mc_taco"),
    *("mrpc", "multirc", "openbookqa", "piqa", "prost", "pubmedqa", "qnli", "qqp", "race", "rte", "sciq", "sst"),
    *("triviaqa", "webqs", "wic", "winogrande", "wnli", "wsc"),
)
#: Name in 2022 -> (name since then, why). The first two are still names, of several tasks together.
RENAMED = {
    "headqa": ("headqa_es", "headqa was the Spanish one; now it is the Spanish and the English one"),
    "lambada": ("lambada_openai", "lambada was OpenAI's form of it; now it is that and the standard one"),
    "sst": ("sst2", "the same of GLUE"),
}


@dataclass(frozen=True)
class Task:
    """A task that is wanted."""

    asked: str  # its name in the run file
    name: str  # its name in lm-eval
    note: str = ""  # why these differ


def tasks_of(asked: Sequence[str]) -> list[Task]:
    """Each with the name that it has now, in their order."""
    found = []
    for one in asked:
        name, note = RENAMED.get(one, (one, ""))
        found.append(Task(one, name, note))
    return found


def tasks_problem(tasks: Sequence[Task]) -> str | None:
    """Why these cannot be evaluated side by side: each has a file of its name."""
    for number, task in enumerate(tasks):
        if task.name == "results":
            return "a task called results cannot be evaluated: results.json is the file of all of them"
        same = next((one for one in tasks[:number] if one.name == task.name), None)
        if same is not None:
            return f"{same.asked} and {task.asked} are the same task, {task.name}: leave one out"
    return None


def missing(tasks: Sequence[Task], known: Collection[str]) -> list[Task]:
    """Those that the lm-eval at hand does not have."""
    return [task for task in tasks if task.name not in known]
