"""A program that asks Slurm through pyslurm, and the only place where that is loaded: `python -m` this module.

pyslurm is GPL-2, and libslurm, which it loads, ends its whole process where it finds no configuration: here that is
this process, whose parent reads the words. It answers one JSON line for each that it reads, until its input ends:

    {"ask": "jobs" | "nodes", "fields": [names of pyslurm's attributes]} -> {"rows": [[value, ...], ...]}
    {"ask": "partitions", "fields": [...]} -> as well
    anything that Slurm refused -> {"error": Slurm's words}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    # libslurm prints where it likes; what the parent reads as answers is a descriptor that only we have.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        import pyslurm
    except ImportError as error:
        print(json.dumps({"error": f"pyslurm cannot be loaded: {error}"}), file=answers, flush=True)
        return
    collections = {"jobs": pyslurm.Jobs, "nodes": pyslurm.Nodes, "partitions": pyslurm.Partitions}
    print(json.dumps({"release": pyslurm.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = collections[asked["ask"]].load().values()
            answer: dict[str, Any] = {"rows": [[getattr(one, name) for name in asked["fields"]] for one in found]}
        except pyslurm.PyslurmError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
