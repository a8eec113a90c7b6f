"""Opening, state and calls of a packaged model under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import ctypes, random, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import torch
from precast import Dim, export
from precast.artifact.weights import weight_pieces
from precast.native.targets.cpu.build.library import build
from precast.cache import Store
from precast.native.targets.cpu.codegen.generate import generate
from precast.export.serialize.document import to_document
from precast.packaging.native_program import native_program
from precast.packaging.package import own_copy, stored_places
from precast.packaging.storages import SharedStorages
from precast.packaging.traced_program import trace_program
from precast.runtime.entry import Entry, flat_entries
from precast.runtime.native import ABI_VERSION, OpenModel, load_library
from precast.runtime.libraries import preload
from precast.runtime.state import NativeState, State
from tests.packaging.conftest import Normalized
from tests.runtime.test_c_interface import OpenOptions

folder = Path(sys.argv[1])
arguments = ({"x": torch.randn(5, 4)},), {"scale": torch.tensor(2.0)}
shapes = {"inputs": {"x": {0: Dim("batch", min=2, max=64)}}, "scale": None}
document = to_document(export(Normalized(), *arguments, dynamic_shapes=shapes))
storages = SharedStorages()
_, names = storages.add("forward", document)
traced = trace_program(own_copy(document), names)
native = native_program(traced, name="forward", constant_names={})
flags = ["-fsanitize=address,undefined", "-O1", "-fno-sanitize-recover=undefined"]
sources = generate([native.entry], storages=stored_places(storages.state))
library = build(sources, store=Store(folder, limit=2**30), extra_flags=flags)
preload(library.needs)
loaded = load_library(library.path)
weights = b"".join(weight_pieces(storages.weights))

class FromFile(OpenModel):
    def __init__(self, path):
        self.library, self._failures, self.handle = loaded, {}, ctypes.c_void_p()
        self._run = loaded.handle.precast_run
        options = OpenOptions(abi_version=ABI_VERSION, weights_path=str(path).encode())
        address = ctypes.cast(ctypes.byref(options), loaded.handle.precast_open.argtypes[0])
        loaded.check(loaded.handle.precast_open(address, ctypes.byref(self.handle)))

def use(path):
    model = FromFile(path)
    (entry,), state = flat_entries(model), State(NativeState(model))
    for rows in (1, 2, 7, 65):
        try:
            entry(np.ones((rows, 4), np.float32), np.float32(1.0))
        except ValueError:
            assert rows in (1, 65)
    for name in state:
        state[name] = state[name]
    return entry

(folder / "weights").write_bytes(weights)
entry = use(folder / "weights")
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda rows: entry(np.ones((rows, 4), np.float32), np.float32(1.0)), list(range(2, 10)) * 8))
generator = random.Random(0)
header = 8 + int.from_bytes(weights[:8], "little")
for _ in range(300):
    changed = bytearray(weights)
    for _ in range(generator.randrange(1, 4)):
        changed[generator.randrange(header)] = generator.randrange(256)
    (folder / "changed").write_bytes(changed[: generator.choice([len(changed), generator.randrange(len(changed))])])
    try:
        use(folder / "changed")
    except ValueError:
        pass
print("clean")
"""


def runtime_library(name):
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_state_and_calls_are_clean(tmp_path):
    environment = os.environ | {
        "LD_PRELOAD": f"{runtime_library('libasan.so')}:{runtime_library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert finished.stdout.endswith("clean\n"), finished.stderr[-3000:]
