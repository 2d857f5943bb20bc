"""`python -m benchmarks.simulate`: one comparison, or with --docs the page and its picture."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.simulate.page import PICTURE, page, picture
from benchmarks.simulate.setting import THREE_MONTHS_DAYS
from benchmarks.simulate.study import SIZE, of_size, study
from benchmarks.simulate.words import table

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def main(words: list[str]) -> int:
    """As the options say. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--nodes", type=int, default=SIZE, help="that it trains on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--days", type=float, default=THREE_MONTHS_DAYS)
    parser.add_argument("--shared", action="store_true", help="in a queue with everybody else")
    parser.add_argument("--all", action="store_true", help="ours without each decision too")
    parser.add_argument("--docs", action="store_true", help="write docs/simulation.md and its picture")
    asked = parser.parse_args(words)
    began = time.monotonic()
    if asked.docs:
        found = study(asked.days)
        (_DOCS / PICTURE).write_text(picture(found))
        (_DOCS / "simulation.md").write_text(page(found))
    else:
        print(table(of_size(asked.nodes, asked.seeds, asked.days, asked.shared, asked.all)))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
