"""Every node tells where it came from."""

import torch

from precast.graph.nodes import is_backward, module_path_of, source_line_of
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from precast.trace.provenance import is_users_file


class Inner(torch.nn.Module):
    def forward(self, x):
        return x.sin()


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Inner(), Inner()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.cos()


def by_name(program):
    return {node.name: node for node in program.graph.nodes}


def test_module_paths_follow_the_hierarchy():
    nodes = by_name(capture(Outer(), (torch.ones(2),)))
    assert [module_path_of(nodes[name]) for name in ("sin", "sin_1", "cos")] == ["layers.0", "layers.1", ""]


def test_module_stack_names_classes_from_the_outside_in():
    nodes = by_name(capture(Outer(), (torch.ones(2),)))
    assert list(nodes["sin_1"].meta["nn_module_stack"].values()) == [
        ("", f"{__name__}.Outer"),
        ("layers.1", f"{__name__}.Inner"),
    ]


def test_modules_in_a_closure_have_their_variables_name():
    inner = Inner()
    assert module_path_of(by_name(capture(lambda x: inner(x), (torch.ones(2),)))["sin"]) == "inner"


def test_a_module_that_raises_and_is_caught_leaves_the_stack():
    class Fails(torch.nn.Module):
        def forward(self, x):
            raise KeyError

    class Catches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = Fails()

        def forward(self, x):
            try:
                return self.fails(x)
            except KeyError:
                return x.sin()

    assert module_path_of(by_name(capture(Catches(), (torch.ones(2),)))["sin"]) == ""


def test_stack_traces_hold_the_users_frames_only():
    trace = by_name(capture(Outer(), (torch.ones(2),)))["sin"].stack_trace
    assert [line.strip() for line in trace.splitlines()[1::2]] == ["x = layer(x)", "return x.sin()"]


def test_functional_nodes_keep_their_origin():
    nodes = by_name(functionalize(capture(Outer(), (torch.ones(2),))))
    assert module_path_of(nodes["sin_1"]) == "layers.1"
    assert source_line_of(nodes["sin_1"]).code == "return x.sin()"


def test_backward_nodes_are_marked_and_attributed():
    def gradient(x):
        return torch.autograd.grad(x.sin().sum(), x)[0]

    nodes = by_name(capture(gradient, (torch.ones(2, requires_grad=True),)))
    assert is_backward(nodes["cos"])
    assert not is_backward(nodes["sin"])
    assert source_line_of(nodes["cos"]).code == source_line_of(nodes["sin"]).code


def test_whose_file_it_is():
    assert is_users_file(__file__)
    assert not is_users_file(torch.nn.functional.__file__)
    assert not is_users_file(capture.__code__.co_filename)
    assert not is_users_file("<frozen importlib._bootstrap>")


def test_a_bare_layer_of_torchs_tells_its_own_line():
    program = capture(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    line = source_line_of(next(node for node in program.graph.nodes if node.op == "call_function"))
    assert line is not None
    assert (line.file.rpartition("/")[2], line.function) == ("linear.py", "forward")
