"""Programs as text."""

import torch

from precast.graph.printer import print_program, target_name
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from tests.graph.programs import dynamic_program, scale_program


def test_plain_text(assert_golden):
    assert_golden("scale", print_program(scale_program()))


def test_functional_text(assert_golden):
    assert_golden("scale_functional", print_program(functionalize(scale_program())))


def test_strides_on_demand(assert_golden):
    program = capture(lambda x: x.t() + 1, (torch.ones(2, 3),))
    assert_golden("strides", print_program(program, strides=True, signature=False))


def test_sizes_and_guards_are_told(assert_golden):
    assert_golden("dynamic", print_program(dynamic_program()))


def test_text_is_the_same_in_every_run():
    assert print_program(dynamic_program()) == print_program(dynamic_program())


def test_module_paths_on_demand():
    text = print_program(scale_program(), modules=True)
    assert "aten.addmm.default(p_linear_bias, x, t)  # linear\n" in text
    assert "aten.addmm.default(p_linear_bias, x, t)\n" in print_program(scale_program())


def test_source_lines_on_demand():
    (line,) = [line for line in print_program(scale_program(), sources=True).splitlines() if "aten.relu" in line]
    assert line.endswith("in forward: return self.linear(x).relu()")
    assert "programs.py:" in line


def test_shapes_can_be_left_out():
    program = capture(lambda x: x.sin(), (torch.ones(2),))
    assert print_program(program, shapes=False, signature=False) == (
        "def forward(x):\n    sin = aten.sin.default(x)\n    return (sin,)"
    )


def test_arguments_of_every_kind():
    def function(x):
        y = x[:, [1, 0]].to(torch.float64, memory_format=torch.preserve_format)
        return torch.full((2,), 1.5, dtype=torch.int64, device="cpu"), torch.cat([y, y], dim=1)

    text = print_program(capture(function, (torch.ones(2, 2),)), shapes=False)
    assert "aten.cat.default([_to_copy, _to_copy], 1)" in text
    assert "dtype=torch.int64, device=cpu" in text
    assert "0x" not in text


def test_operators_as_arguments_print_by_name():
    text = print_program(functionalize(capture(torch.linalg.inv, (torch.eye(2),))))
    assert "with_effects(_make_token, aten._linalg_check_errors.default, " in text


def test_target_names_have_no_addresses():
    assert target_name(torch.ops.aten.add.Tensor) == "aten.add.Tensor"
    assert target_name(torch.sym_max) == "torch.sym_max"
    assert target_name(len) == "builtins.len"
    assert target_name("weight") == "weight"
