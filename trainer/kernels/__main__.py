"""`python -m trainer.kernels --why [-- OPTIONS]`: print the implementation of each operation here, and the reason."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from trainer.core.console import failed, say
from trainer.formats.json_text import printed_json_text
from trainer.recipe.options import OptionsError, parse, to_arguments

#: Options of a model for the default: the choice depends on few options.
_ANY_MODEL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 128, "vocab_size": 256}
_ANY = {**_ANY_MODEL, "micro_batch_size": 1, "lr": 1e-4, "train_iters": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 for wrong usage or constraints that are not met."""
    arguments = _parser().parse_args(argv)
    import torch

    from trainer.kernels.choice import choose

    if arguments.device == "cuda" and not torch.cuda.is_available():
        return failed("--device cuda: torch finds no GPU here", 2)
    kind = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    try:
        paths = choose(parse(arguments.options or to_arguments(_ANY)), device).paths
    except OptionsError as error:
        return failed(str(error), 2)
    if arguments.json:
        sys.stdout.write(printed_json_text("kernels", [asdict(path) for path in paths], device=device.type))
        return 0
    width = max(len(path.family) for path in paths)
    for path in paths:
        say(f"{path.family:{width}}  {path.by:6}  {path.why}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m trainer.kernels", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--why", action="store_true", required=True, help="print each implementation and the reason")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="[default: the GPU where there is one]")
    parser.add_argument("--json", action="store_true", help="print JSON with schema_version")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: a training's own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
