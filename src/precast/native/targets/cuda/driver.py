"""The CUDA driver, as far as launching kernels needs it. Never imports torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from precast.errors import BuildError

_SHARED_WITHOUT_ASKING = 48 * 1024
_MAX_DYNAMIC_SHARED = 8


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


@cache
def driver() -> ctypes.CDLL:
    """The driver's library; a ``BuildError`` if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError(
            "there is no CUDA driver",
            why=str(error),
            fix="install NVIDIA's driver, or compile for the CPU",
        ) from None


def check(status: int, what: str) -> None:
    """Raise what a status says, unless it says that all went well."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise DriverError(f"{what}: {(text.value or b'unknown error').decode()} (CUDA error {status})")


class LoadedKernel:
    """A kernel in the current context."""

    def __init__(self, code: bytes, symbol: str, shared: int, warps: int, signature: Sequence[str]):
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(self.module), code), f"loading the kernel {symbol}")
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, symbol.encode()), symbol)
        if shared > _SHARED_WITHOUT_ASKING:
            check(driver().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED, shared), symbol)
        self.symbol, self.shared, self.threads = symbol, shared, 32 * warps
        # Triton's kernels take two more pointers, to scratch memory that ours do not use.
        count = len(signature) + 2
        self.values = (ctypes.c_uint64 * count)()
        address = ctypes.addressof(self.values)
        self.parameters = (ctypes.c_void_p * count)(*(address + 8 * number for number in range(count)))

    def launch(self, programs: int, addresses: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        values = self.values
        for number, value in enumerate((*addresses, *sizes)):
            values[number] = value
        status = driver().cuLaunchKernel(
            self.function,
            programs,
            1,
            1,
            self.threads,
            1,
            1,
            self.shared,
            ctypes.c_void_p(stream),
            self.parameters,
            None,
        )
        check(status, f"launching {self.symbol}")
