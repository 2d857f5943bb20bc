"""`python -m trainer.kernels --why [-- OPTIONS]`: print the implementation of each operation here, and the reason.

`--measure [-- OPTIONS]` (`opsctl kernels measure`): time each implementation, for trainings to choose by.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainer.core.console import complain, failed, printable, say
from trainer.formats.json_text import printed_json_text
from trainer.recipe.options import OptionsError, parse, to_arguments

if TYPE_CHECKING:
    import torch

    from trainer.formats.attempt.kernels import FamilyTimes

#: Options of a model for the default: the choice depends on few options.
_ANY_MODEL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 128, "vocab_size": 256}
_ANY = {**_ANY_MODEL, "micro_batch_size": 1, "lr": 1e-4, "train_iters": 1}
#: The default sizes of a measurement: usual ones for such a device.
_MEASURED: dict[str, dict[str, Any]] = {
    "cuda": {"hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "micro_batch_size": 4, "bf16": True},
    "cpu": {"hidden_size": 512, "num_attention_heads": 8, "seq_length": 512, "micro_batch_size": 4},
}
_VOCABULARY = {"cuda": 50_304, "cpu": 8192}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 1 if nothing could be measured or stored, 2 for wrong usage or constraints that are not met."""
    arguments = _parser().parse_args(argv)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        return failed("--device cuda: torch finds no GPU here", 2)
    kind = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    try:
        if arguments.measure:
            return _measure(arguments.options, device, arguments.json)
        return _why(arguments.options, device, arguments.json)
    except OptionsError as error:
        return failed(str(error), 2)


def _why(words: list[str], device: torch.device, as_json: bool) -> int:
    from trainer.kernels.choice import choose
    from trainer.kernels.times import kept_times

    operations = choose(parse(words or to_arguments(_ANY)), device, kept_times(device))
    if as_json:
        told = [asdict(path) for path in operations.paths]
        notes = list(operations.notes)
        sys.stdout.write(printed_json_text("kernels", told, device=device.type, notes=notes))
        return 0
    width = max(len(path.family) for path in operations.paths)
    for path in operations.paths:
        say(f"{path.family:{width}}  {path.by:6}  {path.why}")
    for note in operations.notes:
        say(printable(note))
    return 0


def _measure(words: list[str], device: torch.device, as_json: bool) -> int:
    from trainer.kernels.measuring import measured
    from trainer.kernels.native.cache import CacheError
    from trainer.kernels.times import keep

    kind = device.type
    some = {**_ANY, "vocab_size": _VOCABULARY[kind], **_MEASURED[kind]}
    options = parse(words or to_arguments(some))
    times = measured(options, device, lambda line: complain(f"opsctl: {printable(line)}"))
    try:
        target = keep(times, device)
    except (OSError, CacheError) as error:
        return failed(f"cannot store the times: {error}", 1)
    if as_json:
        sys.stdout.write(printed_json_text("times", times))
        return 0
    for line in times_lines(times.families):
        say(line)
    say(f"of {printable(times.device)}, torch {times.torch}; trainings here choose by {printable(str(target))}")
    return 0


def times_lines(families: Sequence[FamilyTimes]) -> list[str]:
    """Return a line for each family: its shape, and each implementation's microseconds, the fastest first."""
    lines = []
    for one in families:
        ways = sorted(one.seconds.items(), key=lambda way: way[1])
        told = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in ways)
        what = f"{one.family} ({one.kind})" if one.kind else one.family
        lines.append(f"{what:24}  {one.shape:22}  {one.precision}  us: {told}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m trainer.kernels", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    verb = parser.add_mutually_exclusive_group(required=True)
    verb.add_argument("--why", action="store_true", help="print each implementation and the reason")
    verb.add_argument("--measure", action="store_true", help="time each implementation, for trainings to choose by")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="[default: the GPU where there is one]")
    parser.add_argument("--json", action="store_true", help="print JSON with schema_version")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: a training's own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
