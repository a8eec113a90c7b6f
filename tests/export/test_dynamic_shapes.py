"""Dynamic sizes: every spelling, relations, and errors that list each contradiction with shapes to paste."""

import pytest
import torch

from precast.errors import SymbolicShapeError
from precast.export import Dim, export
from tests.export.models import Function


class Adding(torch.nn.Module):
    def forward(self, x, y):
        return x + y


BATCH = Dim("batch", min=1, max=64)


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: BATCH}, "y": {0: BATCH}},
        ({0: BATCH}, {0: BATCH}),
        [{0: BATCH}, (BATCH, None)],
        {"x": (BATCH, None), "y": [BATCH, 3]},
        {"x": {0: BATCH, 1: Dim.STATIC}, "y": {0: BATCH, -1: None}},
        {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}},
    ],
)
def test_every_spelling(shapes):
    exported = export(Adding(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=shapes)
    for batch in (1, 2, 13, 64):
        assert exported.module()(torch.ones(batch, 3), torch.ones(batch, 3)).shape == (batch, 3)


def test_relations():
    class Pairing(torch.nn.Module):
        def forward(self, x, y):
            return x + y[: x.shape[0]]

    half = Dim("half", min=2)
    exported = export(Pairing(), (torch.ones(4), torch.ones(9)), dynamic_shapes=({0: half}, {0: 2 * half + 1}))
    exported.module()(torch.ones(5), torch.ones(11))
    with pytest.raises(ValueError, match=r"y\.shape\[0\] is 10, but the other sizes make it 11"):
        exported.module()(torch.ones(5), torch.ones(10))


def test_ranges_come_out_per_symbol():
    exported = export(Adding(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    ((_, bounds),) = exported.range_constraints.items()
    assert (int(bounds.lower), int(bounds.upper)) == (1, 64)


class Contradicting(torch.nn.Module):
    def forward(self, x, y, z):
        a = x.reshape(4, -1)
        b = y + z
        return a, b, z[:5].view(5, 3) if z.shape[0] > 5 else z


def test_every_contradiction_is_listed_with_its_line_and_shapes_to_paste():
    first, second, third = Dim("first"), Dim("second"), Dim("third")
    args = (torch.ones(4, 3), torch.ones(6, 3), torch.ones(6, 3))
    with pytest.raises(SymbolicShapeError) as caught:
        export(Contradicting(), args, dynamic_shapes=({0: first}, {0: second}, {0: third}))
    text = str(caught.value)
    assert "second must be third" in text or "third must be second" in text
    assert text.count("test_dynamic_shapes.py:") >= 1
    assert "dynamic_shapes" in text.partition("fix:")[2]


def test_the_printed_shapes_hold_when_pasted():
    def frozen(x):
        return x * 2 if x.shape[0] == 4 else x

    with pytest.raises(SymbolicShapeError) as caught:
        export(Function(frozen), (torch.ones(4, 3),), dynamic_shapes=({0: Dim("rows")},))
    printed = str(caught.value).partition("Suggested fixes:\n")[2]
    names: dict[str, object] = {"Dim": Dim}
    exec(printed, names)
    export(Function(frozen), (torch.ones(4, 3),), dynamic_shapes=names["dynamic_shapes"])


def test_operators_whose_python_kernels_are_wrong_or_specialize():
    class Model(torch.nn.Module):
        def forward(self, x, target):
            pooled = torch.nn.functional.max_pool1d(x, 2)
            return torch.nn.functional.multilabel_margin_loss(x, target), pooled

    target = torch.tensor([[0, 1, -1, 2, 3]] * 6)
    sizes = ({0: Dim("batch"), 1: Dim("length", min=2)}, {0: Dim("batch"), 1: Dim("length", min=2)})
    program = export(Model(), (torch.rand(4, 6), torch.ones(4, 6, dtype=torch.int64)), dynamic_shapes=sizes)
    x = torch.rand(6, 5)
    torch.testing.assert_close(program.run_decompositions().module()(x, target), Model()(x, target))


def test_a_size_of_one_that_must_be_one_is_static_if_it_may_be():
    sizes = {0: Dim.AUTO, 1: Dim.AUTO}
    program = export(Adding(), (torch.ones(4, 3), torch.ones(1, 3)), dynamic_shapes=(sizes, sizes))
    assert program.module()(torch.ones(6, 2), torch.ones(1, 2)).shape == (6, 2)
    with pytest.raises(ValueError, match=r"y\.shape\[0\]"):
        program.module()(torch.ones(6, 2), torch.ones(6, 2))


def test_a_size_of_one_that_must_be_one_and_was_promised_to_be_free_is_named():
    with pytest.raises(SymbolicShapeError, match=r"unless y\.shape\[0\] is as in the example"):
        export(Adding(), (torch.ones(4, 3), torch.ones(1, 3)), dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))


def test_an_error_of_the_program_stays_what_it_is():
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        export(Function(torch.mm), (torch.ones(4, 3), torch.ones(1, 3)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
