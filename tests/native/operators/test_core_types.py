"""Every operator of the Core ATen set in every type that eager has for it: compiled, without torch, and right."""

import pytest
import torch

from tests.autograd.op_samples import OPS
from tests.native.lowering.test_core_coverage import NOT_COMPILED, core_operators
from tests.native.operators.op_samples import GAPS, NAMES, Case, cases, failures, operators_not_native
from tests.native.operators.test_op_sweep import told

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]

TYPES = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16,
    torch.float64,
)  # fmt: skip
# Core operators that torch's database knows by the functions that call them.
CALLERS = {
    "__getitem__", "cdist", "nn.functional.adaptive_avg_pool2d", "nn.functional.batch_norm", "nn.functional.conv1d",
    "nn.functional.conv2d", "nn.functional.conv3d", "nn.functional.conv_transpose2d", "nn.functional.dropout",
    "nn.functional.embedding", "nn.functional.group_norm", "nn.functional.interpolate.bicubic",
    "nn.functional.interpolate.bilinear", "nn.functional.interpolate.nearest", "nn.functional.layer_norm",
    "nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.pad.reflect", "nn.functional.pad.replicate",
    "nn.functional.pdist", "nn.functional.upsample_bilinear", "nn.functional.upsample_nearest", "to",
}  # fmt: skip
CORE = {str(operator).split(".")[1].lstrip("_") for operator in core_operators()}
SELECTED = sorted(
    name
    for name in NAMES
    if name not in GAPS["operator"]
    and (name in CALLERS or {OPS[name].name.rpartition(".")[2].lstrip("_"), OPS[name].aten_name} & CORE)
)
COMPILED = {str(operator) for operator in core_operators()} - {str(operator) for operator in NOT_COMPILED}
PARTS = 12


def types_of(names: list[str]) -> dict[Case, object]:
    return cases(names, TYPES, count=2)


def left_to_torch(names: list[str]) -> dict[str, set[str]]:
    # One by one: so many graphs at once would keep the garbage collector busy.
    found = {name: operators_not_native(types_of([name])).get(name, set()) for name in names}
    return {name: left & {*COMPILED, "cannot be compiled"} for name, left in found.items()}


def test_some_are_right_in_every_type(tmp_path):
    found = failures(types_of(SELECTED[::45]), tmp_path)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_are_right_in_every_type(part: int, tmp_path):
    found = failures(types_of(SELECTED[part::PARTS]), tmp_path)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_none_is_left_to_torch_in_any_type(part: int):
    assert {name: left for name, left in left_to_torch(SELECTED[part::PARTS]).items() if left} == {}
