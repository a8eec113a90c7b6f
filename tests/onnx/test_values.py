"""Values that are no float tensors: numbers in and out, complex numbers, short types, results that are not there."""

import numpy as np
import pytest
import torch
from torch import nn

from precast.onnx import export
from precast.trace.capture import Dim

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
ROWS = ({0: "rows"},)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x.shape[0] * 2, int),
        (lambda x: torch.sym_float(x.shape[0]) / 2, float),
        (lambda x: torch.sym_not(x.shape[0] == 5), bool),
        (lambda x: torch.sym_max(x.shape[0], 4), int),
        (lambda x: torch.sym_sum([x.shape[0], x.shape[1], 3]), int),
        (lambda x: torch.sym_ite(x.shape[0] > 3, x.shape[0] + 1, x.shape[0] * 3), int),
        (lambda x: x.int().sum().item(), int),
    ],
)
def test_numbers_come_out_as_scalars(function, kind):
    program = export(function, (X,), dynamic_shapes=ROWS)
    for x in (X, torch.ones(7, 4)):
        (result,) = program(x)
        assert result.dim() == 0
        assert result.item() == function(x)
        assert type(program.call_as_model(x)) is kind


def test_a_number_is_an_input_where_it_is_dynamic():
    program = export(lambda x, n: x[:, :n] * n, (X, 2), dynamic_shapes=(None, Dim.DYNAMIC))
    assert str(program.model.graph.inputs[1].dtype) == "INT64"
    for n in (2, 3):
        torch.testing.assert_close(program(X, n)[0], X[:, :n] * n)
    assert len(program.verification.checked) == 3


def test_results_that_are_not_there_are_left_out():
    program = export(lambda x: (None, x + 1, [None, x * 2]), (X,))
    torch.testing.assert_close(program(X), (X + 1, X * 2))
    assert program.call_as_model(X)[2][0] is None


@pytest.mark.parametrize(
    "function", [lambda z: z * (2 + 1j), lambda z: z.conj(), lambda z: z.abs(), lambda z: torch.fft.ifft(z)]
)
def test_complex_numbers_go_in_and_out_as_pairs(function):
    z = torch.complex(X, X.flip(0))
    program = export(function, (z,), dynamic_shapes=ROWS)
    assert program.model.graph.inputs[0].shape[-1] == 2
    assert program.adapt_torch_inputs(z)[0].shape == (3, 4, 2)
    longer = torch.cat([z, z])
    torch.testing.assert_close(program.call_as_model(longer), function(longer).resolve_conj())
    assert "rows=4" in program.verification.checked


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_short_types_are_run_where_onnxruntime_can(dtype):
    program = export(lambda x: x.to(dtype), (X,))
    assert "example inputs" in program.verification.checked
    torch.testing.assert_close(program(X)[0].float(), X.to(dtype).float())
    back = export(lambda x: x.to(torch.float32), (X.to(dtype),))
    torch.testing.assert_close(back(X.to(dtype))[0], X.to(dtype).float())


def test_two_numbers_in_a_byte():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            bits = torch.arange(6, dtype=torch.uint8).reshape(2, 3) * 17
            self.register_buffer("weight", bits.view(torch.float4_e2m1fn_x2))

        def forward(self, x):
            return x + 1, self.weight

    program = export(Small(), (X,), opset_version=23, optimize=False)
    assert list(program.model.graph.outputs[1].shape) == [2, 6]
    weight = program.model.graph.initializers["weight"].const_value
    assert weight.numpy().astype(np.float32)[1].tolist() == [1.5, 1.5, 2, 2, 3, 3]
    assert weight.tobytes() == Small().weight.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, z: (x | y, y & x, x ^ y, x & 3),
        lambda x, y, z: (x // z, z // x, x.greater_equal(z), z.less_equal(x), x.not_equal(z)),
        lambda x, y, z: (y.logical_or(x), torch.multiply(x, z), torch.subtract(z, x)),
    ],
)
def test_operands_of_two_types_under_any_name(function):
    x, y, z = torch.tensor([1, 2, 5]), torch.tensor([True, False, True]), torch.tensor([1.5, 2.0, -4.0])
    torch.testing.assert_close(export(function, (x, y, z))(x, y, z), function(x, y, z))


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["hamming", "hann", "blackman", "bartlett", "kaiser"])
@pytest.mark.parametrize("periodic", [True, False])
def test_windows(name, periodic):
    def window(x):
        return getattr(torch, f"{name}_window")(x.shape[0], periodic) * x[:, 0]

    program = export(window, (torch.ones(8, 2),))
    torch.testing.assert_close(program(torch.ones(8, 2))[0], window(torch.ones(8, 2)), rtol=1e-6, atol=1e-7)
