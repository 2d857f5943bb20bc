"""Compare verdicts with a corpus's labels: each case is a folder as a failure leaves it, with its label."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from opsctl.diagnosis.nodes.node_evidence import last_samples
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.findings import Facts, SlurmEnd
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.on_close import with_record
from opsctl.diagnosis.triage.read_evidence import part_of_attempt, read_attempt
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.events import Event
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.slurm.nodes import parse_nodes
from opsctl.slurm.rows import parse_accounting
from tests.unit.diagnosis.triage.folded import unfolded

#: Of a captured training: its number is not on its record.
_MOST_ATTEMPTS = 3
HARDWARE = {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE}


@dataclass(frozen=True)
class Scored:
    """One case: the label and the verdict."""

    name: str
    label: dict[str, Any]
    verdict: Verdict

    @property
    def cause_is_right(self) -> bool:
        return self.verdict.cause == str(self.label["cause"])

    @property
    def node_is_right(self) -> bool:
        return self.verdict.node == str(self.label["node"])

    @property
    def blames_hardware_for_the_user(self) -> bool:
        return bool(self.label["user_fault"]) and self.verdict.cause in HARDWARE

    def told(self) -> str:
        said = self.verdict
        return (
            f"{self.name}: {self.label['cause']} on {self.label['node'] or '-'} rank {self.label['rank']}; "
            f"said {said.cause} on {said.node or '-'} rank {said.rank} ({said.confidence}): {said.summary[:150]}"
        )


def score(corpus: Path, scratch: Path) -> list[Scored]:
    """Judge every case of `corpus`; `scratch` is for unpacked files."""
    return [_scored(folder, scratch) for folder in cases(corpus)]


def cases(corpus: Path) -> Iterator[Path]:
    yield from sorted(path.parent for path in corpus.glob("*/label.json"))


def _scored(case: Path, scratch: Path) -> Scored:
    label = json.loads((case / "label.json").read_text())
    return Scored(case.name, label, decide(facts_of(_unpacked(case, scratch)), shipped_rules()))


def facts_of(case: Path) -> Facts:
    word, nodes = _slurm(case)
    folder, record = case / "attempt", case / "attempt.json"
    log = case / "main_log.txt"
    if not record.is_file():
        return read_attempt(case, folder, LogPart(log), nodes, word, shipped_rules(), 20)
    attempt = msgspec.json.decode(record.read_bytes(), type=Event)
    parts = (part_of_attempt(case, log, number, attempt.job_id, 20) for number in range(1, _MOST_ATTEMPTS + 1))
    part = next(filter(None, parts), LogPart(log))
    found = read_attempt(case, folder, part, nodes, word, shipped_rules(), 20)
    return with_record(found, attempt, last_samples(case, folder))


def _unpacked(case: Path, scratch: Path) -> Path:
    if not any(case.rglob("*.gz")):
        return case
    to = scratch / case.name
    shutil.copytree(case, to)
    for path in to.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    return to


def _slurm(case: Path) -> tuple[SlurmEnd, tuple[str, ...]]:
    exit_file, accounting, node_file = case / "exit.json", case / "sacct.txt", case / "nodes.txt"
    told = json.loads(exit_file.read_text()) if exit_file.is_file() else {}
    ends = list(parse_accounting(accounting.read_text(), datetime.now(UTC)).values()) if accounting.is_file() else []
    nodes = unfolded(ends[-1].nodes) if ends else ()
    bad = [
        (node.name, node.reason)
        for node in (parse_nodes(node_file.read_text()) if node_file.is_file() else [])
        if node.name in nodes and node.is_out_of_service
    ]
    state = ends[-1].state if ends else told.get("slurm_state", "")
    return SlurmEnd(state, (), told.get("exit_code"), told.get("signal"), bad_nodes=tuple(bad)), nodes
