"""Run a probe: test each node alone, then the healthy ones together; return the verdict and record the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.diagnosis.probe.launch import Heard, ask, sorted_answers, srun_line
from opsctl.diagnosis.probe.measures import LATE_END, LINK_RATES
from opsctl.diagnosis.probe.report import ProbeReport, Standing, against, of_hardware
from opsctl.diagnosis.probe.verdict import Expected, judge
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.node_samples import LATE, NETWORK, STEP_END_S, Effort, ProbeLine

#: Passed in the environment, which only the owner can read; all users can list command lines.
_SCRIPT = "OPSCTL_PROBE_SCRIPT"
_RUN_SCRIPT = f'script=${_SCRIPT}; unset {_SCRIPT}; eval "$script"'


@dataclass(frozen=True)
class Setting:
    """The settings of a probe."""

    nodes: Sequence[str]  # in Slurm's order
    job_id: int
    python: Sequence[str]  # the interpreter's command on the nodes
    script: str  # sets up the run's environment, then executes its arguments
    folder: Path  # the run's folder, shared by all nodes
    environment: Mapping[str, str]
    meeting: Callable[[str], tuple[str, int]]  # first node -> address and port
    expected: Expected

    def command(self, nodes: Sequence[str], words: Sequence[str]) -> list[str]:
        """Return the srun command of one pass."""
        program = [
            "/bin/bash",
            "-c",
            _RUN_SCRIPT,
            "probe.sh",
            *self.python,
            "-u",
            "-m",
            "trainer.launcher.probing",
            *words,
        ]
        return srun_line(nodes, program)

    def variables(self) -> dict[str, str]:
        """Return the environment of that command."""
        return {**self.environment, _SCRIPT: self.script}


def probe(setting: Setting, effort: Effort, is_to_end: Callable[[], bool] = lambda: False) -> ProbeReport:
    """Test the nodes. Raises OpsctlError if no node could be tested, or if the job has to leave."""
    began, at = time.monotonic(), now()
    alone = _alone(setting, effort, is_to_end)
    gone = {**alone.late, **alone.lost}
    through = [one.node for one in sorted_answers(setting.nodes, alone.lines, gone) if one.ended and not one.lost]
    together = _together(setting, effort, through, is_to_end) if len(through) > 1 else Heard()
    if alone.cut_short or together.cut_short:
        raise OpsctlError("the probe was stopped because the job is leaving")
    late = {**late_together(together, through), **alone.late}
    unheard = [ProbeLine(node=node, part=NETWORK, what=LATE, text=why) for node, why in together.late.items()]
    answers = sorted_answers(
        setting.nodes, [*alone.lines, *together.lines, *unheard], {**together.lost, **alone.lost}, late
    )
    judgement = judge(answers, setting.expected)
    return ProbeReport(
        at=at,
        effort=effort.name,
        took_s=round(time.monotonic() - began, 2),
        nodes=judgement.nodes,
        general=judgement.general,
        not_seen=judgement.not_seen,
        links=judgement.links,
    )


def late_together(heard: Heard, nodes: Sequence[str]) -> dict[str, str]:
    """Return the nodes that did not start the second pass, if most did. A later hang may be a wait for another."""
    begun = {line.node for line in heard.lines}
    if 2 * len(begun) <= len(nodes):
        return {}
    return {node: f"in the network test: {why}" for node, why in heard.late.items() if node not in begun}


def _alone(setting: Setting, effort: Effort, is_to_end: Callable[[], bool]) -> Heard:
    turn = f"opsctl-probe-{setting.job_id}"
    words = ["node", "--effort", effort.name, "--folder", str(setting.folder), "--turn", turn]
    limit_s = effort.nodes_s + STEP_END_S / 2
    heard = ask(setting.command(setting.nodes, words), setting.variables(), setting.nodes, limit_s, is_to_end)
    if not heard.lines and not heard.cut_short:
        why = next((line for line in heard.words if "error" in line.lower()), "".join(heard.words[:1]))
        raise OpsctlError(f"no node could be tested: {why or 'nothing was printed'}")
    return heard


def _together(setting: Setting, effort: Effort, nodes: Sequence[str], is_to_end: Callable[[], bool]) -> Heard:
    address, port = setting.meeting(nodes[0])
    words = ["network", "--effort", effort.name, "--nodes", str(len(nodes)), "--address", address, "--port", str(port)]
    words += ["--ranks-per-node", str(max(setting.expected.gpus_per_node, 1))]
    limit_s = effort.network_s + STEP_END_S / 2
    return ask(setting.command(nodes, words), setting.variables(), nodes, limit_s, is_to_end)


#: The confidence in evidence by measurement, and by a late node or slow links only, for which a switch may be the
#: cause: two of the latter exceed Policy.least_score even if the first is hours old.
_CONFIDENCE, _CONFIDENCE_UNSURE = 0.9, 0.55


def record_evidence(paths: RunPaths, found: ProbeReport, attempt: str = "") -> None:
    """Record evidence against nodes whose hardware is bad or slow. attempt: its id. Raises OSError."""
    for one in (*found.of(Standing.BAD), *found.of(Standing.SLOW)):
        reasons = of_hardware(one)
        if not reasons:
            continue
        is_unsure = all(one.measure.endswith(LATE_END) or one.measure in LINK_RATES for one in reasons)
        evidence = NodeEvidence(
            node=one.node,
            kind="probe",
            at=found.at,
            words=against(one),
            confidence=_CONFIDENCE_UNSURE if is_unsure else _CONFIDENCE,
            attempt=attempt,
            by="probe",
        )
        append_node_evidence(paths, evidence)
