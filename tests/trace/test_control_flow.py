"""Control-flow operators become graphs in the graph, with everything that their branches close over."""

import subprocess
import sys

import pytest
import torch
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop

from precast.graph.interpreter import interpret
from precast.graph.printer import print_program
from precast.trace.capture import Dim, capture
from precast.trace.functionalize import functionalize

x = torch.tensor([1.0, 2.0, 3.0])
weight = torch.tensor([2.0, 2.0, 2.0])


def assert_like(function, expected, *inputs):
    program = functionalize(capture(function, inputs[0]))
    for args in inputs:
        torch.testing.assert_close(interpret(program, *args), expected(*args))
    return program


def test_both_branches_are_kept():
    program = assert_like(
        lambda a: torch.cond(a.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (a,)),
        lambda a: a.sin() if a.sum() > 0 else a.cos(),
        (x,),
        (-x,),
    )
    text = print_program(program)
    assert "def true_graph_0(" in text
    assert "aten.cos.default" in text


def test_branches_may_close_over_anything():
    linear = torch.nn.Linear(3, 3)

    def function(a, b):
        doubled = b * 2
        return torch.cond(a.sum() > 0, lambda a: linear(a) + doubled, lambda a: a - weight, (a,))

    def eager(a, b):
        return linear(a) + b * 2 if a.sum() > 0 else a - weight

    with torch.no_grad():
        program = assert_like(function, eager, (x, x), (-x, x))
    assert {"linear.weight", "linear.bias", "weight"} <= {spec.target for spec in program.signature.inputs}


def test_branches_without_operands():
    assert_like(
        lambda a: torch.cond(a.sum() > 0, lambda: a.sin(), lambda: a.cos(), ()),
        lambda a: a.sin() if a.sum() > 0 else a.cos(),
        (x,),
        (-x,),
    )


def test_trees_of_operands_and_results():
    def function(a):
        pair = torch.cond(
            a.sum() > 0,
            lambda tree: {"y": tree["a"] + 1, "z": [tree["b"] * 2]},
            lambda tree: {"y": tree["a"] - 1, "z": [tree["b"] * 3]},
            ({"a": a, "b": a * 2},),
        )
        return pair["y"] + pair["z"][0]

    assert_like(function, lambda a: a + 1 + a * 4 if a.sum() > 0 else a - 1 + a * 6, (x,), (-x,))


def test_branches_in_branches():
    def inner(a):
        return torch.cond(a.sum() > 10, lambda a: a * weight, lambda a: a + weight, (a,))

    def eager(a):
        if a.sum() <= 0:
            return a.cos()
        return a * weight if a.sum() > 10 else a + weight

    assert_like(lambda a: torch.cond(a.sum() > 0, inner, lambda a: a.cos(), (a,)), eager, (x,), (x * 10,), (-x,))


def test_loops():
    def function(a):
        return while_loop(
            lambda count, value: count < 3, lambda count, value: (count + 1, value * weight), (torch.tensor(0), a)
        )

    assert_like(function, lambda a: (torch.tensor(3), a * 8), (x,))


def test_maps():
    rows = torch.arange(6.0).reshape(2, 3)
    assert_like(lambda a: torch_map(lambda row: row * weight + row.sum(), a), lambda a: a * 2 + a.sum(1, True), (rows,))


def test_scans():
    rows = torch.arange(6.0).reshape(2, 3)

    def function(a):
        carry, sums = scan(lambda c, row: (c + row * weight, c + row), torch.zeros(3), a)
        return carry, sums

    assert_like(function, lambda a: ((a * 2).sum(0), torch.stack([a[0], a[0] * 2 + a[1]])), (rows,))


def test_symbolic_sizes_reach_the_branches():
    program = capture(
        lambda a: torch.cond(a.sum() > 0, lambda a: a * 2, lambda a: a + a.shape[0], (a,)),
        (torch.ones(3, 2),),
        dynamic_shapes={"a": {0: Dim("rows")}},
    )
    torch.testing.assert_close(interpret(program, -torch.ones(5, 2)), torch.full((5, 2), 4.0))


def test_gradients_flow_through_branches():
    def gradient(a):
        return torch.autograd.grad(
            torch.cond(a.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (a,)).sum(), a
        )[0]  # fmt: skip

    program = capture(gradient, (x.clone().requires_grad_(),))
    torch.testing.assert_close(interpret(program, x), x.cos())
    torch.testing.assert_close(interpret(program, -x), x.sin())


def test_eager_control_flow_is_untouched_afterwards():
    before = torch.compiler.is_dynamo_compiling
    with pytest.raises(ZeroDivisionError):
        capture(lambda a: 1 / 0, (x,))
    assert torch.compiler.is_dynamo_compiling is before


def test_the_bytecode_compiler_is_not_called():
    code = """
import torch
from precast.trace.capture import capture

def refuse(*_, **__):
    raise SystemExit("torch.compile was called")

torch.compile = refuse
capture(lambda a: torch.cond(a.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (a,)), (torch.ones(2),))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
