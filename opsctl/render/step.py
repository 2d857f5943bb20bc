"""The step script of a revision: what srun starts once on each node. Pure."""

from __future__ import annotations

from opsctl.render.templates import render_template
from opsctl.runs.expanded import ExpandedRun


def step_script(run: ExpandedRun) -> str:
    """The script of a run. It takes the launcher's command as its arguments, and from its environment
    OPSCTL_ATTEMPT_FOLDER, where the node's output goes.
    """
    return render_template("step.sh.j2", environment=run.file.run.environment, env=sorted(run.file.env.items()))
