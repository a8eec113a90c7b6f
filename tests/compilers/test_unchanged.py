"""nop and print_compile leave the graph as it is."""

import torch

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
