"""The same call with ``torch.onnx.export(…, dynamo=True)`` and with ours: equal inputs, outputs, sizes and numbers."""

import warnings
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch.utils import _pytree as pytree

from precast.onnx import ONNXProgram, export
from tests.onnx import torch_calls_models, torch_calls_operators
from tests.onnx.torch_calls import CALLS, Call

QUICK_EVERY = 24
assert torch_calls_operators.QUERY is not None, "importing it adds calls"
assert torch_calls_models.Pair is not None, "this too"


def exported(how: Any, call: Call, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return how(call.model, call.args, **call.options, **options)


def both(call: Call) -> tuple[Any, ONNXProgram]:
    return exported(torch.onnx.export, call, dynamo=True, verbose=False), exported(export, call, dynamo=True)


def described(values: Any, *, names: int) -> list[Any]:
    """Types and sizes of all, and the names of the first ones."""
    return [(value.name if i < names else "", value.dtype, sizes_of(value)) for i, value in enumerate(values)]


def sizes_of(value: ir.Value) -> list[Any]:
    """Numbers as they are; names the user's, or just that the size is free."""
    return [size if isinstance(size, int) else "free" for size in value.shape]


def user_names(program: Any) -> list[str]:
    sizes = (size for value in program.model.graph.inputs for size in value.shape)
    return [str(size) for size in sizes if not isinstance(size, int)]


def arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example as a call of the model."""
    if not isinstance(call.model, torch.nn.Module):
        return call.model.example_inputs
    args = call.args if isinstance(call.args, tuple) else (call.args,)
    if args and isinstance(args[-1], dict) and "kwargs" not in call.options:
        return args[:-1], args[-1]
    return args, call.options.get("kwargs", {})


def positional(args: Any, kwargs: Any, program: Any) -> list[Any]:
    """What torch's program takes: inputs by their position alone."""
    leaves = pytree.tree_leaves((args, kwargs))
    is_number_taken = len(program.model.graph.inputs) == len(leaves)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) or is_number_taken]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if i % QUICK_EVERY else ()) for i, name in enumerate(CALLS)]
)
def test_call(name: str):
    torch.manual_seed(0)
    call = CALLS[name]()
    theirs, ours = both(call)
    assert described(ours.model.graph.inputs, names=99) == described(theirs.model.graph.inputs, names=99)
    outputs, count = theirs.model.graph.outputs, len(call.options.get("output_names", ()))
    assert described(ours.model.graph.outputs[: len(outputs)], names=count) == described(outputs, names=count)
    if is_named(call.options.get("dynamic_shapes", call.options.get("dynamic_axes"))):
        assert user_names(ours) == user_names(theirs)
    for args, kwargs in [arguments(call), *((other, {}) for other in call.others)]:
        expected = theirs(*positional(args, kwargs, theirs))
        torch.testing.assert_close(ours(*args, **kwargs), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_there_are_more_than_a_hundred_calls():
    assert len(CALLS) > 100


def is_named(spec: Any) -> bool:
    """Whether every dynamic size has a name of the user's."""
    leaves = pytree.tree_leaves(spec)
    return spec is not None and all(isinstance(leaf, (str, int, type(None), torch.export.Dim)) for leaf in leaves)
