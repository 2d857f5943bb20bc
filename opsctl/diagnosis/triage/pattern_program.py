"""The program that a site's regular expressions are tried in, a line of JSON for each; it imports nothing of ours.

Whatever takes longer than it may ends this process, and with it nothing else: no thread can be kept from `re`.
"""

from __future__ import annotations

import json
import re
import signal
import sys


def main(longest_s: float) -> None:
    """Answer `{"pattern", "text"}` with `{"start", "named"}`, or null; ends by SIGVTALRM over one that takes longer.

    It first says that it is ready. longest_s: of processor time, so that a machine with other work cuts none short.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, longest_s)
        match = re.search(asked["pattern"], asked["text"])
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        found = match and {"start": match.start(), "named": match.groupdict()}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
