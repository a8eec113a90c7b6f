"""Bags of embeddings in ONNX, also empty ones, as torch has them."""

import pytest
import torch
from torch import nn

from precast.onnx import export
from precast.trace.capture import Dim

TABLE = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([0, 5, 2, 2, 1, 3, 4])
STARTS = torch.tensor([0, 0, 3, 4, 7])


@pytest.mark.thinned
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_any_length(mode: str, padding: int | None, optimize: bool):
    def bags(ids, starts, table):
        return nn.functional.embedding_bag(ids, table, starts, mode=mode, padding_idx=padding)

    sizes = ({0: Dim("ids", min=1)}, {0: Dim("bags", min=1)}, {})
    program = export(bags, (IDS, STARTS, TABLE), dynamic_shapes=sizes, optimize=optimize)
    for call in ((IDS, STARTS, TABLE), (IDS[:3], STARTS[:2], TABLE)):
        torch.testing.assert_close(program.call_as_model(*call), bags(*call))


def test_weighted_rows_in_a_module():
    model = nn.EmbeddingBag(6, 4, mode="sum", include_last_offset=True).eval()
    call = IDS, STARTS, torch.rand(7)
    torch.testing.assert_close(export(model, call).call_as_model(*call), model(*call))


def test_rows_of_one_length():
    model = nn.EmbeddingBag(6, 4, mode="mean").eval()
    program = export(model, (torch.tensor([[0, 1], [2, 3]]),), dynamic_shapes=({0: Dim("batch", min=1)},))
    ids = torch.tensor([[5, 5], [1, 0], [2, 4]])
    torch.testing.assert_close(program.call_as_model(ids), model(ids))
