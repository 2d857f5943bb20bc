"""`python -m trainer.generation.program CHECKPOINTS --prompt TEXT`: generate text, also on a CPU.

`opsctl generate` starts it. The whole text is computed again for each token, without a cache, so the computation is
exactly the training's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.convert.hf.export import found_checkpoint
from trainer.convert.workers import run_program
from trainer.core.console import failed, printable
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.formats.checkpoint.exchanged import GeneratedText
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.json_text import printed_json_text

NEW_TOKENS = 64


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl generate` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.generation.program",
        description="Generate text with a checkpoint's model.",
        allow_abbrev=False,
    )
    result.add_argument("checkpoints", type=Path, help="folder with global_stepN folders")
    result.add_argument("--step", type=int, help="iteration of the checkpoint [default: the latest one's]")
    result.add_argument("--prompt", action="append", required=True, help="the beginning of a text, can be repeated")
    result.add_argument(
        "--max-new-tokens", type=int, default=NEW_TOKENS, help="the largest number of tokens to generate"
    )
    result.add_argument("--temperature", type=float, default=0.0, help="0 takes the most likely token")
    result.add_argument("--top-k", type=int, default=0, help="sample from this many most likely; 0: from all")
    result.add_argument("--seed", type=int, default=1, help="seed of the sampling")
    result.add_argument("--tokenizer", type=Path, help="the tokenizer [default: the training's]")
    result.add_argument(
        "--dtype", choices=list(DTYPES_BY_NAME), help="type of the weights [default: float32, on a GPU as saved]"
    )
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure or refusal, 2 for wrong usage, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    for option, is_right, allowed in (
        ("--max-new-tokens", arguments.max_new_tokens >= 1, "a number of at least 1"),
        ("--temperature", 0 <= arguments.temperature < float("inf"), "a number of at least 0"),
        ("--top-k", arguments.top_k >= 0, "a number of at least 0, 0 for all"),
        ("--seed", 0 <= arguments.seed < 1 << 63, "a number from 0 to 2^63 - 1"),
    ):
        if not is_right:
            return failed(f"{option}: must be {allowed}", 2)
    return run_program(lambda: _generate(arguments))


def _generate(arguments: argparse.Namespace) -> None:
    found = found_checkpoint(arguments.checkpoints, arguments.step)
    done = []
    for said in _said(found, arguments):
        done.append(said)
        if not arguments.json:
            print(f"{_readable(said.prompt)}{_readable(said.text)}", flush=True)
            sys.stderr.write(f"opsctl: global_step{said.iteration}: {len(said.tokens)} tokens, {said.ended}\n")
    if arguments.json:
        sys.stdout.write(printed_json_text("generated", done))


def _said(found: Found, arguments: argparse.Namespace) -> list[GeneratedText]:
    from trainer.generation.texts import LoadedModel, Speaker

    speaker = Speaker(LoadedModel(found, arguments.dtype), found.manifest, arguments.tokenizer)
    prompts = [speaker.tokens_of(prompt) for prompt in arguments.prompt]  # check all prompts before generating
    result = []
    for text, tokens in zip(arguments.prompt, prompts, strict=True):
        drawing = arguments.temperature, arguments.top_k, arguments.seed
        new, ended = speaker.go_on(tokens, arguments.max_new_tokens, *drawing)
        result.append(
            GeneratedText(
                folder=str(found.folder.absolute()),
                iteration=found.manifest.iteration,
                prompt=text,
                prompt_tokens=len(tokens),
                text=speaker.text_of(tokens, new),
                tokens=new,
                ended=ended,
                dtype=speaker.model.dtype,
                temperature=arguments.temperature,
                top_k=arguments.top_k,
                seed=arguments.seed,
            )
        )
    return result


def _readable(text: str) -> str:
    """Keep line breaks, and remove characters that control a terminal."""
    return "\n".join(line.replace("\t", "    ") if line.isprintable() else printable(line) for line in text.split("\n"))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
