"""The kinds of training programs by their names in `[program] kind`."""

from __future__ import annotations

from opsctl.run.programs import lightning, litgpt, megatron_lm, nemo, torchtitan, transformers
from opsctl.run.programs.kind import Kind

KINDS: dict[str, Kind] = {
    one.KIND.name: one.KIND for one in (megatron_lm, nemo, torchtitan, transformers, lightning, litgpt)
}
