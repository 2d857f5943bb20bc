"""Compiling a `.cu` file by NVRTC, the compiler as a library, in a process that can be ended.

python -m trainer.kernels.native.nvrtc LIBRARY CUBIN SOURCE FLAGS
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from trainer.kernels.native.toolchains import CompilerError


def compile_by_nvrtc(path: Path, source: Path, flags: tuple[str, ...], cubin: Path) -> str:
    """Write `cubin`; what the compiler says, its assembler's words of each kernel's registers among it.

    path: of NVRTC's library. Raises CompilerError with its first error, OSError.
    """
    library = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), str(source).encode(), ctypes.c_int(0), None, None
        ),
    )
    try:
        # Without the first it takes a generic lambda in a kernel for a host's function.
        words = [flag.encode() for flag in (*flags, "-default-device", "--ptxas-options=-v")]
        failed = library.nvrtcCompileProgram(program, ctypes.c_int(len(words)), (ctypes.c_char_p * len(words))(*words))
        said = _text(library, "ProgramLog", program).decode(errors="replace")
        if failed:
            first = next((line for line in said.splitlines() if "error" in line), said.strip() or f"error {failed}")
            raise CompilerError(first)
        cubin.write_bytes(_text(library, "CUBIN", program))
        return said
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(library: ctypes.CDLL, failed: int) -> None:
    if failed:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompilerError(f"NVRTC: {library.nvrtcGetErrorString(ctypes.c_int(failed)).decode()}")


def main(words: list[str]) -> int:
    """0 with what the compiler says on standard output, 1 with its error on the other."""
    library, cubin, source, *flags = words
    try:
        sys.stdout.write(compile_by_nvrtc(Path(library), Path(source), tuple(flags), Path(cubin)))
    except (CompilerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
