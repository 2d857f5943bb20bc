"""Build compiled operations before a training: `python -m trainer.kernels.native build|list|check`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from trainer.core.console import complain, failed, printable, say
from trainer.formats.attempt.kernels import BuiltArtifact, KernelCache
from trainer.formats.json_text import printed_json_text
from trainer.kernels.native.artifacts import ARCHITECTURES, Artifact
from trainer.kernels.native.building import build
from trainer.kernels.native.cache import CacheError, cache_folders
from trainer.kernels.native.inventory import artifacts_for_here, every_artifact, kernel_cache, told
from trainer.kernels.native.toolchains import CompilerError

_SOUND = ("ok", "built")
_ARCH = "GPUs by compute capability, 7.0 8.0 9.0 without it"


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 if all requested artifacts are there, 1 if not, 2 for wrong usage."""
    arguments = _parser().parse_args(words)
    try:
        cache_folders()
        named = [_architecture(one) for one in arguments.arch]
        wanted = list(artifacts_for_here(named) if arguments.here else every_artifact(named or ARCHITECTURES))
        if arguments.verb == "build":
            found = _build(wanted, arguments.jobs)
        else:
            found = kernel_cache(wanted, thoroughly=arguments.verb == "check")
    except (ValueError, CacheError) as error:
        return failed(str(error), 2)
    except OSError as error:
        return failed(f"{error.filename or 'the sources'}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        return failed("interrupted; complete artifacts stay", 130)
    if arguments.json:
        sys.stdout.write(printed_json_text("kernels", found))
    else:
        for line in _table(found):
            say(line)
    for one in found.artifacts:
        if one.state == "failed":
            complain(f"opsctl: {one.name}: {printable(' '.join(one.why.split()))}")
    return int(arguments.verb != "list" and any(one.state not in _SOUND for one in found.artifacts))


def _build(wanted: list[Artifact], jobs: int) -> KernelCache:
    """Build the artifacts; one that fails does not prevent the others."""
    done: list[BuiltArtifact] = []
    for artifact in wanted:
        try:
            built = build(artifact, jobs)
            done.append(told(artifact, "built", "", built))
        except (CompilerError, CacheError, OSError) as error:
            done.append(told(artifact, "failed", str(error), None))
    return KernelCache(folders=[str(folder) for folder in cache_folders()], artifacts=done)


def _table(found: KernelCache) -> list[str]:
    width = max((len(one.name) for one in found.artifacts), default=0)
    lines = []
    for one in found.artifacts:
        facts = [f"{one.kernels} kernels"] if one.kernels else []
        facts += [one.compiler] if one.compiler else []
        facts += ["used here"] if one.used_here else []
        facts += [one.why] if one.why and one.state != "failed" else []
        lines.append(f"{one.name.ljust(width)}  {one.state.ljust(9)}  {printable(', '.join(facts))}".rstrip())
    return [*lines, f"in {printable(', '.join(found.folders))}"]


def _architecture(text: str) -> str:
    """Return `8.0`, `80` or `sm_80` as `sm_80`. Raises ValueError."""
    read = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)", text)
    if not read:
        raise ValueError(f"--arch: {text!r} is no compute capability such as 8.0")
    return f"sm_{read[1]}{read[2]}"


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m trainer.kernels.native", description=__doc__)
    verbs = result.add_subparsers(dest="verb", required=True, metavar="build|list|check")
    for verb, words in (
        ("build", "build missing artifacts"),
        ("list", "list the artifacts"),
        ("check", "load the artifacts, and check sources and checksums"),
    ):
        one = verbs.add_parser(verb, help=words)
        one.add_argument("--arch", nargs="+", action="extend", default=[], metavar="M.N", help=_ARCH)
        one.add_argument("--here", action="store_true", help="only what this machine's CPU and GPU take")
        one.add_argument("--json", action="store_true", help="print JSON with schema_version")
        one.set_defaults(jobs=1)
        if verb == "build":
            one.add_argument("--jobs", type=_positive, default=1, metavar="N", help="compilers at once")
    return result


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
