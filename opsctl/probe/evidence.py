"""What a probe puts on record against nodes."""

from __future__ import annotations

from opsctl.probe.report import ProbeReport, Standing
from opsctl.probe.words import against
from opsctl.records.node_evidence import NodeEvidence, append_node_evidence
from opsctl.runs.paths import RunPaths

#: How sure it is that a node is to blame that was found bad by measurement.
_CONFIDENCE = 0.9


def put_on_record(paths: RunPaths, found: ProbeReport, attempt: str = "") -> None:
    """A line for each node whose hardware is bad; what is only suspicious is no evidence, nor what is installed.

    attempt: its id. Raises OSError.
    """
    for one in found.of(Standing.BAD):
        words = against(one)
        if not words:
            continue
        evidence = NodeEvidence(
            node=one.node,
            kind="probe",
            at=found.at,
            words=words,
            confidence=_CONFIDENCE,
            attempt=attempt,
            by="probe",
        )
        append_node_evidence(paths, evidence)
