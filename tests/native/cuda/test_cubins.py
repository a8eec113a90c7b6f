"""Kernels compile for GPUs on machines that have none."""

import pytest
import torch
from torch.nn import functional as F

from precast.cache import Store
from precast.errors import BuildError
from precast.native.targets.cuda.build.cubins import Cubin, cubin_key, find_cubin, start_cubins
from precast.native.targets.cuda.kernel_source import KernelSource
from tests.native.cuda.interpreted import InterpretedGpu, compiled
from tests.native.lowering.cases import floats, integers


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[KernelSource]:
    """Kernels of each kind: rows, columns, random numbers, places that are computed, all types."""
    target = InterpretedGpu(tmp_path_factory.mktemp("kernels"))

    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normal = F.layer_norm(x, (32,))
        return F.dropout(normal.softmax(-1)), y.sum(0), x[i].bfloat16(), torch.zeros(9, 32).index_add(0, i, x)

    compiled(target, function)(floats(9, 32), floats(3000, 4), integers(9, low=0, high=9))
    return target.sources


@pytest.mark.parametrize("architecture", [80, 90])
def test_cubins_are_made_and_kept(sources, architecture: int, tmp_path):
    store = Store(tmp_path, limit=2**26)
    cubins = start_cubins(sources, architecture, store)()
    for source, cubin in zip(sources, cubins, strict=True):
        assert isinstance(cubin, Cubin), f"{cubin}\n{source.text}"
        assert cubin.code[:4] == b"\x7fELF"
        assert find_cubin(cubin_key(source, architecture), store) == cubin


def test_what_does_not_compile_is_told_for_itself(tmp_path):
    text = "import triton\n@triton.jit\ndef wrong(p0):\n    nothing + p0\n"
    (found,) = start_cubins([KernelSource("wrong", text, ("*fp32",), 1)], 90, Store(tmp_path, limit=2**20))()
    assert isinstance(found, BuildError)
    assert "nothing" in str(found)
