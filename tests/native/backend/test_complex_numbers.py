"""Complex numbers are computed with as pairs of real ones, natively, where rules say how."""

import copy

import pytest
import torch

import precast


def pairs(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def rotated(x, rotation):
    """Rotary embeddings as Llama's first code has them."""
    numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * rotation[:, None]).flatten(3).type_as(x)


CASES = {
    "rotary": (rotated, (torch.randn(2, 5, 3, 8), torch.polar(torch.ones(5, 4), torch.randn(5, 4)))),
    "arithmetic": (lambda z, w: ((z * w + 2j) / (w - 1), -z, z * 3, 2 / z), (pairs(3, 4), pairs(4, seed=1))),
    "lazy": (lambda z: (z.conj(), z.conj().imag, z.mH @ z, z.conj().imag * 2), (pairs(3, 4),)),
    "lazy input": (lambda z: z * 2, (pairs(3, 4).conj(),)),
    "strided input": (lambda z: (z * 2, z.T + 1), (pairs(6, 4)[::2].T,)),
    "functions": (lambda z: (z.abs(), z.angle(), z.exp(), z.log(), z**3, z.sgn(), z == z.flip(0)), (pairs(3, 4),)),
    "products": (lambda a, b: (a @ b, torch.addmm(pairs(2), a, b), a[0] @ b, torch.vdot(a[0], a[1])),
                 (pairs(3, 4), pairs(4, 2))),
    "mixed with reals": (lambda z, x: (z * x, x / z, torch.cat([z, z + x]), torch.where(x > 0, z, 0)),
                         (pairs(3, 4), torch.randn(3, 4))),
    "with transforms": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j)), (torch.randn(3, 8),)),
    "with what has no rule": (lambda z: (z.tanh() * z).real, (pairs(3, 4),)),
    "reshaped": (lambda z: (z.T.reshape(2, 6)[:, 1:], z[:, [2, 0]], z.unsqueeze(0).expand(2, 3, 4).sum(0)),
                 (pairs(3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_equal_eagers(name):
    function, inputs = CASES[name]
    mine, eagers = precast.compile(function)(*inputs), function(*inputs)
    torch.testing.assert_close(mine, eagers)


SPECIAL = [0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 3e38, 1e-40]


def test_results_are_laid_out_as_eagers():
    z = pairs(6, 4)[::2].T
    for mine, eagers in zip(precast.compile(lambda z: (z * 2, z.conj() + 1, z.exp()))(z), (z * 2, z, z), strict=True):
        assert mine.stride() == (eagers * 1).stride()


def test_products_of_special_numbers_are_eagers():
    parts = torch.tensor(SPECIAL)
    z = torch.complex(*torch.meshgrid(parts, parts, indexing="ij")).reshape(-1)
    one, other = z[:, None], z[None]
    torch.testing.assert_close(precast.compile(torch.mul)(one, other), one * other, equal_nan=True)


def test_the_absolute_value_neither_overflows_nor_forgets_infinities():
    parts = torch.tensor(SPECIAL)
    z = torch.complex(*torch.meshgrid(parts, parts, indexing="ij")).reshape(-1)
    torch.testing.assert_close(precast.compile(torch.abs)(z), z.abs(), equal_nan=True)


def test_quotients_neither_overflow_nor_vanish():
    z = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, 3 + 4j, 1j], dtype=torch.complex64)
    torch.testing.assert_close(precast.compile(torch.div)(z[:, None], z[None]), z[:, None] / z[None])


def test_rotary_embeddings_are_one_native_program():
    function, inputs = CASES["rotary"]
    (graph,) = precast.explain(function, *inputs).graphs
    assert graph.native_segments == 1
    # How the complex input is read.
    assert set(precast.explain(function, *inputs).fallbacks) == {"aten.view_as_real.default"}


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(pairs(4, 3))

    def forward(self, z):
        return (z @ self.weight).abs().sum() + (z * z.conj()).real.mean()


def test_gradients_equal_eagers():
    torch.manual_seed(0)
    module = Complex()
    mine, inputs = precast.compile(copy.deepcopy(module)), [pairs(5, 4).requires_grad_() for _ in range(2)]
    for each, z in zip((mine, module), inputs, strict=True):
        each(z).backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(next(mine.parameters()).grad, module.weight.grad)
