"""Launches on a GPU, by CUDA's driver (libcuda) alone: no toolkit, no compiler, no binding to be built.

The GPU's primary context is taken, which is the one that torch has, so addresses and streams are torch's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.kernels.native.launching import DeviceFacts, KernelError, Launch, argument_pointers
from trainer.kernels.native.libraries import Cubins

_LIBRARY = "libcuda.so.1"
#: What a block may have of dynamic shared memory without asking. CUDA's 48 KiB count a kernel's static bytes too, which
#: are those of its sums: 1 KiB at most where it has both.
_SHARED_UNASKED = 47 << 10
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
#: Numbers of CUdevice_attribute.
_ATTRIBUTES = {
    "multiprocessors": 16,
    "threads_per_multiprocessor": 39,
    "registers_per_multiprocessor": 82,
    "shared_bytes_per_multiprocessor": 81,
    "shared_bytes_per_block": 97,
    "l2_bytes": 38,
}
_MAJOR, _MINOR = 75, 76


class CudaDriver:
    """libcuda's functions, each error an exception that names it. Raises KernelError where there is no driver."""

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise KernelError(f"no CUDA driver here: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of libcuda. Raises KernelError with CUDA's name and text of the error."""
        self.check(function, getattr(self._library, function)(*arguments))

    def function(self, name: str, *types: Any) -> Callable[..., int]:
        """Return a function of libcuda for repeated calls; `check` takes its result."""
        found = self._library[name]  # a separate object, whose types are not shared
        found.argtypes = types
        return found

    def check(self, function: str, failed: int) -> None:
        """Raise KernelError with CUDA's name and text of the error, if `function` returned one."""
        if failed:
            name, words = ctypes.c_char_p(), ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(failed), ctypes.byref(name))
            self._library.cuGetErrorString(ctypes.c_int(failed), ctypes.byref(words))
            said = " ".join(one.value.decode() for one in (name, words) if one.value) or f"error {failed}"
            raise KernelError(f"{function}: {said}")

    def device(self, number: int) -> ctypes.c_int:
        """Return CUDA's handle of this process's GPU `number`."""
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(number))
        return handle

    def facts(self, device: ctypes.c_int) -> DeviceFacts:
        """Return the facts for planning launches."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        capability = (self._attribute(_MAJOR, device), self._attribute(_MINOR, device))
        numbers = {field: self._attribute(number, device) for field, number in _ATTRIBUTES.items()}
        return DeviceFacts(name=name.value.decode(), capability=capability, **numbers)

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
        return value.value


class CudaRunner:
    """A `KernelRunner` on one GPU. Every cubin is loaded here: one that the driver refuses is known before a step.

    current_stream: the address of the stream to launch on, asked at each launch (torch's
    `torch.cuda.current_stream().cuda_stream`). Raises KernelError.
    """

    def __init__(self, driver: CudaDriver, device: int, cubins: Cubins, current_stream: Callable[[], int]) -> None:
        handle = driver.device(device)
        self.facts = driver.facts(handle)
        self._driver = driver
        self._cubins = cubins
        self._current_stream = current_stream
        self._get_current = driver.function("cuCtxGetCurrent", ctypes.c_void_p)
        self._launch = driver.function(
            "cuLaunchKernel", ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )
        self._context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.make_current()
        self._modules = {file: self._module(file) for file in dict.fromkeys(cubins.files.values())}
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._shared_allowed: dict[str, int] = {}

    def launch(self, launch: Launch) -> None:
        """Start a kernel on the current stream. Does not wait for its end."""
        self.make_current()
        kernel, shared_bytes = launch.kernel, launch.shared_bytes
        function = self._functions.get(kernel) or self._function(kernel)
        if shared_bytes > self._shared_allowed.get(kernel, _SHARED_UNASKED):
            self._driver.call(
                "cuFuncSetAttribute", function, ctypes.c_int(_MAX_DYNAMIC_SHARED), ctypes.c_int(shared_bytes)
            )
            self._shared_allowed[kernel] = shared_bytes
        pointers = argument_pointers(launch.arguments)
        stream = self._current_stream()
        failed = self._launch(function, *launch.grid, *launch.block, shared_bytes, stream, pointers, None)
        if failed:
            self._say_which(launch, failed)

    def make_current(self) -> None:
        """Give the calling thread the GPU's context. A thread without CUDA calls, such as autograd's, has none."""
        current = ctypes.c_void_p()
        self._driver.check("cuCtxGetCurrent", self._get_current(ctypes.byref(current)))
        if current.value != self._context.value:
            self._driver.call("cuCtxSetCurrent", self._context)

    def _say_which(self, launch: Launch, failed: int) -> None:
        try:
            self._driver.check("cuLaunchKernel", failed)
        except KernelError as error:
            raise KernelError(f"{launch.kernel} on {launch.grid} blocks of {launch.block} threads: {error}") from None

    def _function(self, kernel: str) -> ctypes.c_void_p:
        file = self._cubins.files.get(kernel)
        if file is None:
            raise KernelError(f"{kernel}: not among the kernels that were built for {self._cubins.architecture}")
        function = ctypes.c_void_p()
        self._driver.call("cuModuleGetFunction", ctypes.byref(function), self._modules[file], kernel.encode())
        self._functions[kernel] = function
        return function

    def _module(self, file: Path) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        try:
            self._driver.call("cuModuleLoadData", ctypes.byref(module), file.read_bytes())
        except (OSError, KernelError) as error:
            raise KernelError(f"{file}: {error}") from None
        return module


def smoke(driver: CudaDriver, cubin: Path) -> None:
    """Run `csrc/cuda/smoke.cu` on the first GPU. Raises KernelError if it fails or gives wrong numbers."""
    threads = 64
    runner = CudaRunner(driver, 0, Cubins("", {"smoke_f32": cubin}), lambda: 0)
    runner.make_current()
    numbers, address = (ctypes.c_float * threads)(), ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(ctypes.sizeof(numbers)))
    try:
        runner.launch(Launch("smoke_f32", (1, 1, 1), (threads, 1, 1), 0, (ctypes.c_void_p(address.value),)))
        driver.call("cuMemcpyDtoH_v2", numbers, address, ctypes.c_size_t(ctypes.sizeof(numbers)))
    finally:
        driver.call("cuMemFree_v2", address)
    wrong = [at for at in range(threads) if numbers[at] != at + threads / 32]
    if wrong:
        raise KernelError(f"smoke_f32 gave {numbers[wrong[0]]} where {wrong[0] + threads / 32} is right: {cubin}")
