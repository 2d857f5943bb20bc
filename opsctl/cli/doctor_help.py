"""The doctor's checks as a page: `python -m opsctl.cli.doctor_help > docs/doctor.md`."""

from __future__ import annotations

from opsctl.core.output import show_text
from opsctl.ui.doctor.registry import CHECKS

HEAD = """\
# The doctor

Made from the checks' own questions by `python -m opsctl.cli.doctor_help > docs/doctor.md`.

`opsctl doctor` says what is missing for this user, this run and this cluster, a line for each check, and below it what
to type. Without a run at hand, or without Slurm, it says what can be said. The worst comes last.

* `ok`; `optional`: it is not there, and nothing of this run needs it; `unknown`: nobody can see from here; `missing`.
  The exit code is 1 where anything is missing or unknown.
* **Nothing is changed.** Locks and clocks are tried by a file that never has a name. Nothing is asked of the internet:
  `opsctl hub check` and `opsctl alerts test` do that.
* **It does not hang.** Every source is asked at the same time as the others and given up after 40 s; what one could not
  tell blinds only the checks that need it, and the first of them says why.
* The run's environment script is started only where nobody but root and you can change it, or whoever your jobs
  go by anyway ([which](environment.md#what-a-training-was-started-with)).
* It looks at the host that it runs on. What nodes have, it says on a node: `opsctl shell`, then `opsctl doctor`."""


def markdown() -> str:
    """The page."""
    rows = (f"| {check.name} | {check.question} |" for check in CHECKS)
    return "\n".join([HEAD, "", "| check | asks |", "|---|---|", *rows])


if __name__ == "__main__":
    show_text(markdown() + "\n")
