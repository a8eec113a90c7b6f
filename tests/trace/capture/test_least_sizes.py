import pytest
import torch
from torch.nn import functional

import precast
from precast import Dim
from precast.errors import InputValueError
from precast.runtime import load
from precast.trace.capture import capture


def lower(function, *shape: int, dim: int = 0) -> int:
    """Where the range of a dynamic size begins."""
    program = capture(function, (torch.ones(shape),), dynamic_shapes=({dim: Dim("n")},))
    (symbol,) = program.sizes.symbols
    return symbol.range.lower


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[-1],
        lambda x: x[0],
        lambda x: x.amax(0),
        lambda x: x.argmax(0),
        lambda x: x.median(0).values,
        lambda x: functional.pad(x.T, (1, 1), mode="replicate"),
        lambda x: x.kthvalue(1, 0).values,
        lambda x: x.max(0).values,
        lambda x: functional.conv_transpose1d(x.T, torch.ones(3, 2, 2), stride=2),
        lambda x: functional.conv_transpose2d(x.T[None, ..., None], torch.ones(3, 2, 1, 1)),
    ],
)
def test_what_needs_an_element_begins_at_one(function):
    with pytest.raises((RuntimeError, IndexError)):
        function(torch.ones(0, 3))
    assert lower(function, 5, 3) == 1


@pytest.mark.parametrize(
    "function", [lambda x: x * 2, lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.sort(0).values]
)
def test_what_takes_nothing_begins_at_zero(function):
    assert lower(function, 5, 3) == 0


def test_a_result_of_other_dimensions_is_another_program():
    assert lower(lambda x: x.squeeze(), 5, 3) == 2


def test_values_inside_count_too():
    """Eager takes a matrix without rows in another way; the graph would cut a number out of nothing."""
    assert lower(torch.linalg.cond, 5, 5) == 1


def test_sizes_that_must_be_equal_are_tried_together():
    def model(x, y):
        return (x + y)[-1]

    shapes = ({0: Dim("n")}, {0: Dim("n")})
    program = capture(model, (torch.ones(5, 3), torch.ones(5, 3)), dynamic_shapes=shapes)
    assert [symbol.range.lower for symbol in program.sizes.symbols] == [1]


def test_two_sizes_begin_each_where_it_must():
    shapes = ({0: Dim("n"), 1: Dim("m")},)
    program = capture(lambda x: x[-1], (torch.ones(5, 3),), dynamic_shapes=shapes)
    assert {symbol.name: symbol.range.lower for symbol in program.sizes.symbols} == {"n": 1, "m": 0}


def test_what_the_user_declares_stays():
    program = capture(lambda x: x[-1], (torch.ones(5, 3),), dynamic_shapes=({0: Dim("n", min=3)},))
    assert [symbol.range.lower for symbol in program.sizes.symbols] == [3]


class Last(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens)[:, -1]


def test_a_package_refuses_what_eager_refuses(tmp_path):
    model, path = Last(), tmp_path / "last.precast"
    precast.package(precast.export(model, (torch.ones(2, 5).long(),), dynamic_shapes=({1: Dim("n")},)), path=path)
    packaged = load(path)
    for size in (1, 2, 7):
        tokens = torch.arange(2 * size).reshape(2, size) % 7
        torch.testing.assert_close(torch.as_tensor(packaged(tokens.numpy())), model(tokens).detach())
    with pytest.raises(ValueError, match=r"outside of n in 1\.\."):
        packaged(torch.ones(2, 0).long().numpy())


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: torch.trapezoid(x, dim=0), 1),
        (lambda x: x.relu(), 0),
        (lambda x: functional.layer_norm(x, (3,)).mean(0), 0),
    ],
)
def test_sizes_that_an_operator_takes_and_its_decomposition_does_not_are_refused(function, least, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    program = precast.export(Model(), (torch.rand(5, 3),), dynamic_shapes=({0: Dim("n")},))
    (range_of_size,) = program.run_decompositions().range_constraints.values()
    assert range_of_size.lower == least
    model = load(precast.package(program, path=tmp_path / "model.precast"))
    for size in range(3):
        x = torch.rand(size, 3)
        if size < least:
            with pytest.raises(InputValueError, match="outside of"):
                model(x)
        else:
            torch.testing.assert_close(model(x), function(x), equal_nan=True)


def test_sizes_that_data_tell_stay_as_they_are():
    class Places(torch.nn.Module):
        def forward(self, x):
            return x.nonzero() + x.shape[0]

    program = precast.export(Places(), (torch.ones(5, 3),), dynamic_shapes=({0: Dim("n")},)).run_decompositions()
    torch.testing.assert_close(program.module()(torch.eye(2, 3)), torch.eye(2, 3).nonzero() + 2)
