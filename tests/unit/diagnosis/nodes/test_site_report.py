from __future__ import annotations

from datetime import UTC, datetime

import pytest

from opsctl.diagnosis.nodes.listing import SeenNode
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.diagnosis.nodes.site_report import clean, draft
from tests.facts import missing

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
ECC = NodeEvidence(
    node="n2",
    kind="gpu-ecc",
    at=NOON,
    words="rank 3: CUDA error: uncorrectable ECC error, see /gpfs/ann/run/logs/main_log.txt",
    confidence=0.95,
    attempt="4711-ab12",
    by="triage",
)
SEEN = SeenNode(
    node="n2", state="idle", reason="", is_out_of_service=False, jobs=(), score=0.95, evidence=(), exclusion=None
)


def test_a_report_has_times_jobs_and_numbers_and_no_paths_of_the_run() -> None:
    title, body = draft([SEEN], {"n2": [ECC]}, "ann", NOON)
    assert "n2" in title and missing(body, "n2", "idle", "job 4711", "gpu-ecc", "0.95") == []
    assert "uncorrectable ECC error" in body and "/gpfs" not in body


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no space on /scratch/ann/x.bin left", "no space on [path] left"),
        ("sent to https://user:pw@host/x?token=1 failed", "sent to [address] failed"),
        ("key hf_AbCdEfGhIjKlMnOpQrStUv1234 was used", "key [...] was used"),
        ("8/8 GPUs, 1.5 GB/s\nand more", "8/8 GPUs, 1.5 GB/s\\nand more"),
    ],
)
def test_paths_addresses_and_keys_are_left_out(text: str, expected: str) -> None:
    assert clean(text) == expected
