"""The labels of the corpus: complete, with every cause, and with the stated number of really caused failures."""

from __future__ import annotations

import functools
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
CAUSES = frozenset(
    {"gpu-error", "gpu-ecc", "gpu-lost", "nccl", "network", "gpu-oom", "host-oom", "shm", "node-failure", "time-limit"}
    | {"preempted", "cancelled", "disk-full", "quota", "data", "checkpoint", "user-code", "diverged", "hang", "unknown"}
)
ORIGINS = frozenset({"captured", "published", "made"})
HARDWARE = frozenset({"gpu-error", "gpu-ecc", "gpu-lost", "nccl", "node-failure"})
LARGEST_BYTES = 60_000
LARGEST_SUM_BYTES = 4_000_000
#: Of the machine that the faults were caused on.
_TELLTALE = (str(Path(__file__).parents[4]).encode(), b"/tmp/or", b"/tmp/oc", b"capture_faults.py")


@functools.cache
def labels() -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(CORPUS.glob("*/label.json"))}


@functools.cache
def files(name: str) -> dict[str, bytes]:
    """Return a case's files, unpacked, without its label."""
    found = {}
    for path in sorted((CORPUS / name).rglob("*")):
        if path.is_file() and path.name != "label.json":
            data = path.read_bytes()
            found[str(path.relative_to(CORPUS / name))] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def test_each_label_is_complete_and_each_case_has_a_log() -> None:
    for name, label in labels().items():
        assert set(label) == {"cause", "node", "rank", "user_fault", "origin", "about", "source"}, name
        assert label["cause"] in CAUSES and label["origin"] in ORIGINS, name
        assert isinstance(label["user_fault"], bool) and isinstance(label["node"], str), name
        assert label["rank"] is None or (isinstance(label["rank"], int) and label["rank"] >= 0), name
        assert label["about"].endswith(".") and label["about"].count("\n") == 0, name
        assert label["source"] or label["origin"] == "made", name
        assert (CORPUS / name / "main_log.txt").exists() or (CORPUS / name / "main_log.txt.gz").exists(), name


def test_each_node_that_is_to_be_named_is_named_in_the_case() -> None:
    nodes = {name: label["node"] for name, label in labels().items() if label["node"]}
    unnamed = [name for name, node in nodes.items() if node.encode() not in b"\n".join(files(name).values())]
    assert [name for name in unnamed if nodes[name] not in _nodes_of_accounting(name)] == []


def test_no_error_of_a_user_is_labelled_as_hardware() -> None:
    assert not [name for name, label in labels().items() if label["user_fault"] and label["cause"] in HARDWARE]


def test_every_cause_has_three_cases_and_sixty_faults_were_really_caused() -> None:
    causes = Counter(label["cause"] for label in labels().values())
    assert {cause: causes[cause] for cause in CAUSES if causes[cause] < 3} == {}
    assert len(labels()) >= 120
    assert sum(label["origin"] == "captured" for label in labels().values()) >= 60


def test_the_corpus_is_small_and_tells_nothing_of_where_it_was_made() -> None:
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert max(sizes) <= LARGEST_BYTES and sum(sizes) <= LARGEST_SUM_BYTES
    told = [name for name in labels() for data in files(name).values() if any(words in data for words in _TELLTALE)]
    assert told == []


def _nodes_of_accounting(name: str) -> list[str]:
    """Return the nodes of sacct's last row, unfolded."""
    from opsctl.slurm.nodes import expand_nodes
    from opsctl.slurm.rows import FIELD_END

    rows = files(name).get("sacct.txt", b"").decode().strip().splitlines()
    return expand_nodes(rows[-1].split(FIELD_END)[5]) if rows else []
