"""Results that are put together of many pieces are written piece by piece."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from precast.native.loops.program import Kernel, loads_of, stores_of
from precast.native.loops.scalars import Apply, walk
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

Function = Callable[..., torch.Tensor]
PIECES = [torch.arange(60.0).reshape(3, 20) + 100 * number for number in range(9)]
PUT_TOGETHER: dict[str, Function] = {
    "stack": lambda *pieces: torch.stack(pieces),
    "stack inside": lambda *pieces: torch.stack(pieces, 1),
    "stack turned": lambda *pieces: torch.stack(pieces).transpose(0, 1).contiguous(),
    "cat along memory": lambda *pieces: torch.cat(pieces, 1),
    "cat of computed": lambda *pieces: torch.cat([pieces[0].exp(), *pieces[1:]]),
    "cat after a sum": lambda *pieces: torch.cat([pieces[0] - pieces[0].sum(1, keepdim=True), *pieces[1:]], 1),
}


def choices_of(function: Function, *inputs: torch.Tensor) -> int:
    """How many values are chosen by a condition."""
    kernels = [step for step in fuse(lowered(function, *inputs)).steps if isinstance(step, Kernel)]
    values = [store.value for kernel in kernels for store in stores_of(kernel.body)]
    return sum(isinstance(each, Apply) and each.operation == "where" for each in walk(*values))


@pytest.mark.parametrize("name", PUT_TOGETHER)
def test_no_element_chooses_its_piece(name: str) -> None:
    assert choices_of(PUT_TOGETHER[name], *PIECES) == 0


@pytest.mark.parametrize("name", PUT_TOGETHER)
def test_pieces_are_put_together_as_in_eager(name: str, tmp_path: Path) -> None:
    function = PUT_TOGETHER[name]
    (result,) = open_entries([make_entry(lowered(function, *PIECES))], tmp_path)["forward"](*PIECES)
    torch.testing.assert_close(torch.as_tensor(result), function(*PIECES))


def test_what_is_read_is_read_without_asking() -> None:
    (kernel,) = fuse(lowered(PUT_TOGETHER["stack"], *PIECES)).steps
    assert isinstance(kernel, Kernel)
    assert all(load.guard is None for load in loads_of(kernel.body))


@pytest.mark.parametrize(
    "function",
    [lambda *pieces: torch.cat(pieces[:3]), lambda *pieces: torch.stack(pieces, 2)],
    ids=["few pieces", "short pieces along memory"],
)
def test_one_loop_stays_where_it_is_cheaper(function: Function) -> None:
    (kernel,) = fuse(lowered(function, *PIECES)).steps
    assert isinstance(kernel, Kernel)
    assert len(kernel.body) == 1
    assert choices_of(function, *PIECES) > 0
