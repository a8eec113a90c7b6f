"""Unwraps weights that are tensor subclasses into the plain tensors inside them.

Before: ``p_weight``, a subclass that wraps two tensors
After:  ``p_parametrizations_weight_original0`` and ``…_original1``, torch's names for a parametrization's tensors
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils import parametrize

from precast.errors import ExportError
from precast.graph.module_arguments import module_over
from precast.graph.nodes import value_of
from precast.graph.opened_objects import is_wrapper
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, TensorArgument
from precast.trace.capture.call import as_identifier
from precast.trace.fake_inputs import innermost
from precast.trace.record import FlatFunction


@dataclass(frozen=True)
class _Form:
    """How a subclass is constructed from its inner tensors; a plain tensor has none."""

    kind: Any
    parts: tuple[tuple[str, "_Form | None"], ...]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]

    def around(self, inner: Iterator[torch.Tensor]) -> Any:
        """Such a subclass around the next inner tensors."""
        parts = {name: next(inner) if form is None else form.around(inner) for name, form in self.parts}
        return self.kind.__tensor_unflatten__(parts, self.context, self.size, self.stride)


def _form_of(tensor: Any) -> _Form | None:
    if not is_wrapper(tensor):
        return None
    names, context = tensor.__tensor_flatten__()
    parts = tuple((name, _form_of(getattr(tensor, name))) for name in names)
    return _Form(type(tensor), parts, context, tensor.size(), tensor.stride())


class _Wrapped(torch.nn.Module):
    """Constructs the subclass from its inner tensors."""

    def __init__(self, form: _Form) -> None:
        super().__init__()
        self._form = form

    def forward(self, *inner: torch.Tensor) -> Any:
        # An identity call: constructing a subclass is not an operator, so tracing would not know its inner tensors.
        return self._form.around(tensor.to(tensor.dtype) for tensor in inner)

    def right_inverse(self, wrapper: torch.Tensor) -> Sequence[torch.Tensor]:
        return innermost(wrapper)


def with_plain_state(module: torch.nn.Module) -> torch.nn.Module:
    """The module, or one like it whose wrapped parameters and buffers are computed from their inner tensors."""
    state = [*module.named_parameters(), *module.named_buffers()]
    wrapped = [(name, form) for name, tensor in state if (form := _form_of(tensor)) is not None]
    if not wrapped:
        return module
    copy: torch.nn.Module = module_over(module, {})
    for name, form in wrapped:
        owner, _, last = name.rpartition(".")
        parametrize.register_parametrization(copy.get_submodule(owner), last, _Wrapped(form), unsafe=True)
    return copy


def plain_inputs(program: Program) -> tuple[Program, list[Any]]:
    """The program's signature and state over plain tensors, and values for its inputs; its graph is unchanged."""
    specs: list[InputSpec] = []
    values: list[Any] = []
    state = dict(program.state)
    assert program.boundary is not None, "exported programs are functional"
    facts = []
    for spec, node, fact in zip(program.signature.inputs, program.placeholders, program.boundary.inputs, strict=True):
        value = value_of(node)
        if not is_wrapper(value):
            specs.append(spec)
            values.append(value)
            facts.append(fact)
            continue
        if spec.kind is InputKind.USER_INPUT or fact.is_updated:
            raise ExportError(
                f"{spec.arg.name} is a tensor subclass and cannot be unwrapped.",
                why="an argument, or a buffer that is updated, is one tensor to the caller",
                fix="Pass the tensors inside of it, or do not decompose the program.",
            )
        owner, _, last = str(spec.target).rpartition(".")
        tensor = state.pop(str(spec.target))
        for number, (part, fake) in enumerate(zip(innermost(tensor), innermost(value), strict=True)):
            path = f"{owner}.parametrizations" if owner else "parametrizations"
            target = f"{path}.{last}.original{number}"
            is_parameter = spec.kind is InputKind.PARAMETER
            state[target] = torch.nn.Parameter(part, tensor.requires_grad) if is_parameter else part
            name = as_identifier(f"{spec.arg.name[:2]}{target}".lower())
            specs.append(replace(spec, arg=TensorArgument(name), target=target))
            values.append(fake)
            facts.append(fact)
    changed = program.replace(
        signature=program.signature.replace(inputs=tuple(specs)),
        state=state,
        boundary=replace(program.boundary, inputs=tuple(facts)),
    )
    return changed, values


def over_plain_inputs(function: FlatFunction, inputs: Sequence[Any]) -> FlatFunction:
    """``function``, called with subclasses around the inner tensors among its inputs."""
    forms = [_form_of(value) for value in inputs]

    def run(*inputs: Any) -> list[Any]:
        remaining = iter(inputs)
        whole = [next(remaining) if form is None else form.around(remaining) for form in forms]
        return list(function(*whole))

    return run
