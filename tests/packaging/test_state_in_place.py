"""State that changes in part is written where it is; a call that fails leaves it as it was."""

import pytest
import torch
from torch import nn

import precast
from precast.export import export
from precast.options import as_options
from precast.packaging.package import prepare_entries
from precast.packaging.storages import SharedStorages


class Notes(nn.Module):
    """Writes rows of a table one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.register_buffer("rows", torch.zeros(6, 4))
        self.register_buffer("others", torch.zeros(6, 4))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, number: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        place = self.position[None]
        self.rows.index_copy_(0, place, self.table(number))
        self.others.index_copy_(0, place, self.table(other))
        self.position.add_(1)
        return self.rows.sum(0) + self.others.sum(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Notes()


def numbers(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def test_updates_in_part_are_no_outputs(model):
    program = export(model, numbers(1, 2))
    (prepared,) = prepare_entries({"forward": program}, SharedStorages(), as_options(None)).values()
    code = prepared.code
    assert {code.weights[each.name] for each in code.program.written_inputs} == {"rows", "others", "position"}
    assert not code.updates


def test_a_call_that_fails_leaves_all_state_as_it_was(model, tmp_path):
    loaded = precast.runtime.load(precast.package(model, numbers(1, 2), path=tmp_path / "notes.precast"))
    with torch.no_grad():
        for pair in (numbers(1, 2), numbers(3, 4)):
            torch.testing.assert_close(loaded(*pair), model(*pair))
    before = {name: loaded.state[name] for name in ("rows", "others", "position")}
    # What comes first in the program would have been written by the time that the second lookup fails.
    with pytest.raises(IndexError):
        loaded(*numbers(5, 99))
    for name, value in before.items():
        assert (loaded.state[name] == value).all(), name
    for _ in range(4):
        loaded(*numbers(0, 0))
    with pytest.raises(IndexError):
        loaded(*numbers(0, 0))


def test_state_that_is_also_returned_stays_a_result(tmp_path):
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(x)
            return self.count

    loaded = precast.runtime.load(precast.package(Counter(), (torch.ones(3),), path=tmp_path / "counter.precast"))
    first, second = (loaded(torch.ones(3)) for _ in range(2))
    assert (first.tolist(), second.tolist()) == ([1, 1, 1], [2, 2, 2])
