"""What speaks against single nodes, a line each in `.opsctl/node-evidence.jsonl`, only added to by whoever sees it.

Judging is not done here: one line is what was seen, and by whom.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.run.config.paths import RunPaths
from trainer.formats.json_text import Moment


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was seen of a node."""

    node: Annotated[str, Meta(description="Its name.")]
    kind: Annotated[str, Meta(description="A cause of a bad end (`gpu-ecc`), or `slow`, `probe`, `sample`.")]
    at: Annotated[Moment, Meta(description="When it was seen.")]
    words: Annotated[str, Meta(description="What was seen, in a sentence with its numbers.")]
    confidence: Annotated[float, Meta(description="From 0 to 1: how sure it is that the node is to blame.")]
    attempt: Annotated[str, Meta(description="Id of the attempt in which; empty outside of one.")] = ""
    by: Annotated[str, Meta(description="`triage`, `probe`, `watch`, or an account's name.")] = ""


def append_node_evidence(paths: RunPaths, evidence: NodeEvidence) -> None:
    """Add a line. Raises OSError."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.node_evidence, evidence)


def read_node_evidence(paths: RunPaths) -> list[NodeEvidence]:
    """All lines that can be read, in the order they were written."""
    return read_lines(paths.output, paths.node_evidence, NodeEvidence)
