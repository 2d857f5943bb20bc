"""What a kernel takes of its multiprocessor, from what NVIDIA's assembler says while it compiles (`ptxas -v`)."""

from __future__ import annotations

import re

_ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


def resources_in(said: str) -> dict[str, dict[str, int]]:
    """kernel -> registers per thread, static shared bytes per block, spilled bytes and stack bytes per thread."""
    found = {}
    for entry in _ENTRY.finditer(said):
        shared = _SHARED.search(entry["rest"])
        found[entry["kernel"]] = {
            "registers": int(entry["registers"]),
            "shared_bytes": int(shared[1]) if shared else 0,
            "spilled_bytes": int(entry["stores"]) + int(entry["loads"]),
            "stack_bytes": int(entry["stack"]),
        }
    return found
