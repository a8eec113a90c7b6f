"""The CUDA driver through ctypes: the functions used, and its errors in plain words. Never imports torch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache

from precast.errors import GpuError

_SHARED_WITHOUT_ASKING = 48 * 1024
_MAX_DYNAMIC_SHARED = 8
_MAJOR, _MINOR = 75, 76
"""Device attributes."""
_OUT_OF_MEMORY, _NO_DEVICE, _ASSERT = 2, 100, 710
_WRONG_CODE = (200, 209, 218, 222)
"""Errors for images that do not suit this device or driver."""

_ADDRESS, _STREAM, _EVENT = c_uint64, c_void_p, c_void_p
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, _STREAM, POINTER(c_void_p), c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (_STREAM,),
    "cuStreamWaitEvent": (_STREAM, _EVENT, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (_EVENT, _STREAM),
    "cuEventQuery": (_EVENT,),
    "cuEventDestroy_v2": (_EVENT,),
    "cuMemPoolCreate": (POINTER(c_void_p), c_void_p),
    "cuMemPoolSetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemAllocFromPoolAsync": (POINTER(_ADDRESS), c_size_t, c_void_p, _STREAM),
    "cuMemFreeAsync": (_ADDRESS, _STREAM),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, c_void_p, c_size_t, _STREAM),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _ADDRESS, c_size_t, _STREAM),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, c_size_t, _STREAM),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


@cache
def driver() -> ctypes.CDLL:
    """The initialized driver library; a ``GpuError`` if there is none, or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise GpuError(
            "there is no CUDA driver on this machine",
            why=str(error),
            fix="install NVIDIA's driver, or run on the CPU: device='cpu'",
        ) from None
    for name, arguments in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise GpuError(
                f"the CUDA driver is too old: it has no {name}",
                why="programs need a driver for CUDA 12 or newer",
                fix="install a newer driver of NVIDIA's, or run on the CPU: device='cpu'",
            ) from None
        function.argtypes, function.restype = list(arguments), c_int
    status = library.cuInit(0)
    if status:
        raise GpuError(
            "the CUDA driver finds no GPU" if status == _NO_DEVICE else "the CUDA driver does not start",
            why=_description(library, status),
            fix="run nvidia-smi to see what it finds; run on the CPU: device='cpu'",
        )
    return library


def _description(library: ctypes.CDLL, status: int) -> str:
    text = c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} (CUDA error {status})"


def check(status: int, what: str) -> None:
    """Raise the error of a status, unless it is success."""
    if not status:
        return
    message = f"{what}: {_description(driver(), status)}"
    if status == _OUT_OF_MEMORY:
        raise MemoryError(message)
    if status == _ASSERT:
        # As in torch, nothing can run on the device in this process any more.
        raise IndexError(
            f"{message}. A check in the program failed, for example an index out of bounds; its message is "
            "on standard error, and this process has to be restarted"
        )
    raise DriverError(message, status)


def driver_version() -> tuple[int, int]:
    """The newest CUDA version that the driver supports."""
    number = c_int()
    check(driver().cuDriverGetVersion(ctypes.byref(number)), "asking for the driver's version")
    return number.value // 1000, number.value % 1000 // 10


@dataclass(frozen=True)
class FoundGpu:
    """A GPU as the driver reports it; `capability` is 90 for sm_90."""

    handle: int
    name: str
    capability: int


def found_gpus() -> tuple[FoundGpu, ...]:
    """Every GPU that the driver finds; none is initialized."""
    count = c_int()
    check(driver().cuDeviceGetCount(ctypes.byref(count)), "counting GPUs")
    return tuple(map(_found_gpu, range(count.value)))


def _found_gpu(ordinal: int) -> FoundGpu:
    device, major, minor, name = c_int(), c_int(), c_int(), ctypes.create_string_buffer(256)
    check(driver().cuDeviceGet(ctypes.byref(device), ordinal), "finding the GPU")
    check(driver().cuDeviceGetName(name, len(name), device), "asking for the GPU's name")
    for number, value in ((_MAJOR, major), (_MINOR, minor)):
        check(driver().cuDeviceGetAttribute(ctypes.byref(value), number, device), "asking the GPU")
    return FoundGpu(device.value, name.value.decode(), 10 * major.value + minor.value)


class LoadedKernel:
    """A kernel loaded in the current context."""

    def __init__(self, code: bytes, symbol: str, shared: int, warps: int, parameters: int):
        self.module, self.function = c_void_p(), c_void_p()
        status = driver().cuModuleLoadData(ctypes.byref(self.module), code)
        if status in _WRONG_CODE:
            raise GpuError(
                f"the CUDA driver does not accept the kernel {symbol}",
                why=_description(driver(), status),
                fix="install a newer driver of NVIDIA's, or package the model for this GPU",
            )
        check(status, f"loading the kernel {symbol}")
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, symbol.encode()), symbol)
        if shared > _SHARED_WITHOUT_ASKING:
            check(driver().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED, shared), symbol)
        self.symbol, self.shared, self.threads, self.lock = symbol, shared, 32 * warps, threading.Lock()
        # Triton's kernels have two more parameters, pointers to scratch memory that ours do not use.
        count = parameters + 2
        self.values = (c_uint64 * count)()
        address = ctypes.addressof(self.values)
        self.parameters = (c_void_p * count)(*(address + 8 * number for number in range(count)))

    def launch(self, programs: int, addresses: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        values = self.values
        # The values are read during the call; other threads write theirs to the same memory.
        with self.lock:
            for number, value in enumerate((*addresses, *sizes)):
                values[number] = value
            status = driver().cuLaunchKernel(
                self.function, programs, 1, 1, self.threads, 1, 1, self.shared, stream, self.parameters, None
            )
        check(status, f"launching {self.symbol}")
