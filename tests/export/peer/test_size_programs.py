"""Programs with dynamic sizes: both exporters accept the same, record the same, and take and refuse the same calls."""

import pytest
import torch
from torch import nn

from tests.export.peer.comparison import Case, differences, module

ONES = torch.ones


def calls(*tensors):
    """One call for each tensor, or tuple of arguments."""
    return [((each,) if isinstance(each, torch.Tensor) else each, {}) for each in tensors]


def pairs(*sizes):
    return [((ONES(left), ONES(right)), {}) for left, right in sizes]


def more(peer):
    described = peer.AdditionalInputs()
    described.add((ONES(6),))
    return described


doubled = module(lambda self, x: x * 2)
added = module(lambda self, x, y: x + y)
shifted = module(lambda self, x, y: x + y[1:])
in_rows = module(lambda self, x: x.reshape(-1, 4))
at_least_five = module(lambda self, x: x * 2 if x.shape[0] >= 5 else x)
below_twelve = module(lambda self, x: x * 2 if x.shape[0] < 12 else x)
convolution = lambda: nn.Conv2d(3, 4, 3)  # noqa: E731
ROWS = (ONES(4, 3), ONES(4, 3))

CASES = {
    "one dim": Case(
        doubled,
        (ONES(4, 3),),
        shapes=lambda p: {"x": {0: p.Dim("b")}},
        calls=calls(ONES(7, 3), ONES(4, 4), ONES(1, 3), ONES(0, 3)),
    ),
    "a range": Case(
        doubled,
        (ONES(4, 3),),
        shapes=lambda p: {"x": {0: p.Dim("b", min=2, max=8)}},
        calls=calls(ONES(9, 3), ONES(8, 3)),
    ),
    "by position": Case(doubled, (ONES(4, 3),), shapes=lambda p: ((p.Dim("b"), None),), calls=calls(ONES(7, 3))),
    "one dim twice": Case(
        added,
        ROWS,
        shapes=lambda p: [{0: p.Dim("b")}] * 2,
        calls=[((ONES(7, 3), ONES(7, 3)), {}), ((ONES(7, 3), ONES(6, 3)), {})],
    ),
    "two that must be equal": Case(added, ROWS, shapes=lambda p: ({0: p.Dim("b")}, {0: p.Dim("c")})),
    "two automatic ones that are equal": Case(
        added,
        ROWS,
        shapes=lambda p: [{0: p.Dim.AUTO}] * 2,
        calls=[((ONES(7, 3), ONES(7, 3)), {}), ((ONES(7, 3), ONES(6, 3)), {})],
    ),
    "two dynamic ones that are equal": Case(
        added, ROWS, shapes=lambda p: [{0: p.Dim.DYNAMIC}] * 2, calls=[((ONES(7, 3), ONES(7, 3)), {})]
    ),
    "automatic next to static": Case(added, ROWS, shapes=lambda p: ({0: p.Dim.AUTO}, None)),
    "dynamic next to static": Case(added, ROWS, shapes=lambda p: ({0: p.Dim.DYNAMIC}, None)),
    "a dim next to static": Case(added, ROWS, shapes=lambda p: ({0: p.Dim("b")}, None)),
    "one more": Case(
        shifted,
        (ONES(5), ONES(6)),
        calls=pairs((4, 5), (4, 6), (2, 3)),
        shapes=lambda p: ({0: p.Dim("d", min=3, max=6)}, {0: p.Dim("d", min=3, max=6) + 1}),
    ),
    "one more that was not said": Case(
        shifted, (ONES(5), ONES(6)), shapes=lambda p: ({0: p.Dim("d")}, {0: p.Dim("e")})
    ),
    "twice as many": Case(
        module(lambda self, x, y: x + y[::2]),
        (ONES(5), ONES(10)),
        calls=pairs((4, 8), (4, 6)),
        shapes=lambda p: ({0: p.Dim("d", min=3, max=6)}, {0: 2 * p.Dim("d", min=3, max=6)}),
    ),
    "a multiple alone": Case(
        module(lambda self, x: x.reshape(-1, 2)),
        (ONES(10),),
        calls=calls(ONES(8), ONES(7), ONES(40)),
        shapes=lambda p: ({0: 2 * p.Dim("d", min=3, max=6)},),
    ),
    "two of a root that is no input": Case(
        module(lambda self, x, y: (x + 1, y + 1)),
        (ONES(10), ONES(6)),
        shapes=lambda p: ({0: 2 * p.Dim("d", min=3, max=6)}, {0: p.Dim("d", min=3, max=6) + 1}),
        calls=pairs((8, 5), (8, 6)),
    ),
    "divisible": Case(in_rows, (ONES(8),), shapes=lambda p: ({0: p.Dim("d")},)),
    "divisible, automatic": Case(
        in_rows, (ONES(8),), shapes=lambda p: ({0: p.Dim.AUTO},), calls=calls(ONES(12), ONES(13))
    ),
    "divisible, dynamic": Case(
        in_rows, (ONES(8),), shapes=lambda p: ({0: p.Dim.DYNAMIC},), calls=calls(ONES(12), ONES(13))
    ),
    "divisible, checked later": Case(
        in_rows,
        (ONES(8),),
        shapes=lambda p: ({0: p.Dim("d")},),
        calls=calls(ONES(12), ONES(13)),
        options={"prefer_deferred_runtime_asserts_over_guards": True},
        differs={"operators": "calls are checked, not the graph"},
    ),
    "at least five, automatic": Case(
        at_least_five, (ONES(8),), shapes=lambda p: ({0: p.Dim.AUTO},), calls=calls(ONES(5), ONES(4))
    ),
    "at least five, promised less": Case(at_least_five, (ONES(8),), shapes=lambda p: ({0: p.Dim("b")},)),
    "at least five, promised": Case(at_least_five, (ONES(8),), shapes=lambda p: ({0: p.Dim("b", min=6)},)),
    "dynamic within bounds": Case(
        doubled,
        (ONES(8),),
        shapes=lambda p: ({0: p.Dim.DYNAMIC(min=4, max=16)},),
        calls=calls(ONES(3), ONES(17), ONES(16)),
    ),
    "automatic within bounds": Case(
        below_twelve, (ONES(8),), shapes=lambda p: ({0: p.Dim.AUTO(min=4, max=16)},), calls=calls(ONES(13), ONES(11))
    ),
    "static": Case(doubled, (ONES(8),), shapes=lambda p: ({0: p.Dim.STATIC},), calls=calls(ONES(3))),
    "a number": Case(doubled, (ONES(8),), shapes=lambda p: ({0: 8},), calls=calls(ONES(3))),
    "another number": Case(doubled, (ONES(8),), shapes=lambda p: ({0: 9},)),
    "a product": Case(
        module(lambda self, x, y: x @ y),
        (ONES(4, 5), ONES(5, 6)),
        shapes=lambda p: [{0: p.Dim.AUTO, 1: p.Dim.AUTO}] * 2,
        calls=[((ONES(2, 3), ONES(3, 8)), {}), ((ONES(2, 3), ONES(4, 8)), {})],
    ),
    "one after the other": Case(
        module(lambda self, x, y: torch.cat([x, y])),
        (ONES(4), ONES(5)),
        calls=pairs((2, 3)),
        shapes=lambda p: ({0: p.Dim("a")}, {0: p.Dim("b")}),
    ),
    "broadcast": Case(
        added,
        (ONES(4, 5), ONES(1, 5)),
        shapes=lambda p: ({0: p.Dim("a")}, None),
        calls=[((ONES(2, 5), ONES(1, 5)), {})],
    ),
    "an example of size 1": Case(
        doubled,
        (ONES(1, 5),),
        shapes=lambda p: ({0: p.Dim("a")},),
        differs={"error": "an example of size 1 does not freeze a size"},
    ),
    "sizes as results": Case(
        module(lambda self, x: (x.shape[0], x.numel(), x.size(1) * 2)),
        (ONES(4, 5),),
        shapes=lambda p: ({0: p.Dim("a")},),
        calls=calls(ONES(2, 5)),
    ),
    "as many numbers": Case(
        module(lambda self, x: x + torch.arange(x.shape[0])),
        (ONES(4),),
        shapes=lambda p: ({0: p.Dim("a")},),
        calls=calls(ONES(2)),
    ),
    "a view by size": Case(
        module(lambda self, x: x.view(x.shape[0], -1)),
        (ONES(4, 2, 3),),
        shapes=lambda p: ({0: p.Dim("a")},),
        calls=calls(ONES(2, 2, 3)),
    ),
    "two sizes in one": Case(
        module(lambda self, x: x.flatten()),
        (ONES(4, 2, 3),),
        calls=calls(ONES(2, 5, 3)),
        shapes=lambda p: ({0: p.Dim("a"), 1: p.Dim("b")},),
    ),
    "expanded": Case(
        module(lambda self, x: x.expand(4, x.shape[1])),
        (ONES(1, 2),),
        shapes=lambda p: ({1: p.Dim("a")},),
        calls=calls(ONES(1, 5)),
    ),
    "even": Case(
        module(lambda self, x: x + 1 if x.shape[0] % 2 == 0 else x - 1),
        (ONES(4),),
        shapes=lambda p: ({0: p.Dim.AUTO},),
        calls=calls(ONES(6), ONES(5)),
    ),
    "a constant, promised": Case(module(lambda self, x: x + ONES(4)), (ONES(4),), shapes=lambda p: ({0: p.Dim("a")},)),
    "a constant, dynamic": Case(
        module(lambda self, x: x + ONES(4)), (ONES(4),), shapes=lambda p: ({0: p.Dim.DYNAMIC},)
    ),
    "a constant, automatic": Case(
        module(lambda self, x: x + ONES(4)), (ONES(4),), shapes=lambda p: ({0: p.Dim.AUTO},), calls=calls(ONES(5))
    ),
    "unused": Case(
        module(lambda self, x, y: x + 1),
        (ONES(4), ONES(4)),
        calls=pairs((5, 6)),
        shapes=lambda p: ({0: p.Dim("a")}, {0: p.Dim("b")}),
    ),
    "in a dict": Case(
        module(lambda self, d: d["a"] + d["b"]),
        ({"a": ONES(4), "b": ONES(4)},),
        shapes=lambda p: {"d": {"a": {0: p.Dim("k")}, "b": {0: p.Dim("k")}}},
        calls=[(({"a": ONES(5), "b": ONES(5)},), {}), (({"b": ONES(5), "a": ONES(5)},), {})],
    ),
    "in a list": Case(
        module(lambda self, d: d[0] + d[1]),
        ([ONES(4), ONES(4)],),
        shapes=lambda p: {"d": [{0: p.Dim("k")}, {0: p.Dim("k")}]},
        calls=[(([ONES(5), ONES(5)],), {})],
    ),
    "by keyword": Case(
        module(lambda self, x, *, y: x + y),
        (ONES(4),),
        {"y": ONES(4)},
        shapes=lambda p: {"x": {0: p.Dim("k")}, "y": {0: p.Dim("k")}},
        calls=[((ONES(5),), {"y": ONES(5)})],
    ),
    "variable arguments": Case(
        module(lambda self, *a: a[0] + a[1]),
        (ONES(4), ONES(4)),
        shapes=lambda p: {"a": ({0: p.Dim("k")}, {0: p.Dim("k")})},
        calls=pairs((5, 5)),
    ),
    "another name": Case(doubled, (ONES(4),), shapes=lambda p: {"z": {0: p.Dim("k")}}),
    "too few": Case(added, ROWS, shapes=lambda p: (None,)),
    "too few dims": Case(doubled, (ONES(4, 5),), shapes=lambda p: ((p.Dim("a"),),)),
    "no such dimension": Case(doubled, (ONES(4, 5),), shapes=lambda p: ({5: p.Dim("a")},)),
    "an example outside of the range": Case(doubled, (ONES(4, 5),), shapes=lambda p: ({0: p.Dim("a", max=3)},)),
    "one within the other": Case(
        module(lambda self, x, y: x[: y.shape[0]] + y),
        (ONES(8), ONES(4)),
        shapes=lambda p: [{0: p.Dim.AUTO}] * 2,
        calls=pairs((9, 3), (3, 9)),
    ),
    "split": Case(
        module(lambda self, x: x.split(2)),
        (ONES(6),),
        shapes=lambda p: ({0: p.Dim.AUTO},),
        calls=calls(ONES(6), ONES(8)),
    ),
    "chunks": Case(
        module(lambda self, x: x.chunk(3, 1)),
        (ONES(4, 6),),
        shapes=lambda p: ({0: p.Dim("a")},),
        calls=calls(ONES(8, 6)),
    ),
    "a convolution": Case(
        convolution,
        (ONES(2, 3, 16, 16),),
        calls=calls(ONES(3, 3, 20, 12)),
        shapes=lambda p: ({0: p.Dim("b"), 2: p.Dim("h", min=4), 3: p.Dim("w", min=4)},),
    ),
    "a convolution of any size": Case(convolution, (ONES(2, 3, 16, 16),), shapes=lambda p: ({2: p.Dim("h")},)),
    "a convolution, automatic": Case(
        convolution,
        (ONES(2, 3, 16, 16),),
        calls=calls(ONES(3, 3, 20, 12)),
        shapes=lambda p: ({0: p.Dim.AUTO, 2: p.Dim.AUTO, 3: p.Dim.AUTO},),
    ),
    "a number as input": Case(
        module(lambda self, x, n: x * n),
        (ONES(4), 3),
        shapes=lambda p: (None, p.Dim.DYNAMIC),
        calls=calls((ONES(4), 5), (ONES(4), 1), (ONES(4), 0), (ONES(4), -2)),
        differs={"ranges": "whole numbers may be negative"},
    ),
    "a number as bound": Case(
        module(lambda self, x, n: x[:n]),
        (ONES(4), 3),
        shapes=lambda p: (None, p.Dim.AUTO),
        calls=calls((ONES(4), 2), (ONES(4), 9)),
    ),
    "a number as constant": Case(module(lambda self, x, n: x * n), (ONES(4), 3), calls=calls((ONES(4), 5))),
    "a number by keyword": Case(
        module(lambda self, x, *, n: x.new_zeros(n) + n),
        (ONES(4),),
        {"n": 3},
        shapes=lambda p: {"x": None, "n": p.Dim.DYNAMIC},
        calls=[((ONES(4),), {"n": 7})],
    ),
    "a number in a list": Case(
        module(lambda self, x, n: x * n[0] + n[1]),
        (ONES(4), [3, 4]),
        shapes=lambda p: (None, [p.Dim.DYNAMIC, None]),
        calls=calls((ONES(4), [7, 4]), (ONES(4), [7, 5])),
        differs={"ranges": "whole numbers may be negative"},
    ),
    "further calls": Case(doubled, (ONES(4),), shapes=more, calls=calls(ONES(9))),
}


@pytest.mark.parametrize("name", CASES)
def test_both_exporters_agree(name):
    assert not differences(CASES[name])
