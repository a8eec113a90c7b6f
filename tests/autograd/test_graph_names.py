"""Every compilation has a number, every graph a name, and errors say in which graph they were raised."""

import pytest
import torch

from precast.autograd import aot_function, get_aot_graph_name, get_graph_being_compiled, set_model_name
from precast.compilers import nop


@pytest.fixture(autouse=True)
def model_name():
    set_model_name("model")
    yield
    set_model_name("model")


def test_compilers_see_the_name_of_the_graph_they_compile():
    names = []

    def naming(graph, _):
        names.append((get_aot_graph_name(), get_graph_being_compiled()))
        return graph

    x = torch.ones(2, requires_grad=True)
    aot_function(lambda x: x.sin(), naming)(x)
    with torch.no_grad():
        aot_function(lambda x: x.sin(), naming)(x)
    assert [name.split("__")[1].split("_")[1:] for name, _ in names] == [
        ["forward", "0"],
        ["backward", "0"],
        ["inference", "0"],
    ]
    assert all(first == second for first, second in names)


def test_compilations_are_counted():
    numbers = []

    def counting(graph, _):
        numbers.append(int(get_aot_graph_name().split("__")[1].split("_")[0]))
        return graph

    compiled = aot_function(lambda x: x + 1, counting)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    assert numbers[1] == numbers[0] + 1


def test_the_model_can_be_named():
    set_model_name("bert")
    names = []
    aot_function(lambda x: x + 1, lambda graph, _: names.append(get_aot_graph_name()) or graph)(torch.ones(2))
    assert names[0].startswith("bert__")


def test_the_second_backward_is_of_order_one():
    names = []

    def naming(graph, _):
        names.append(get_aot_graph_name())
        return graph

    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(aot_function(lambda x: x.sin().sum(), naming)(x), x, create_graph=True)
    gradient.sum().backward()
    assert [name.rsplit("_", 1)[1] for name in names] == ["0", "0", "1", "1"]


def test_outside_of_a_compilation_there_is_a_name_too():
    assert get_aot_graph_name() == "model__0_joint_0"


def test_an_error_at_run_time_tells_the_graph():
    def failing(graph, _):
        def run(*inputs):
            raise RuntimeError("broken")

        return run

    with pytest.raises(RuntimeError, match="broken") as caught:
        aot_function(lambda x: x + 1, failing)(torch.ones(2))
    assert any("raised in the compiled graph model__" in note for note in caught.value.__notes__)


def test_a_compiler_that_raises_leaves_the_function_usable():
    attempts = []

    def flaky(graph, inputs):
        attempts.append(graph)
        if len(attempts) == 1:
            raise ValueError("not today")
        return nop(graph, inputs)

    compiled = aot_function(lambda x: x + 1, flaky)
    with pytest.raises(ValueError, match="not today"):
        compiled(torch.ones(2))
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert get_aot_graph_name() == "model__0_joint_0"
