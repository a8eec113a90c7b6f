"""Complex numbers inside a model: spectra, rotations, filters."""

import pytest
import torch
from torch import nn

from precast.onnx import export
from precast.trace.capture import Dim

torch.manual_seed(0)
WINDOW = torch.hann_window(64)
SIGNAL = torch.randn(2, 400)
MAP = torch.randn(2, 3, 8, 8)
WEIGHT = torch.randn(3, 4, 8, 5, 2)


def spectrogram(x):
    return torch.stft(x, 64, 16, window=WINDOW, return_complex=True).abs().square()


def rotate(x):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angles = torch.outer(torch.arange(8.0), torch.linspace(0.1, 1, 4))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def fourier_layer(x, weight):
    spectrum = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), torch.view_as_complex(weight))
    return torch.fft.irfft2(spectrum, s=x.shape[-2:])


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (spectrogram, (SIGNAL,)),
        (rotate, (torch.randn(2, 8, 8),)),
        (fourier_layer, (MAP, WEIGHT)),
        (lambda x: torch.fft.fft2(x).real, (MAP,)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=15), (torch.randn(2, 15),)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x, n=32).conj(), n=32), (torch.randn(2, 16),)),
        (lambda x: torch.exp(torch.complex(x, 2 * x)).imag, (SIGNAL,)),
        (lambda x: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho"), norm="ortho"), (MAP,)),
        (lambda x: torch.view_as_real(torch.nn.functional.pad(torch.complex(x, x), (1, 2), value=3.0)), (SIGNAL,)),
    ],
)
def test_numbers(function, call):
    torch.testing.assert_close(export(function, call).call_as_model(*call), function(*call), rtol=1e-3, atol=1e-4)


def test_spectra_of_any_batch():
    program = export(spectrogram, (SIGNAL,), dynamic_shapes=({0: Dim("batch", min=1)},))
    x = torch.randn(5, 400)
    torch.testing.assert_close(program.call_as_model(x), spectrogram(x), rtol=1e-3, atol=1e-3)


def complex_of(x):
    return torch.complex(x, x.flip(-1))


def written(x, y):
    result = torch.zeros(3, 6, dtype=torch.complex64)
    result[:, 1:5] = complex_of(x)
    return result


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: complex_of(x) * y + 2,
        lambda x, y: y / complex_of(x) - 1.5,
        lambda x, y: 2j * x + y,
        lambda x, y: torch.where(x > 0, complex_of(x), complex_of(y)),
        lambda x, y: complex_of(x)[..., None] * complex_of(y)[:, None],
        lambda x, y: complex_of(x)[:, 1].expand(2, 3),
        lambda x, y: torch.cat(complex_of(x).split(2, dim=-1), 0),
        lambda x, y: complex_of(x).to(torch.complex128),
        written,
    ],
)
def test_real_and_complex_numbers_mix(function):
    def run(x, y):
        return torch.view_as_real(function(x, y).contiguous())

    call = torch.randn(3, 4), torch.rand(3, 4) + 0.5
    torch.testing.assert_close(export(run, call).call_as_model(*call), run(*call))


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_a_cast_to_real_drops_the_imaginary_part():
    x = torch.randn(4)
    torch.testing.assert_close(export(lambda x: complex_of(x).to(torch.float32), (x,)).call_as_model(x), x)


def test_infinity_has_no_imaginary_part():
    x = torch.tensor([torch.inf])
    assert export(lambda x: torch.view_as_real(x.to(torch.complex64)), (x,)).call_as_model(x).tolist() == [
        [torch.inf, 0]
    ]


class FourierLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 8, 5, dtype=torch.complex64))
        self.register_buffer("turn", torch.polar(torch.ones(5), torch.linspace(0, 1, 5)))

    def forward(self, x):
        spectrum = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), self.weight) * self.turn
        return torch.fft.irfft2(spectrum, s=x.shape[-2:])


def test_complex_weights_are_pairs_in_the_file():
    model = FourierLayer()
    assert list(export(model, (MAP,), optimize=False).model.graph.initializers["weight"].shape) == [3, 4, 8, 5, 2]
    program = export(model, (MAP,), dynamic_shapes=({0: Dim("batch", min=1)},))
    x = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(program.call_as_model(x), model(x).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        torch.log,
        torch.sqrt,
        torch.sin,
        torch.cos,
        torch.tanh,
        torch.sigmoid,
        torch.isnan,
        lambda z: z**0.5,
        lambda z: z**2,
        lambda z: z == z.conj(),
        lambda z: torch.linalg.norm(z),
        lambda z: torch.where(z.real > 0, z, 2.0),
        lambda z: torch.nn.functional.linear(z, z, z[:, 0]),
        lambda z: z.conj().imag,
    ],
)
def test_functions_of_complex_numbers(model):
    torch.manual_seed(0)
    assert export(model, (torch.randn(3, 3, dtype=torch.complex64),)).verification.skipped == ()
