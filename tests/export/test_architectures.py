"""Whole architectures: exported with dynamic sizes, right at sizes never seen, equal bits from a new process."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.export import Dim, ExportedProgram, export, load, save, unflatten
from precast.trace.capture.dynamic_shapes import DerivedDim
from tests.models.zoo import QUICK, ZOO, Example

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]
# What every free size is set to in turn; kept small where the range has no small end.
SIZES = (1, 2, 7, None)


def exported(name: str, *, training: bool = False) -> tuple[Example, ExportedProgram]:
    torch.manual_seed(0)
    example = ZOO[name]().train(training)
    return example, export(example.module, example.args, example.kwargs, dynamic_shapes=example.dynamic_shapes)


def resized(example: Example, size: int | None) -> dict[str, object]:
    """The example call with every dynamic size set; ``None`` is the largest that is allowed, but at most 64."""
    call = dict(example.kwargs)
    for name, dims in example.dynamic_shapes.items():
        tensor = call[name]
        for dimension, spec in (dims or {}).items():
            tensor = _with_size(tensor, dimension, _size_of(spec, size))
        call[name] = tensor
    return call


def _size_of(spec: Dim | DerivedDim, size: int | None) -> int:
    root = spec.root if isinstance(spec, DerivedDim) else spec
    wanted = root.min + 64 if size is None else max(size, root.min)
    wanted = min(wanted, root.max) if root.max is not None else wanted
    return spec.scale * wanted + spec.offset if isinstance(spec, DerivedDim) else wanted


def _with_size(tensor: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    numbers = torch.arange(size) % tensor.shape[dimension]
    return tensor.index_select(dimension, numbers)


def assert_like_eager(module: torch.nn.Module, example: Example, call: Mapping[str, object]) -> None:
    with torch.no_grad():
        expected = example.module(*example.args, **call)
        result = module(*example.args, **call)
    torch.testing.assert_close(pytree.tree_leaves(result), pytree.tree_leaves(expected))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_never_seen(name):
    example, program = exported(name)
    module = program.module()
    for size in SIZES:
        assert_like_eager(module, example, resized(example, size))


LOADING = """
import sys, torch, transformers
from torch.utils import _pytree as pytree
from precast.export import load
expected = torch.load(sys.argv[2], weights_only=False)
program = load(sys.argv[1])
assert str(program) == expected["text"]
with torch.no_grad():
    results = pytree.tree_leaves(program.module()(**expected["call"]))
assert all(torch.equal(a, b) for a, b in zip(results, expected["results"], strict=True))
"""


# Importing transformers in a new process takes long; other tests of the fast tier load smaller programs in one.
@pytest.mark.models
@pytest.mark.parametrize("name", list(ZOO))
def test_a_new_process_gives_equal_bits_and_equal_text(name, tmp_path: Path):
    example, program = exported(name)
    call = example.other_kwargs
    with torch.no_grad():
        results = pytree.tree_leaves(program.module()(**call))
    save(program, tmp_path / "program.pt2")
    torch.save({"text": str(program), "call": call, "results": results}, tmp_path / "expected.pt")
    output = type(example.module(**example.kwargs))
    # Loading never imports code: the class of the result must be registered by whoever loads.
    code = f"import {output.__module__}\n{LOADING}"
    subprocess.run([sys.executable, "-c", code, tmp_path / "program.pt2", tmp_path / "expected.pt"], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_decomposed_and_unflattened(name):
    example, program = exported(name)
    assert_like_eager(program.run_decompositions().module(), example, example.other_kwargs)
    assert_like_eager(unflatten(program), example, example.other_kwargs)


@pytest.mark.models
@pytest.mark.parametrize("name", list(ZOO))
def test_training_mode(name, tmp_path: Path):
    example, program = exported(name, training=True)
    save(program, tmp_path / "program.pt2")
    call, results = example.other_kwargs, []
    for module in (example.module, load(tmp_path / "program.pt2").module()):
        torch.manual_seed(0)
        results.append(pytree.tree_leaves(module(*example.args, **call)))
    torch.testing.assert_close(*results)
