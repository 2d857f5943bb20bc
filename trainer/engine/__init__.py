"""DeepSpeed's pipeline engine, and everything that touches its private members.

`tests/unit/trainer/engine/test_private_members.py` lists these members and names the first one that a release of
DeepSpeed no longer has. `trainer.core.preload` alone is below this package: it replaces two of DeepSpeed's decorators
while DeepSpeed is imported.
"""

import trainer.parallel.process_groups  # noqa: F401 - imports torch and DeepSpeed as `trainer.core.preload` does
