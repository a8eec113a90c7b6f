"""Scalars are printed as C++ that means the same."""

from precast.native.targets.cpu.codegen.scalars import _operation_text


def test_two_signs_are_no_decrement():
    assert _operation_text("neg", ["-1.5"], "f32") == "(- -1.5)"
    assert _operation_text("neg", ["x"], "f32") == "(-x)"
