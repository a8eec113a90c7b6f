"""Numbers that a graph reads out of tensors do not cut it in pieces."""

import pytest
import torch

import precast
from precast.native.graph_passes.numbers_in_tensors import keep_numbers_in_tensors


def traced(function, *inputs):
    graphs = []

    def compiler(module, example_inputs):
        graphs.append(module)
        return module

    precast.aot_function(function, compiler)(*inputs)
    return graphs[-1]


def numbers_left(module):
    return [n for n in module.graph.nodes if n.target is torch.ops.aten._local_scalar_dense.default]


PROGRAMS = {
    "powers": lambda x, s: x / (1 - 0.9 ** s.item()) ** 0.5,
    "a factor of what is added": lambda x, s: torch.add(x, x.sin(), alpha=-s.item()),
    "a quotient": lambda x, s: torch.addcdiv(x, x.cos(), x.exp(), value=s.item() / 3),
    "a product": lambda x, s: torch.addcmul(x, x.cos(), x, value=2 - s.item()),
    "a blend": lambda x, s: torch.lerp(x, x.sin(), 1 / (1 + s.item())),
    "extremes": lambda x, s: x * torch.sym_max(2.5, torch.sym_min(s.item(), 4.0)) + torch.sym_min(s.item(), 0.5),
    "one element of a list": lambda x, s: x - s.reshape(1, 1).item(),
    "made a tensor": lambda x, s: x + torch.scalar_tensor(s.item() * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compute_the_same_without_numbers(name):
    x, s = torch.linspace(-1, 1, 7), torch.tensor(3.0)
    module = traced(PROGRAMS[name], x, s)
    assert numbers_left(module)
    kept = keep_numbers_in_tensors(module)
    assert not numbers_left(kept)
    torch.testing.assert_close(kept(x, s), module(x, s), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(precast.compile(PROGRAMS[name])(x, s), PROGRAMS[name](x, s))


def test_roots_of_negative_numbers_are_refused():
    # Eager goes on with a complex number, which is another program.
    compiled = precast.compile(PROGRAMS["powers"], fullgraph=True)
    x = torch.linspace(-1, 1, 7)
    torch.testing.assert_close(compiled(x, torch.tensor(3.0)), PROGRAMS["powers"](x, torch.tensor(3.0)))
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression"):
        compiled(x, torch.tensor(-1.0))


@pytest.mark.parametrize("backend", ["nop", "interpret"])
def test_the_root_of_a_number_itself_is_refused_if_it_is_negative(backend):
    def root(x, s):
        return x * s.item() ** 0.5

    # Torch drops its assertion: it takes bounds of one symbol to be known from the symbol's range.
    compiled, x = precast.compile(root, fullgraph=True, backend=backend), torch.ones(2)
    torch.testing.assert_close(compiled(x, torch.tensor(3.0)), root(x, torch.tensor(3.0)))
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression .*0"):
        compiled(x, torch.tensor(-1.0))


def test_bounds_that_the_program_states_of_floats_are_checked():
    def function(x, s):
        number = s.item()
        torch._check(number >= 0.5)
        torch._check(number <= 4)
        return x * number

    compiled, x = precast.compile(function, fullgraph=True, backend="nop"), torch.ones(2)
    assert torch.equal(compiled(x, torch.tensor(4.0)), x * 4)
    for outside in (0.25, 5.0):
        with pytest.raises(RuntimeError):
            compiled(x, torch.tensor(outside))


@pytest.mark.parametrize("exponent", [2, -1, 3.0])
def test_whole_powers_of_negative_numbers_are_computed(exponent):
    compiled, x = (
        precast.compile(lambda x, s: x * s.item() ** exponent, fullgraph=True, backend="interpret"),
        torch.ones(2),
    )
    for number in (2.0, -2.0):
        torch.testing.assert_close(compiled(x, torch.tensor(number)), x * number**exponent)


def test_what_python_needs_stays_a_number():
    module = traced(lambda x, s: x.pow(s.item()) * s.item(), torch.ones(3), torch.tensor(2.0))
    assert len(numbers_left(keep_numbers_in_tensors(module))) == 1


def test_types_that_would_round_the_number_keep_it():
    module = traced(lambda x, s: x * s.item(), torch.ones(3, dtype=torch.bfloat16), torch.tensor(1 / 3))
    assert numbers_left(keep_numbers_in_tensors(module))


def test_a_graph_without_numbers_is_itself():
    module = traced(lambda x: x * 2, torch.ones(3))
    assert keep_numbers_in_tensors(module) is module
