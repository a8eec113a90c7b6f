"""A sample of every family of torch's operator database through kernels for GPUs, forward and backward."""

import pytest
import torch

from precast.native.backend import NativeCompiler
from precast.options import Options
from tests.native.cuda.interpreted import InterpretedGpu
from tests.native.operators.op_samples import GAPS, NAMES, _compiled, cases, like_eager

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
SLOW = ("nn.functional.adaptive_avg_pool3d", "nn.functional.grid_sample")
"""Minutes in the interpreter."""
QUICK = ["add", "cumsum", "gather", "index_put", "logsumexp", "masked_fill", "nn.functional.batch_norm", "norm",
         "nn.functional.interpolate.bilinear", "nn.functional.huber_loss", "roll", "scatter_add", "std", "tril",
         "where"]  # fmt: skip


def compare(names: list[str], dtypes: list[torch.dtype], folder, *, count: int) -> None:
    target = InterpretedGpu(folder)
    compiler = NativeCompiler(Options(cache_directory=folder, random="eager"), target=target)
    for case, sample in cases(names, dtypes, count=count).items():
        like_eager(case, sample, _compiled(case, sample, compiler))


@pytest.mark.parametrize("name", QUICK)
def test_an_operator_of_each_family(name: str, tmp_path):
    compare([name], [torch.float32], tmp_path, count=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in GAPS["operator"] and name not in SLOW])
def test_all_operators(name: str, tmp_path):
    compare([name], [torch.float32, torch.bfloat16, torch.int64], tmp_path, count=2)
