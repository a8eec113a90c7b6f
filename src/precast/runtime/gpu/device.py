"""One GPU of this machine: its memory, and a stream in which everything runs in order."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from ctypes import c_int, c_uint64, c_void_p
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np

from precast.errors import GpuError
from precast.runtime.gpu.driver import DriverError, check, driver, found_gpus

_NON_BLOCKING = 1
_WITHOUT_TIMES = 2
_RELEASE_THRESHOLD = 4
_NOT_READY = 600
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _PoolProperties(ctypes.Structure):
    """``CUmemPoolProps``: memory of one device that stays in this process."""

    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", c_int),
        ("device", c_int),
        ("security", c_void_p),
        ("largest", ctypes.c_size_t),
        ("others", ctypes.c_char * 64),
    )


class Gpu:
    """A GPU in its primary context, which other libraries in the process share. Enter it to use it."""

    def __init__(self, ordinal: int):
        found = found_gpus()
        if not 0 <= ordinal < len(found):
            raise GpuError(
                f"there is no GPU number {ordinal}" if found else "there is no GPU",
                why=f"the CUDA driver finds {len(found)}",
                fix="name one that is there, for example device='cuda:0'; or run on the CPU: device='cpu'",
            )
        handle, self.name, self.capability = found[ordinal].handle, found[ordinal].name, found[ordinal].capability
        self.ordinal, self.lock = ordinal, threading.RLock()
        self._held: deque[tuple[c_void_p, object]] = deque()
        self.context, self.stream, self._pool = c_void_p(), c_void_p(), c_void_p()
        check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(self.context), handle), "starting the GPU")
        with self:
            check(driver().cuStreamCreate(ctypes.byref(self.stream), _NON_BLOCKING), "making a stream")
            properties = _PoolProperties(kind=1, location=1, device=handle)
            check(driver().cuMemPoolCreate(ctypes.byref(self._pool), ctypes.byref(properties)), "making a pool")
            everything = c_uint64(2**64 - 1)
            kept = driver().cuMemPoolSetAttribute(self._pool, _RELEASE_THRESHOLD, ctypes.byref(everything))
            check(kept, "setting up the pool")

    def __enter__(self) -> Gpu:
        check(driver().cuCtxPushCurrent_v2(self.context), "using the GPU")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver().cuCtxPopCurrent_v2(ctypes.byref(c_void_p()))

    def allocate(self, size: int) -> Block:
        """Allocate memory; a block of zero bytes has an address, too."""
        return Block(self, size)

    def upload(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copy a dense array to an address; the caller may reuse the array at once."""
        if array.nbytes:
            source = array.__array_interface__["data"][0]
            check(driver().cuMemcpyHtoDAsync_v2(address, source, array.nbytes, self.stream), "copying to the GPU")

    def download(self, address: int, size: int) -> Bytes:
        """Read `size` bytes, after all earlier work."""
        made = np.empty(size, np.uint8)
        if size:
            status = driver().cuMemcpyDtoHAsync_v2(made.ctypes.data, address, size, self.stream)
            check(status, "copying from the GPU")
        self.synchronize()
        return made

    def copy(self, target: int, source: int, size: int) -> None:
        if size:
            check(driver().cuMemcpyDtoDAsync_v2(target, source, size, self.stream), "copying on the GPU")

    def synchronize(self) -> None:
        check(driver().cuStreamSynchronize(self.stream), "running the program")

    def follow(self, first: int | None, second: int | None) -> None:
        """Make the second stream wait for the current work of the first."""
        event = c_void_p()
        check(driver().cuEventCreate(ctypes.byref(event), _WITHOUT_TIMES), "making an event")
        check(driver().cuEventRecord(event, first), "recording an event")
        check(driver().cuStreamWaitEvent(second, event, 0), "waiting for an event")
        check(driver().cuEventDestroy_v2(event), "ending an event")

    def hold(self, owners: object) -> None:
        """Keep owners alive until all work that is now in the stream is done: it reads their memory."""
        while self._held and driver().cuEventQuery(self._held[0][0]) != _NOT_READY:
            driver().cuEventDestroy_v2(self._held.popleft()[0])
        event = c_void_p()
        check(driver().cuEventCreate(ctypes.byref(event), _WITHOUT_TIMES), "making an event")
        check(driver().cuEventRecord(event, self.stream), "recording an event")
        self._held.append((event, owners))


@cache
def gpu(ordinal: int) -> Gpu:
    """The GPU of this number, shared by all models."""
    return Gpu(ordinal)


class Block:
    """Memory on a GPU, freed when no longer referenced: after the work in the stream and in its readers' streams."""

    def __init__(self, gpu: Gpu, size: int):
        address = c_uint64()
        status = driver().cuMemAllocFromPoolAsync(ctypes.byref(address), max(size, 1), gpu._pool, gpu.stream)
        self.gpu, self.address = gpu, 0
        check(status, f"allocating {size} bytes on the GPU")
        self.address = address.value
        self.readers: set[int] = set()

    def __del__(self) -> None:
        if not self.address:
            return
        try:
            with self.gpu:
                for stream in self.readers:
                    self.gpu.follow(stream, self.gpu.stream.value)
                driver().cuMemFreeAsync(self.address, self.gpu.stream)
        except (DriverError, IndexError):
            # After a failed assertion, the device accepts no more calls.
            pass
