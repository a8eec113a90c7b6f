"""The example cases that ship inside torch: those in the kept list run like eager, the others fail for the told reason.

``example_cases.toml`` is the list. A case that a new torch adds must be put there on purpose.
"""

import copy
import tomllib
from pathlib import Path

import pytest
import torch
import torch.export
from torch._export.db.examples import all_examples
from torch.utils import _pytree as pytree

from precast.errors import PrecastError
from precast.export import Dim, export

CASES = all_examples()
LIST = tomllib.loads((Path(__file__).parent / "example_cases.toml").read_text())
RUNNING, FAILING = LIST["runs"], LIST["fails"]


def our_dims(shapes: object) -> object:
    """PyTorch's ``Dim`` objects as ours."""

    def convert(leaf: object) -> object:
        if isinstance(leaf, torch.export.dynamic_shapes._DimHint):
            return Dim.AUTO
        return Dim(leaf.__name__) if isinstance(leaf, torch.export.Dim) else leaf

    return pytree.tree_map(convert, shapes) if shapes else None


def exported(name: str):
    case = CASES[name]
    args, kwargs = copy.deepcopy((case.example_args, case.example_kwargs))
    return export(case.model, args, kwargs, dynamic_shapes=our_dims(case.dynamic_shapes))


def test_the_list_is_complete():
    assert set(RUNNING) | set(FAILING) >= set(CASES)


@pytest.mark.parametrize("name", RUNNING)
def test_a_case_runs_like_eager(name):
    if name not in CASES:
        pytest.skip("not in this version of torch")
    case, program = CASES[name], exported(name)
    for args in filter(None, (case.example_args, case.extra_args)):
        inputs = copy.deepcopy(args)
        expected = copy.deepcopy(case.model)(*copy.deepcopy(args), **case.example_kwargs)
        torch.testing.assert_close(program.module()(*inputs, **case.example_kwargs), expected)


@pytest.mark.parametrize("name", FAILING)
def test_a_case_fails_for_the_told_reason(name):
    if name not in CASES:
        pytest.skip("not in this version of torch")
    with pytest.raises(PrecastError, match=FAILING[name]):
        exported(name)
