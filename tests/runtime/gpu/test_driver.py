"""Launches through the driver."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from precast.runtime.gpu import driver


def test_threads_launch_with_their_own_arguments(monkeypatch):
    seen = set[int]()

    def launch(function: Any, programs: int, *others: Any) -> int:
        time.sleep(0.001)
        seen.add(ctypes.c_uint64.from_address(others[7][0]).value * 1000 + programs)
        return 0

    functions = {name: lambda *arguments: 0 for name in ("cuModuleLoadData", "cuModuleGetFunction")}
    fake = SimpleNamespace(**functions, cuLaunchKernel=launch)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    kernel = driver.LoadedKernel(b"", "kernel", 0, 4, 1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: kernel.launch(number, [number], [], 0), range(40)))
    assert seen == {1001 * number for number in range(40)}
