"""Print attributes of all jobs that pyslurm knows as JSON rows: `python -m opsctl.slurm.pyslurm_program id name`.

This is the only place where pyslurm is loaded. It is GPL-2, and libslurm, which it loads, ends its whole process if it
finds no configuration. An error is on stderr, with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Print the attributes that the command line names."""
    # libslurm prints to stdout too; the answer has a descriptor of its own.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        import pyslurm
    except ImportError as error:
        sys.exit(f"pyslurm cannot be loaded: {error}")
    try:
        jobs = pyslurm.Jobs.load().values()
    except pyslurm.PyslurmError as error:
        sys.exit(str(error))
    json.dump([[getattr(job, name) for name in sys.argv[1:]] for job in jobs], answer)
    answer.close()


if __name__ == "__main__":
    main()
