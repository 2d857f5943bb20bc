"""DeepSpeed's universal checkpoints: a folder of states for each parameter as a whole, whatever the layout was.

    latest_universal                              the folder's name, beside it
    FOLDER/universal.json                         the manifest, which this trainer adds
    FOLDER/mp_rank_XX_model_states.pt             what the engine and the training say of themselves
    FOLDER/zero/optimizer_state.pt                what all parameters have in common
    FOLDER/zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt

A parameter is called as DeepSpeed's pipeline calls it, by the number of its layer. Each file but the step's has a
dictionary: `param` the tensor, `cat_dim` along which tensor-parallel ranks share it (without: each has it whole),
`vocab_tensor` of one whose rows past the vocabulary are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trainer.formats.checkpoint.manifest import SavedParameter
from trainer.formats.checkpoint.partitions import engine_name, is_tied
from trainer.formats.checkpoint.saved_parameters import saved_parameters
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import is_of_block

#: Text beside a universal checkpoint: which one DeepSpeed loads.
LATEST_UNIVERSAL = "latest_universal"
#: The folder with a folder for each parameter, and the file beside them.
ZERO, COMMON_STATE = "zero", "optimizer_state.pt"
#: What this trainer adds: the manifest of the checkpoint that was converted, with the files of this one.
UNIVERSAL_MANIFEST = "universal.json"
#: What the training says of its parameters in every checkpoint, so that DeepSpeed's programs can put them together.
INFO = "universal_checkpoint_info"
#: The parameter in one of its files, the dimension along which it is shared, and that its padding is left out.
PARAM, CAT_DIM, VOCABULARY_TENSOR = "param", "cat_dim", "vocab_tensor"
#: The file with how many steps the optimizer has counted.
STEP = "step"
_VERSION = 0.4


def universal_checkpoint_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """How DeepSpeed's programs put together the parameters of the model that a manifest's `model` describes.

    Lists of regular expressions, each of which matches some parameter, and no parameter two of one list. Those that all
    tensor-parallel ranks hold count as one that has to be equal, not as an average, which would hide that they drifted.
    """
    shape = ModelShape.of_facts(model)
    table = saved_parameters(shape)

    def patterns(belongs: Callable[[SavedParameter], bool]) -> list[str]:
        return list(dict.fromkeys(_pattern(one) for one in table if belongs(one)))

    tied = [re.escape(engine_name(one)) + "$" for one in table if one.token_rows is not None and is_tied(table)]
    return {
        "universal_checkpoint_version": _VERSION,
        "original_vocab_size": shape.tokens,
        "padded_vocab_size": shape.vocabulary,
        "vocabulary_parameter_patterns": patterns(lambda one: one.token_rows is not None),
        "pipeline_replicated_parameter_patterns": tied,
        "tp_replicated_parameter_patterns": patterns(lambda one: one.split_dim is None),
        "parameter_with_row_parallelism_patterns": patterns(lambda one: one.split_dim == 1),
    }


def _pattern(one: SavedParameter) -> str:
    """What matches the parameter's name; that of a block those of all blocks."""
    if is_of_block(one.name):
        return rf"\d+\.{re.escape(one.name_in_layer)}$"
    return re.escape(engine_name(one)) + "$"
