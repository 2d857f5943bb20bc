"""`python -m benchmarks.layouts [bf16]`: every layout on up to 8 ranks loads what every other one saved, bit for bit.

Some minutes; the gate's `tests/distributed/test_any_layout.py` takes a few of the layouts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path


def main(precision: str = "fp32") -> int:
    """The number of differences, each of which is printed."""
    from tests.distributed.layouts import LAYOUTS, differences, saved_in_all
    from tests.distributed.pool import Pool
    from tests.distributed.whole_training import write_corpus

    pool, started = Pool(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = {"bf16": True} if precision == "bf16" else {}
            saved = saved_in_all(pool, Path(folder), write_corpus(Path(folder)), LAYOUTS, **options)
        finally:
            pool.close()
        print(f"{len(saved)} layouts saved in {time.monotonic() - started:.0f} s", flush=True)
        pairs = [(str(source), str(target)) for source in saved.values() for target in saved.values()]
        found = differences(pairs)
    print("\n".join(found))
    print(f"{len(pairs)} pairs, {len(found)} differences, {time.monotonic() - started:.0f} s in all")
    return len(found)


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
