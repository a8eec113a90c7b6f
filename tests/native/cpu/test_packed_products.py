"""Products by constants, which loops of ours bring into panels once: few rows, many rows, and more than they take."""

import pytest
import torch

import precast
from tests.native.lowering.numbers import assert_right

WEIGHTS = [(17, 65), (64, 400), (130, 900), (1, 33)]
MOST_ROWS = 12


class Products(torch.nn.Module):
    """Weights as linear layers have them, and the same in rows, with what may follow a product."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for number, shape in enumerate(WEIGHTS):
            self.register_buffer(f"weight{number}", torch.randn(shape, generator=generator))
            self.register_buffer(f"turned{number}", torch.randn(shape[::-1], generator=generator))
            self.register_buffer(f"bias{number}", torch.randn(shape[0], generator=generator))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for number, (columns, depth) in enumerate(WEIGHTS):
            rows, added = x[:, :depth], residual[:, :columns]
            weight, turned, bias = (self.get_buffer(f"{name}{number}") for name in ("weight", "turned", "bias"))
            linear = torch.nn.functional.linear(rows, weight, bias)
            results += [torch.relu(linear), added + linear, rows @ turned]
        return results


def inputs_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 900, generator=generator), torch.randn(rows, 130, generator=generator)


@pytest.fixture(scope="module")
def products() -> Products:
    return Products().eval()


@pytest.fixture(scope="module")
def compiled(products: Products) -> torch.nn.Module:
    return precast.compile(products, dynamic=True, options={"freeze": True})


@pytest.mark.parametrize(
    "rows", [2, 3, 4, 5, 6, 7, 11, MOST_ROWS, MOST_ROWS + 1, 16, 23, 47, 97, 128, 131, 257, 512, 513]
)
def test_every_number_of_rows_is_as_exact_as_eager(products: Products, compiled: torch.nn.Module, rows: int) -> None:
    inputs = inputs_of(rows)
    with torch.no_grad():
        exact = Products().double()(*(each.double() for each in inputs))
        for ours, eager, wanted in zip(compiled(*inputs), products(*inputs), exact, strict=True):
            assert_right(ours, eager, wanted, sums=True)


@pytest.mark.parametrize(("rows", "first", "last"), [(MOST_ROWS, 3, 7), (300, 3, 20), (300, 50, 250)])
def test_a_row_does_not_change_with_those_beside_it(
    compiled: torch.nn.Module, rows: int, first: int, last: int
) -> None:
    x, residual = inputs_of(rows)
    with torch.no_grad():
        for all_rows, some in zip(compiled(x, residual), compiled(x[first:last], residual[first:last]), strict=True):
            assert torch.equal(all_rows[first:last], some)


@pytest.mark.parametrize("rows", [5, 13, 53, 131, 300])
def test_the_number_of_threads_changes_no_number(compiled: torch.nn.Module, rows: int) -> None:
    inputs, before = inputs_of(rows), torch.get_num_threads()
    try:
        with torch.no_grad():
            torch.set_num_threads(1)
            alone = compiled(*inputs)
            for threads in (2, 3, 16):
                torch.set_num_threads(threads)
                assert all(map(torch.equal, compiled(*inputs), alone))
    finally:
        torch.set_num_threads(before)


def test_products_by_one_constant_in_turn_are_the_same() -> None:
    # The second is computed from the last column to the first.
    class Thrice(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:  # type: ignore[override]
            return [super(Thrice, self).forward(x * factor) for factor in (1, 2, 4)]

    layer = Thrice(70, 130).eval()
    compiled = precast.compile(layer, options={"freeze": True})
    x = inputs_of(4)[0][:, :70]
    with torch.no_grad():
        first, *others = (each - layer.bias for each in compiled(x))
        for factor, other in zip((2, 4), others, strict=True):
            torch.testing.assert_close(other, first * factor, atol=1e-5, rtol=1e-5)


def test_infinity_and_nan_stay_in_their_row(products: Products, compiled: torch.nn.Module) -> None:
    x, residual = inputs_of(5)
    x[1, 3], x[4, 0] = torch.inf, torch.nan
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, residual), products(x, residual), atol=1e-4, rtol=1e-4, equal_nan=True)
