"""`python -m benchmarks.layouts [bf16|modern]`: every layout on up to 8 ranks loads what each saved, bit for bit.

modern: a model with all that came after BLOOM, whose two groups of heads at most two tensor-parallel ranks share.

Some minutes; the gate's `tests/distributed/test_any_layout.py` takes a few of the layouts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path


def main(kind: str = "fp32") -> int:
    """The number of differences, each of which is printed."""
    from tests.distributed.layouts import LAYOUTS, differences, saved_in_all
    from tests.distributed.modern import WITH_NORMS
    from tests.distributed.pool import Pool
    from tests.distributed.whole_training import write_corpus

    pool, started = Pool(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = {"bf16": {"bf16": True}, "modern": WITH_NORMS}.get(kind, {})
            layouts = [one for one in LAYOUTS if one[0] <= 2] if kind == "modern" else LAYOUTS
            saved = saved_in_all(pool, Path(folder), write_corpus(Path(folder)), layouts, **options)
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
