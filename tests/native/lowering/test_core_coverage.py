"""Every operator of the Core ATen set is compiled, or stands here with the reason why it is not."""

import pytest
import torch

from precast.native.decompositions.table import DECOMPOSED_CORE, native_decompositions
from precast.native.loops.program import FallbackStep
from precast.native.rules.registry import lowered_operators, rule_for
from tests.native.lowering.cases import check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten

COMPLEX = "complex numbers are not compiled"
SIZE = "a size: known without running anything"
NOT_COMPILED = {
    aten._fft_c2r.default: COMPLEX,
    aten._fft_r2c.default: COMPLEX,
    aten.atan2.out: "writes into an argument: functional graphs have none",
    aten.resize_.default: "changes an argument: functional graphs have none of these",
    aten.sym_is_contiguous.default: SIZE,
    aten.sym_numel.default: SIZE,
    aten.sym_size.int: SIZE,
    aten.sym_storage_offset.default: SIZE,
    aten.sym_stride.int: SIZE,
}


def core_operators():
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    packets = [getattr(aten, name) for name in sorted({name.partition(".")[0] for name in names})]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [overload for overload in overloads if torch.Tag.core in overload.tags]


def test_every_core_operator_is_accounted_for():
    compiled, decomposed = lowered_operators(), native_decompositions()
    missing = [
        str(operator)
        for operator in core_operators()
        if operator not in compiled and operator not in decomposed and operator not in NOT_COMPILED
    ]
    assert not missing


def test_the_list_of_exceptions_holds_nothing_that_is_compiled():
    assert [str(operator) for operator in NOT_COMPILED if rule_for(operator) is not None] == []


def test_what_is_taken_apart_has_no_rule():
    assert [str(operator) for operator in DECOMPOSED_CORE if rule_for(operator) is not None] == []


GRID = floats(2, 4, 5, 2) * 0.7
CASES = {
    "col2im": (lambda x: aten.col2im(x, [5, 6], [2, 3], [1, 1], [1, 0], [2, 1]), [floats(2, 12, 12)]),
    "grid_sampler": (lambda x, grid: aten.grid_sampler_2d(x, grid, 0, 0, False), [floats(2, 3, 6, 7), GRID]),
    "grid_sampler_nearest": (lambda x, grid: aten.grid_sampler_2d(x, grid, 1, 1, True), [floats(2, 3, 6, 7), GRID]),
    "grid_sampler_cubic": (lambda x, grid: aten.grid_sampler_2d(x, grid, 2, 2, False), [floats(2, 3, 6, 7), GRID]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_apart_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_apart_needs_no_fallback(name):
    function, inputs = CASES[name]
    assert not [step.operator for step in lowered(function, *inputs).steps if isinstance(step, FallbackStep)]
