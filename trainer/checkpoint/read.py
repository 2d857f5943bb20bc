"""Reading a checkpoint's file as data.

What torch saves is a pickle, and a pickle can have its reader call anything. A run's folder is shared: whoever may
write there could put a file in its place that runs as whoever trains next. So only tensors, plain values and the few
classes that DeepSpeed puts beside the optimizer's states are made of it.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

#: How torch says what it does not make.
_REFUSED = re.compile(r"(?:GLOBAL|WeightsUnpickler error:) (\S+)")


def _member(of: Any, name: str) -> Any:
    """What a pickled member of an enum asks `getattr` for, and nothing else that it could be asked for."""
    if of is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
        raise pickle.UnpicklingError("builtins.getattr")
    return ZeroStageEnum[name]


_CLASSES: list[Any] = [
    LossScaler,
    DynamicLossScaler,
    ZeroStageEnum,
    fragment_address,
    (_member, "builtins.getattr"),
]


def read_data(path: str, map_location: Any = None) -> Any:
    """What `torch.save` wrote to `path`. Raises OSError, RuntimeError, EOFError, and ValueError for what is no data.

    In DeepSpeed's terms this is the `load` of a checkpoint engine.
    """
    try:
        with torch.serialization.safe_globals(_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        found = _REFUSED.search(str(error))
        what = f" (it asks for {found[1]})" if found else ""
        raise ValueError(f"{path} is not only data{what}, so it is not read: whose file is it?") from None
