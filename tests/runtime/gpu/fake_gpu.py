"""A GPU that is none: its driver and libraries are built from C++ here, its kernels run in Triton's interpreter."""

import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precast.native.targets.cuda.build.cubins import Cubin
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.runtime.gpu import device, driver
from tests.native.cuda.interpreted import InterpretingLauncher

FOLDER = Path(__file__).parent
LIBRARIES = {
    "fake_driver.cpp": "libcuda.so.1", "fake_cublaslt.cpp": "libcublasLt.so.13", "fake_cudnn.cpp": "libcudnn.so.9",
}  # fmt: skip
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p))


class FakeGpu:
    """What a test does with it. Libraries are found by their names since they are loaded already."""

    def __init__(self, folder: Path):
        built = [self._build(source, name, folder) for source, name in LIBRARIES.items()]
        self.driver, *self.others = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in built]
        self.driver.fake_allocated.restype = ctypes.c_long
        self.sources: list[KernelSource] = []
        self.launcher = InterpretingLauncher(self.sources, folder)
        self._run = _RUN(self.run)
        self.driver.fake_run(self._run)

    def _build(self, source: str, name: str, folder: Path) -> Path:
        made = folder / name
        command = ["g++", "-O1", "-std=c++20", "-shared", "-fPIC", f"-Wl,-soname,{name}", FOLDER / source, "-o", made]
        subprocess.run(command, check=True)
        return made

    @property
    def allocated(self) -> int:
        return int(self.driver.fake_allocated())

    @contextmanager
    def settings(self, **values: int) -> Iterator[None]:
        """Another driver or GPU, found anew."""
        usual = {"init": 0, "devices": 1, "major": 9, "minor": 0, "version": 13000, "load": 0, "pending": 0}
        try:
            self._set(values)
            yield
        finally:
            self._set(usual)

    def _set(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            self.driver.fake_set(name.encode(), ctypes.c_long(value))
        driver.driver.cache_clear()
        device.gpu.cache_clear()

    def run(self, symbol: bytes, programs: int, parameters: Any) -> None:
        """A launch; what goes wrong in it fails the test as an error that nobody can catch."""
        number = int(symbol.decode().rpartition("_")[2])
        signature = self.sources[number].signature
        values = [ctypes.c_int64.from_address(parameters[each]).value for each in range(len(signature))]
        pointers = sum(each.startswith("*") for each in signature)
        self.launcher.launch(number, programs, values[:pointers], values[pointers:])

    def start_cubins(self, sources: Sequence[KernelSource], architecture: int, store: Any) -> Any:
        """In place of machine code: the number of the source."""
        first = len(self.sources)
        self.sources += sources
        cubins = [Cubin(f"kernel_{first + each}", 0, 4, b"\x7fELF") for each in range(len(sources))]
        return lambda: cubins
