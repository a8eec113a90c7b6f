"""Python code that decides by small tensors of the module: they are constants, and each call checks them."""

import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precast.errors import DataDependentError, SymbolicShapeError
from precast.export import Dim, export, load, save


class Padding(nn.Module):
    """As in codecs: the padding is computed from sizes that are tensors."""

    def __init__(self):
        super().__init__()
        self.stride = nn.Buffer(torch.tensor(2), persistent=False)
        self.kernel = nn.Buffer(torch.tensor(5), persistent=False)
        self.left = self.kernel // 2

    def forward(self, x):
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel + 3) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - 3 - length
        if length <= max(self.left, extra):
            x = F.pad(x, (0, 3))
        return F.pad(x, (self.left, extra), mode="reflect")[..., : self.kernel * 2] * self.stride


class Table(nn.Module):
    def forward(self, x):
        sizes = torch.tensor([[2, 3], [4, 1]])
        return x.reshape(sizes[0, 0], int(sizes[0, 1]), -1)


@pytest.mark.parametrize("make", [Padding, Table])
def test_the_program_computes_what_the_module_does(make):
    model, x = make(), torch.randn(1, 2, 12)
    file = io.BytesIO()
    save(export(model, (x,)), file)
    file.seek(0)
    torch.testing.assert_close(load(file).module()(x), model(x))


def test_each_call_checks_the_constants():
    module = export(Padding(), (torch.ones(1, 1, 11),)).module()
    module.stride.fill_(3)
    with pytest.raises(RuntimeError, match="stride is a constant of this program, 2"):
        module(torch.ones(1, 1, 11))


def test_sizes_that_do_not_fit_a_constant():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = torch.tensor(2)

        def forward(self, x):
            return x.reshape(self.count, -1) if self.count > 1 else x

    with pytest.raises(SymbolicShapeError, match="multiple of 2"):
        export(Rows(), (torch.ones(8),), dynamic_shapes={"x": {0: Dim("n")}})


@pytest.mark.parametrize("is_buffer", [False, True])
def test_state_that_the_program_counts_in_is_no_constant(is_buffer):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            zero = torch.tensor(0)
            self.calls = nn.Buffer(zero, persistent=False) if is_buffer else zero

        def forward(self, x):
            self.calls = self.calls + 1
            return x * 2 if self.calls > 1 else x

    with pytest.raises(DataDependentError, match="only known at run time"):
        export(Counting(), (torch.ones(2),))


def test_state_that_the_program_writes_into_is_no_constant():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Buffer(torch.tensor(0), persistent=False)

        def forward(self, x):
            self.calls.add_(1)
            return x * 2 if self.calls > 1 else x

    with pytest.raises(DataDependentError, match="only known at run time"):
        export(Writing(), (torch.ones(2),))
