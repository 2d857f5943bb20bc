"""torch's names of what a training computes in."""

from __future__ import annotations

import torch

#: By the precision as options and checkpoints name it.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
