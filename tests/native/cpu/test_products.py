"""Products by weights as linear layers have them, computed by loops of ours whatever the rule of thumb says."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precast.native.describe import Entry
from precast.native.loops.index import as_index
from precast.native.loops.program import LibraryCall, with_steps
from precast.runtime import Model
from tests.native.lowering.numbers import assert_right, doubled
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

OWN_LOOPS = 2
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda x, w, b, r: F.linear(x, w),
    "bias": lambda x, w, b, r: F.linear(x, w, b),
    "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "residual": lambda x, w, b, r: r + F.linear(x, w, b),
    "relu": lambda x, w, b, r: F.relu(F.linear(x, w, b)),
}
SHAPES = [
    (1, 768, 64), (3, 17, 65), (6, 33, 100), (7, 12, 16), (8, 100, 7), (16, 96, 64), (31, 13, 1), (33, 97, 130),
    (128, 96, 64), (129, 200, 33), (300, 50, 70), (20, 110, 800), (50, 30, 1024), (40, 11, 2064),
]  # fmt: skip


def with_own_loops(entry: Entry) -> Entry:
    steps = [replace(step, numbers=(as_index(OWN_LOOPS),)) if isinstance(step, LibraryCall) else step
             for step in entry.program.steps]  # fmt: skip
    return replace(entry, program=with_steps(entry.program, steps))


def operands(rows: int, columns: int, depth: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns + depth)
    shapes = [(rows, depth), (columns, depth), (columns,), (rows, columns)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    example = operands(5, 7, 11)
    entries = [
        with_own_loops(make_entry(lowered(function, *example, dynamic=True, name=name)))
        for name, function in FUNCTIONS.items()
    ]
    return open_entries(entries, Path(tmp_path_factory.mktemp("products")))


def run(model: Model, name: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    (result,) = model[name](*inputs)
    return torch.as_tensor(result)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_tail_and_epilogue_is_as_exact_as_eager(model: Model, name: str, shape: tuple[int, int, int]) -> None:
    inputs = operands(*shape)
    function = FUNCTIONS[name]
    assert_right(run(model, name, inputs), function(*inputs), function(*doubled(inputs)), sums=True)


def test_infinite_weights_and_nan_spread_as_in_eager(model: Model) -> None:
    inputs = operands(40, 50, 70)
    inputs[1][3, 5], inputs[1][49, 69], inputs[0][39, 0] = torch.inf, -torch.inf, torch.nan
    for name, function in FUNCTIONS.items():
        assert_right(run(model, name, inputs), function(*inputs), function(*doubled(inputs)), sums=True)


@pytest.mark.parametrize("rows", [4, 40, 200])
def test_the_number_of_threads_changes_no_number(model: Model, rows: int) -> None:
    inputs = operands(rows, 200, 900)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(model, "gelu", inputs)
        for more in (2, 3, 16):
            torch.set_num_threads(more)
            assert torch.equal(run(model, "gelu", inputs), alone)
    finally:
        torch.set_num_threads(threads)


def test_rows_may_lie_apart(model: Model) -> None:
    x, w, b, r = operands(40, 50, 70)
    apart = torch.cat([x, x], dim=1)[:, :70], torch.cat([w, w], dim=1)[:, :70], b, r
    assert torch.equal(run(model, "gelu", apart), run(model, "gelu", (x, w, b, r)))
