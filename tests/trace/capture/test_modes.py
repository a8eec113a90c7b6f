"""Grad mode, autocast, pre-dispatch and decompositions decide what is recorded."""

import torch
from torch._decomp import get_decompositions

from precast.graph.interpreter import interpret
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize

aten = torch.ops.aten
x = torch.ones(2, 4)


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_programs_see_the_surrounding_grad_mode():
    def seen():
        return capture(lambda a: (torch.is_grad_enabled(), a), (x,)).signature.outputs[0].arg.value

    assert seen() is True
    with torch.no_grad():
        assert seen() is False


def test_no_grad_inside_is_respected():
    def function(weight):
        with torch.no_grad():
            first = weight * 2
        return torch.autograd.grad((weight * first).sum(), weight)[0]

    weight = torch.full((2,), 3.0, requires_grad=True)
    torch.testing.assert_close(interpret(capture(function, (weight,)), weight), torch.full((2,), 6.0))


def test_autocast_around_is_respected():
    model = torch.nn.Linear(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = capture(model, (x,))
        expected = model(x)
    assert program.results[0].meta["val"].dtype is torch.bfloat16
    torch.testing.assert_close(interpret(program, x), expected)


def test_autocast_inside_is_respected():
    def function(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return a @ a.t()

    program = capture(function, (x,))
    assert program.results[0].meta["val"].dtype is torch.bfloat16
    torch.testing.assert_close(interpret(program, x), function(x))


def test_inference_mode_around_is_no_obstacle():
    with torch.inference_mode():
        program = functionalize(capture(torch.nn.Linear(4, 3), (x,)))
        assert interpret(program, x).shape == (2, 3)


def test_pre_dispatch_keeps_composite_operators():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout())
    assert targets(capture(model, (x,), pre_dispatch=True)) == ["aten.linear.default", "aten.dropout.default"]
    assert "aten.linear.default" not in targets(capture(model, (x,)))


def test_pre_dispatch_programs_run():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    program = functionalize(capture(model, (x,), pre_dispatch=True), pre_dispatch=True)
    torch.testing.assert_close(interpret(program, x), model(x))


def test_decompositions_of_the_caller_are_applied():
    table = get_decompositions([aten.addmm, aten.silu])
    program = capture(lambda a: torch.nn.functional.silu(a), (x,), decompositions=table)
    assert "aten.silu.default" not in targets(program)
    torch.testing.assert_close(interpret(program, x), torch.nn.functional.silu(x))


def test_decompositions_apply_when_functionalizing_too():
    program = functionalize(capture(lambda a: a.silu_() if hasattr(a, "silu_") else torch.ops.aten.silu_(a), (x,)),
                            decompositions=get_decompositions([aten.silu]))  # fmt: skip
    assert "aten.silu.default" not in targets(program)


def test_training_and_eval_are_the_modules():
    model = torch.nn.Dropout()
    assert targets(capture(model.eval(), (x,))) == []
    assert any("dropout" in name or "bernoulli" in name for name in targets(capture(model.train(), (x,))))
