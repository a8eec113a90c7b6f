"""nop and print_compile leave the graph as it is."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from precast.compilers import nop, print_compile


def test_nop_runs_what_was_captured(trace):
    graph_module, fakes = trace(lambda x: torch.sin(x) * 2, torch.ones(3))
    x = torch.randn(3)
    torch.testing.assert_close(nop(graph_module, fakes)(x), torch.sin(x) * 2, rtol=0, atol=0)


def test_print_compile_prints_python_and_runs(trace, capsys):
    graph_module, fakes = trace(lambda x: torch.sin(x) * 2, torch.ones(3))
    x = torch.randn(3)
    torch.testing.assert_close(print_compile(graph_module, fakes)(x), torch.sin(x) * 2, rtol=0, atol=0)
    printed = capsys.readouterr().out
    assert printed.startswith("def forward(self, ")
    assert "torch.ops.aten.sin.default" in printed
    compile(printed, "printed", "exec")


def test_print_compile_prints_branches_too(capsys):
    def function(x):
        return torch.cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos())

    print_compile(make_fx(function)(torch.ones(3)), [torch.ones(3)])
    printed = capsys.readouterr().out
    assert "# self.true_graph_0" in printed
    assert "torch.ops.aten.cos.default" in printed
