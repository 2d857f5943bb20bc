"""torch's types of what a training computes in, by the names that options, checkpoints and other libraries have."""

from __future__ import annotations

import torch

#: By the precision as options and checkpoints name it.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: By torch's own name, as Hugging Face's files have it.
DTYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
