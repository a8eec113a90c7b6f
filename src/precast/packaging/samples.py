"""Example inputs with their expected results, and the tolerances of these.

The program is run twice, as it is and in double precision. The latter is the reference; a native result may be as far
from it as a few times eager's error, plus a few roundings of its own dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from precast.artifact.schema import Json
from precast.artifact.weights import Weight
from precast.errors import InputTypeError, InputValueError
from precast.export.program import ExportedProgram
from precast.export.serialize.tensors import weight_of
from precast.graph.opened_objects import opened
from precast.graph.signature import ConstantArgument, InputKind

EAGER_ERRORS, ROUNDINGS = 8, 32
_WIDENED = {
    torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip
Call = tuple[Sequence[Any], Mapping[str, Any]]


def calls_to_sample(samples: object, name: str, exported: ExportedProgram) -> list[Call]:
    """The calls to store: the example, or those that were passed, possibly by entry."""
    chosen = samples.get(name, True) if isinstance(samples, Mapping) else samples
    if chosen is True:
        return [] if exported.example_inputs is None else [exported.example_inputs]
    if chosen is False:
        return []
    if isinstance(chosen, Sequence) and all(isinstance(each, tuple) and len(each) == 2 for each in chosen):
        return list(chosen)
    raise InputTypeError(
        f"samples cannot be {type(samples).__name__}.",
        why="they are True for the example inputs, False, or a list of calls",
        fix="Write, for example, samples=[((x,), {}), ((y,), {})].",
    )


def entry_samples(
    name: str, exported: ExportedProgram, outputs: Sequence[int | None], calls: Sequence[Call]
) -> tuple[list[Json], dict[str, Weight]]:
    """The manifest's record of each sample, and the tensors that it refers to."""
    records: list[Json] = []
    tensors: dict[str, Weight] = {}
    for number, (args, kwargs) in enumerate(calls):
        args, kwargs = exported.call_convention.normalized(args, kwargs)
        leaves = pytree.tree_leaves(opened((tuple(args), dict(kwargs))))
        specs = exported.program.signature.inputs_of(InputKind.USER_INPUT)
        given = [leaf for leaf, spec in zip(leaves, specs, strict=True) if not isinstance(spec.arg, ConstantArgument)]
        inputs: list[Json] = []
        for position, leaf in enumerate(given):
            if isinstance(leaf, torch.Tensor):
                key = f"{name}/{number}/input/{position}"
                tensors[key] = as_weight(leaf)
                inputs.append(key)
            elif leaf < 0:
                raise InputValueError(
                    f"A call of {name!r} to sample passes the integer {leaf}, which is a dynamic size of the program.",
                    why="native code in packages computes with sizes from 0 on",
                    fix="Pass a tensor, or leave the integer out of dynamic_shapes.",
                )
            else:
                inputs.append(leaf)
        expected: list[Json] = []
        for position, (tensor, tolerance) in enumerate(_expected(exported, leaves, outputs)):
            key = f"{name}/{number}/output/{position}"
            tensors[key] = as_weight(tensor)
            expected.append({"tensor": key, "tolerance": tolerance})
        records.append({"inputs": inputs, "outputs": expected})
    return records, tensors


def as_weight(tensor: torch.Tensor) -> Weight:
    """A row-major copy of the tensor, as its bits."""
    return weight_of(tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format))


def _expected(
    exported: ExportedProgram, leaves: Sequence[Any], outputs: Sequence[int | None]
) -> list[tuple[torch.Tensor, float]]:
    """The expected value of each output of the entry, and its tolerance."""
    numbers = [number for number, output in enumerate(outputs) if output is not None]
    module, inputs = exported.program.module, _inputs(exported, leaves)
    with torch.no_grad():
        eager = _InEager(module)
        narrow = eager.run(*inputs)
        exact = _InDouble(module, eager.decisions).run(*inputs)
    return [_with_tolerance(narrow[number], exact[number]) for number in numbers]


def _with_tolerance(eager: torch.Tensor | int, exact: torch.Tensor) -> tuple[torch.Tensor, float]:
    if not isinstance(eager, torch.Tensor):
        return torch.tensor(eager), 0.0
    if not eager.is_floating_point() and not eager.is_complex():
        return eager, 0.0
    wide = torch.complex128 if eager.is_complex() else torch.float64
    truth, narrow = exact.to(wide), eager.to(wide)
    expected = truth.to(eager.dtype)
    # Double precision has limits of its own: what `nan_to_num` makes of infinity there is none of this dtype's numbers.
    expected = torch.where(expected.isfinite() | ~eager.isfinite(), expected, eager)
    finite = truth.to(eager.dtype).isfinite() & eager.isfinite()
    errors, sizes = (narrow - truth)[finite].abs(), truth[finite].abs()
    if not errors.numel():
        return expected, 0.0
    rounding = torch.finfo(eager.dtype).eps * float(sizes.max())
    return expected, EAGER_ERRORS * float(errors.max()) + ROUNDINGS * rounding


def _inputs(exported: ExportedProgram, leaves: Sequence[Any]) -> list[Any]:
    """The arguments of the graph. A functional graph does not change the state and the arguments."""
    program, remaining = exported.program, iter(leaves)
    return [
        next(remaining) if spec.kind is InputKind.USER_INPUT else program.state[str(spec.target)]
        for spec in program.signature.inputs
    ]


class _InEager(fx.Interpreter):
    """Runs a graph as it is, and keeps integers and booleans: masks, places and data-dependent sizes."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.decisions: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        is_exact = isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())
        if n.op == "call_function" and (is_exact or isinstance(result, int)):
            self.decisions[n] = result
        return result


class _InDouble(fx.Interpreter):
    """Runs a graph in double precision, even where it requests a narrower type, with the decisions of eager mode.

    A comparison with 0.1, say, is decided otherwise in double precision, and results may then have other sizes.
    """

    def __init__(self, module: fx.GraphModule, decisions: Mapping[fx.Node, Any]):
        super().__init__(module)
        self._decisions = decisions

    def run_node(self, n: fx.Node) -> Any:
        return self._decisions[n] if n in self._decisions else super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        if isinstance(target, HigherOrderOperator):
            args = tuple(_InDouble(each, {}).run if isinstance(each, fx.GraphModule) else each for each in args)
        return pytree.tree_map(_widened, super().call_function(target, args, kwargs))


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _WIDENED:
        return value.to(_WIDENED[value.dtype])
    return _WIDENED.get(value, value) if isinstance(value, torch.dtype) else value
