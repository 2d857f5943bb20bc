"""Print what pyslurm knows as JSON: `python -m opsctl.slurm.pyslurm_program jobs:id,name nodes:name,state`.

This is the only place where pyslurm is loaded. It is GPL-2, and libslurm, which it loads, ends its whole process if it
finds no configuration. The answer is a list of rows for each question. An error is on stderr, with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer the questions `COLLECTION:ATTRIBUTE,...` of the command line."""
    # libslurm prints to stdout too; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        import pyslurm
    except ImportError as error:
        sys.exit(f"pyslurm cannot be loaded: {error}")
    collections = {"jobs": pyslurm.Jobs, "nodes": pyslurm.Nodes, "partitions": pyslurm.Partitions}
    found = []
    try:
        for question in sys.argv[1:]:
            name, _, fields = question.partition(":")
            rows = collections[name].load().values()
            found.append([[getattr(row, field) for field in fields.split(",")] for row in rows])
    except pyslurm.PyslurmError as error:
        sys.exit(str(error))
    json.dump(found, answers)
    answers.close()


if __name__ == "__main__":
    main()
