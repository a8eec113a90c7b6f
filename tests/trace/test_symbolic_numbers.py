"""Python functions of numbers that are symbols while a program is traced."""

import math

import torch

from precast.graph.interpreter import interpret
from precast.trace.capture import Dim, capture


def test_extremes_of_sizes_are_computed_at_each_call():
    def padded(a, b):
        most = max([a.shape[0], b.shape[0], a.shape[0]])
        return torch.zeros(most).sum() + min(a.shape[0], b.shape[0], 100), most

    program = capture(padded, (torch.ones(3), torch.ones(4)), dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    assert interpret(program, torch.ones(7), torch.ones(2)) == (torch.tensor(2.0), 7)


def test_extremes_and_powers_of_numbers_that_only_data_tell():
    program = capture(lambda n: (max(n.item(), 8), min(n, 3), math.pow(n.item(), 2)), (torch.tensor(4),))
    assert interpret(program, torch.tensor(9)) == (9, torch.tensor(3), 81.0)
    assert interpret(program, torch.tensor(2)) == (8, torch.tensor(2), 4.0)
