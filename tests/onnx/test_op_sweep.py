"""Every operator that torch tests, through ONNX and onnxruntime, against eager; and every Core ATen operator's rule."""

import pytest
import torch

from precast.onnx.export_model import RULE_FILES
from precast.onnx.rules.registry import RuleTable
from tests.onnx.op_samples import GAPS, OPS, assert_exports

QUICK_EVERY = 16
SAMPLES = 3
assert RULE_FILES, "importing them fills the table"


def cases() -> list[object]:
    """Every operator's name; all but one in ``QUICK_EVERY`` are for the slow tier."""
    return [
        pytest.param(name, SAMPLES if slow else 1, marks=pytest.mark.slow if slow else ())
        for number, name in enumerate(OPS)
        for slow in ([True] if number % QUICK_EVERY else [False, True])
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "count"), cases())
def test_operator(name: str, count: int):
    if name not in GAPS["operator"]:
        assert_exports(name, count=count)
        return
    with pytest.raises((RuntimeError, AssertionError)):
        assert_exports(name, count=SAMPLES)


def core_operators() -> list[torch._ops.OpOverload]:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    packets = ((name.partition("::")[2].partition(".")) for name in names)
    found = [getattr(getattr(torch.ops.aten, short), overload or "default", None) for short, _, overload in packets]
    return [operator for operator in found if operator is not None and torch.Tag.core in operator.tags]


def test_core_operators_have_a_rule_or_a_reason():
    table = RuleTable(20)
    missing = {
        operator.name()
        for operator in core_operators()
        if table.find(operator) is None and table.find(operator, is_complex=True) is None
    }
    assert missing == GAPS["core"].keys()


def test_gaps_name_operators_and_reasons():
    assert GAPS["operator"].keys() | GAPS["numbers"].keys() <= OPS.keys()
    assert all(reason for gaps in GAPS.values() for reason in gaps.values())
