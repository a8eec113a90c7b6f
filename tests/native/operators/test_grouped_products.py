"""Mixtures of experts: groups of rows by matrices of their own, in native code, with gradients, and in packages."""

import pytest
import torch
from transformers.integrations import moe  # noqa: F401 - defines the operator

import precast
import precast.runtime
from precast.ops.own_operators import grouped_rows, grouped_sums

ROWS, DEPTH, COLUMNS = 12, 6, 10
# Of all rows; none for some; the last rows in no group; one group for all.
ENDS = pytest.mark.parametrize("ends", [[3, 8, 12], [0, 5, 5], [2, 2, 9], [12]], ids=str)
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)


def operands(ends: list[int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows, matrices = torch.randn(ROWS, DEPTH, dtype=dtype), torch.randn(len(ends), DEPTH, COLUMNS, dtype=dtype)
    return rows.requires_grad_(), matrices.requires_grad_(), torch.tensor(ends, dtype=torch.int32)


def by_masks(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The same without groups: every row by every matrix, and all but one dropped."""
    number = torch.arange(len(rows))
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    is_mine = (number >= starts[:, None]) & (number < ends[:, None])
    return torch.where(is_mine[..., None], rows @ matrices, 0).sum(0)


@pytest.mark.thinned
@ENDS
@TYPES
def test_values_and_gradients(ends: list[int], dtype: torch.dtype):
    results = []
    for function in (precast.compile(grouped_rows), grouped_rows, by_masks):
        rows, matrices, places = operands(ends, dtype)
        result = function(rows, matrices.transpose(1, 2).contiguous().transpose(1, 2), places)
        results.append([result, *torch.autograd.grad(result.square().sum(), (rows, matrices))])
    room = {} if dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(results[0], results[1], **room)
    torch.testing.assert_close(results[1], results[2], **room)


def test_gradients_of_gradients():
    rows, matrices, ends = operands([3, 3, 12], torch.float64)
    assert torch.autograd.gradgradcheck(lambda *each: grouped_rows(*each, ends), (rows, matrices))
    assert torch.autograd.gradgradcheck(
        lambda left, right: grouped_sums(left, right, ends), (rows, (rows.detach() * 2).requires_grad_())
    )


@ENDS
def test_a_librarys_operator_is_replaced_with_its_gradients(ends: list[int]):
    def step(rows: torch.Tensor, matrices: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.ops.transformers.grouped_mm_fallback(rows.sin(), matrices, offs=places).square()

    gradients = []
    for function in (precast.compile(step), step):
        rows, matrices, places = operands(ends)
        gradients.append(torch.autograd.grad(function(rows, matrices, places).sum(), (rows, matrices)))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_packages_run_without_torchs_operator(tmp_path):
    rows, matrices, ends = (each.detach() for each in operands([3, 3, 12]))
    path = precast.package(lambda *each: torch.relu(grouped_rows(*each)), (rows, matrices, ends), path=tmp_path / "p")
    result = precast.runtime.load(path)(rows.numpy(), matrices.numpy(), ends.numpy())
    torch.testing.assert_close(torch.as_tensor(result), by_masks(rows, matrices, ends).relu())


def test_a_group_that_ends_outside_is_refused():
    compiled = precast.compile(grouped_rows)
    rows, matrices, _ = (each.detach() for each in operands([3, 12]))
    for ends in ([3, 13], [5, 3]):
        with pytest.raises(RuntimeError, match="ends at"):
            compiled(rows, matrices, torch.tensor(ends))


@pytest.mark.parametrize("bounds", [(5, 0.0, 4.0), (4, 0, 3), (7, -1.5, 2.25), (3, 0, 0), (1, 1, 2)], ids=str)
def test_histograms(bounds: tuple[int, float, float]):
    values = torch.cat([torch.randn(200) * 2, torch.arange(-2, 6).float(), torch.tensor([torch.nan])])
    values = values[:-1] if bounds[1] == bounds[2] else values

    def count(source: torch.Tensor) -> torch.Tensor:
        return torch.histc(source * 1, *bounds)

    compiled = precast.compile(count)
    torch.testing.assert_close(compiled(values), count(values), rtol=0, atol=0)
    if bounds[1] == bounds[2]:
        torch.testing.assert_close(compiled(values * 0 + 3), count(values * 0 + 3), rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="not finite"):
            compiled(values / 0)
