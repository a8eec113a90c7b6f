"""Reductions over segments, and fractional max pooling with given random numbers."""

import pytest
import torch
from torch.nn import functional

from precast.onnx import export

X = torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([2, 0, 3, 2])


@pytest.mark.parametrize("initial", [None, 0.5])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce: str, initial: float | None):
    def run(x, lengths):
        return torch.segment_reduce(x, reduce, lengths=lengths, axis=0, initial=initial)

    program = export(run, (X, LENGTHS), dynamic_shapes=({0: "rows"}, {0: "segments"}), verify=False)
    torch.testing.assert_close(program.call_as_model(X, LENGTHS), run(X, LENGTHS), equal_nan=True)
    other = X[:5], torch.tensor([1, 4])
    torch.testing.assert_close(program.call_as_model(*other), run(*other))


def test_segments_by_offsets_along_an_inner_dimension():
    def run(x, offsets):
        return torch.segment_reduce(x, "max", offsets=offsets, axis=1, unsafe=True, initial=0)

    call = X.permute(1, 0, 2).contiguous(), torch.tensor([[0, 3, 7], [0, 5, 7]])
    torch.testing.assert_close(export(run, call).call_as_model(*call), run(*call))


@pytest.mark.parametrize(
    ("pool", "rank"), [(functional.fractional_max_pool2d, 2), (functional.fractional_max_pool3d, 3)]
)
@pytest.mark.parametrize("size", [4, 1])
@pytest.mark.parametrize("has_batch", [True, False])
def test_windows_at_given_random_numbers(pool, rank: int, size: int, has_batch: bool):
    def run(x, samples):
        return pool(x, 2, size, return_indices=True, _random_samples=samples)

    def call(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.randn(batch, 3, *(9, 7, 8)[:rank])
        return image if has_batch else image[0], torch.rand(batch, 3, rank)

    # Torch's shape function for volumes fixes the batch.
    is_dynamic = has_batch and rank == 2
    program = export(run, call(1), dynamic_shapes=({0: "batch"}, {0: "batch"}) if is_dynamic else None)
    other = call(2 if is_dynamic else 1)
    torch.testing.assert_close(program(*other), run(*other))
