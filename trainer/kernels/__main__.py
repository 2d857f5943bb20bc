"""`python -m trainer.kernels --why [-- OPTIONS]`: who computes what in a training with these options, here, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from trainer.formats.json_text import json_file_text
from trainer.recipe.options import OptionsError, parse, to_arguments
from trainer.say import failed

#: Some model's, where nothing is said of it: what is chosen hangs on few of a model's options.
_ANY_MODEL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 128, "vocab_size": 256}
_ANY = {**_ANY_MODEL, "micro_batch_size": 1, "lr": 1e-4, "train_iters": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """0 told, 2 wrong usage, or constraints that are not met under --abort-on-unmet-fused-kernel-constraints."""
    parser = argparse.ArgumentParser("python -m trainer.kernels", description=__doc__, allow_abbrev=False)
    parser.add_argument("--why", action="store_true", required=True, help="say who computes what, and why")
    parser.add_argument("--json", action="store_true", help="print JSON with schema_version")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: a training's own")
    arguments = parser.parse_args(argv)
    import torch

    from trainer.kernels.choice import choose

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        options = parse(arguments.options or to_arguments(_ANY), world_size=1)
        paths = choose(options, device).paths
    except OptionsError as error:
        return failed(str(error), 2)
    if arguments.json:
        told = {"schema_version": 1, "device": device.type, "kernels": [asdict(path) for path in paths]}
        sys.stdout.write(json_file_text(told))
        return 0
    width = max(len(path.family) for path in paths)
    for path in paths:
        print(f"{path.family:{width}}  {path.by:6}  {path.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
