"""What a probe puts on record against nodes."""

from __future__ import annotations

from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.diagnosis.probe.measures import LATE_END, LINK_RATES
from opsctl.diagnosis.probe.report import ProbeReport, Standing
from opsctl.diagnosis.probe.summary import against, of_hardware
from opsctl.run.config.paths import RunPaths

#: How sure it is that a node is to blame that was found bad or slow by measurement, and one that was only late or has
#: slow links, for which its switch may be to blame: two such lines outweigh Policy.least_score even when the first is
#: hours old.
_CONFIDENCE, _CONFIDENCE_UNSURE = 0.9, 0.55


def put_on_record(paths: RunPaths, found: ProbeReport, attempt: str = "") -> None:
    """A line for each node whose hardware is bad or slow; what is only suspicious is no evidence, nor is what is
    installed.

    attempt: its id. Raises OSError.
    """
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
