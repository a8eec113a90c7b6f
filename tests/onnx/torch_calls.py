"""Calls of ``torch.onnx.export(…, dynamo=True)`` that must carry over: what is exported, how, and what to run it on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

DYNAMIC, AUTO, STATIC = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO, torch.export.Dim.STATIC
Dim = torch.export.Dim


@dataclass(frozen=True)
class Call:
    """``options`` are the keywords of export; ``others`` are further calls of what comes out."""

    model: Any
    args: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[tuple[Any, ...], ...] = ()


class Run(nn.Module):
    """A function as a module, under its own signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


CALLS: dict[str, Callable[[], Call]] = {}


def call(make: Callable[[], Call]) -> Callable[[], Call]:
    """Add a call under the name of the function that makes it."""
    assert make.__name__ not in CALLS, make.__name__
    CALLS[make.__name__] = make
    return make


def operator(
    name: str, function: Callable[..., Any], *args: Any, others: tuple[tuple[Any, ...], ...] = (), **options: Any
) -> None:
    """Add a call of one function."""
    assert name not in CALLS, name
    model = function if isinstance(function, nn.Module) else Run(function)
    CALLS[name] = lambda: Call(model, args, options, others)


def floats(*shape: int) -> torch.Tensor:
    """The same numbers each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Sum(nn.Module):
    def forward(self, x, bias=None):
        return x + 1 if bias is None else x + bias


class Nested(nn.Module):
    def forward(self, x, ys, zs, c):
        y = ys[0] + ys[1] + zs["a"] + zs["b"]
        return x + y, c * 5


def nested_args(size: int = 5) -> tuple[Any, ...]:
    return (
        floats(size),
        [floats(size), floats(size)],
        {"a": floats(size), "b": floats(size)},
        floats(6),
    )


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


# Arguments


@call
def bare_tensor() -> Call:
    return Call(Sum(), floats(2, 3))


@call
def keywords_in_a_trailing_dict() -> Call:
    return Call(Sum(), (floats(2, 3), {"bias": floats(2, 3)}))


@call
def no_keywords_in_a_trailing_dict() -> Call:
    return Call(Sum(), (floats(2, 3), {}))


@call
def keywords() -> Call:
    return Call(Sum(), (floats(2, 3),), {"kwargs": {"bias": floats(3)}})


@call
def keywords_alone() -> Call:
    return Call(Sum(), (), {"kwargs": {"x": floats(2, 3), "bias": floats(3)}})


@call
def nested_inputs() -> Call:
    return Call(Nested(), nested_args())


@call
def nested_inputs_with_names() -> Call:
    return Call(Nested(), nested_args(), {"input_names": ["x", "y", "z", "a", "b", "c"], "output_names": ["s", "t"]})


@call
def fewer_names_than_inputs() -> Call:
    return Call(Nested(), nested_args(), {"input_names": ["first"], "output_names": ["sum"]})


@call
def a_flag_and_a_number_are_constants() -> Call:
    def run(x, scale: float = 2.0, double: bool = True):
        return x * scale * (2 if double else 1)

    return Call(Run(run), (floats(3), 3.0, False))


@call
def none_among_the_inputs() -> Call:
    return Call(Sum(), (floats(3), None))


@call
def deprecated_options() -> Call:
    return Call(Sum(), (floats(3),), {"do_constant_folding": True, "export_params": True, "profile": False})


@call
def exported_program() -> Call:
    program = torch.export.export(Perceptron(), (floats(3, 4),), dynamic_shapes=({0: Dim("batch")},))
    return Call(program, (), {}, ((floats(5, 4),),))


@call
def exported_program_with_names() -> Call:
    program = torch.export.export(Perceptron(), (floats(3, 4),))
    return Call(program, (floats(3, 4),), {"input_names": ["features"], "output_names": ["scores"]})


@call
def weights_and_bias() -> Call:
    return Call(Perceptron().eval(), (floats(3, 4),), {"input_names": ["features"], "output_names": ["scores"]})


# Sizes


def shapes(name: str, dynamic_shapes: Any, *, model: nn.Module | None = None, **options: Any) -> None:
    """A model over ``x[3, 4]`` and ``bias[3, 4]`` with these sizes dynamic; then with five rows."""
    CALLS[name] = lambda: Call(
        model or Sum(),
        (floats(3, 4), floats(3, 4)),
        {"dynamic_shapes": dynamic_shapes, **options},
        ((floats(5, 4), floats(5, 4)),),
    )


shapes("string_names", {"x": {0: "batch"}, "bias": {0: "batch"}})
shapes("two_names_for_one_size", {"x": {0: "rows"}, "bias": {0: "others"}})
shapes("names_by_position", ({0: "batch"}, {0: "batch"}))
shapes("names_in_a_list", [{0: "batch"}, {0: "batch"}])
shapes("names_for_each_dimension", (("batch", "width"), ("batch", "width")))
shapes("names_and_none", ({0: "batch", 1: None}, {0: "batch"}))


shapes("names_and_hints", ({0: "batch", 1: STATIC}, {0: DYNAMIC}))
shapes("hints", ({0: DYNAMIC}, {0: DYNAMIC}))
shapes("automatic_hints", ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))
shapes("dims", {"x": {0: Dim("batch")}, "bias": {0: Dim("batch")}})
shapes("dims_with_a_range", {"x": {0: Dim("batch", min=2, max=64)}, "bias": {0: Dim("batch", min=2, max=64)}})
shapes("dims_and_static_numbers", {"x": {0: Dim("batch"), 1: 4}, "bias": {0: Dim("batch")}})


@call
def derived_dims() -> Call:
    batch = Dim("batch", min=2)
    described = ({0: batch}, {0: 2 * batch})
    return Call(Run(lambda x, y: torch.cat([x, y])), (floats(3), floats(6)), {"dynamic_shapes": described})


@call
def names_of_nested_inputs() -> Call:
    size = {0: "size"}
    described = {"x": size, "ys": [size, size], "zs": {"a": size, "b": size}, "c": {0: "other"}}
    return Call(Nested(), nested_args(), {"dynamic_shapes": described}, (nested_args(7),))


@call
def names_of_nested_inputs_with_input_names() -> Call:
    size = {0: "size"}
    described = {"x": size, "ys": [size, size], "zs": {"a": size, "b": size}, "c": {0: "other"}}
    names = ["x", "y", "z", "a", "b", "c"]
    return Call(Nested(), nested_args(), {"dynamic_shapes": described, "input_names": names}, (nested_args(7),))


@call
def sizes_in_expressions() -> Call:
    def run(x):
        return x.reshape(-1, 2), x.new_ones(x.shape[0] + 1)

    return Call(Run(run), (floats(4, 6),), {"dynamic_shapes": ({0: "rows"},)}, ((floats(6, 6),),))


@call
def axes_with_names() -> Call:
    axes = {"x": {0: "batch", 1: "width"}, "out": {0: "batch"}}
    options = {"input_names": ["x"], "output_names": ["out"], "dynamic_axes": axes}
    return Call(Run(lambda x: torch.relu(x) * 2), (floats(3, 4),), options, ((floats(5, 4),),))


@call
def axes_of_a_few_inputs() -> Call:
    axes = {"x": {0: "size"}, "y": {0: "size"}, "z": {0: "size"}, "a": {0: "size"}, "b": {0: "size"}}
    names = ["x", "y", "z", "a", "b", "c"]
    return Call(Nested(), nested_args(), {"dynamic_axes": axes, "input_names": names}, (nested_args(8),))


@call
def axes_by_the_names_of_parameters() -> Call:
    axes = {"x": {0: "batch"}, "bias": {0: "batch"}}
    args = (floats(3, 4), floats(3, 4))
    return Call(Sum(), args, {"dynamic_axes": axes, "input_names": ["x", "bias"]}, ((floats(5, 4), floats(5, 4)),))


@call
def a_dynamic_size_of_one() -> Call:
    return Call(Perceptron(), (floats(1, 4),), {"dynamic_shapes": ({0: "batch"},)}, ((floats(5, 4),),))


# Values


@call
def sizes_and_numbers_as_outputs() -> Call:
    def run(x):
        rows = x.shape[0]
        return x + 1, rows, torch.sym_float(rows) / 2, torch.sym_not(rows == 5), torch.sym_max(rows, 4)

    return Call(Run(run), (floats(3, 4),), {"dynamic_shapes": ({0: "rows"},)}, ((floats(5, 4),),))


@call
def a_sum_of_sizes() -> Call:
    described = ({0: "rows", 1: "columns"},)
    return Call(
        Run(lambda x: torch.sym_sum([x.shape[0], x.shape[1], 2])), (floats(3, 4),), {"dynamic_shapes": described}
    )


@call
def a_number_as_input() -> Call:
    options = {"dynamic_shapes": {"x": None, "n": DYNAMIC}}
    return Call(Run(lambda x, n: x * n), (floats(3, 4), 3), options, ((floats(3, 4), 2),))


@call
def none_among_the_outputs() -> Call:
    return Call(Run(lambda x: (x + 1, None, [x * 2, None])), (floats(3),))


@call
def outputs_in_a_dict() -> Call:
    return Call(Run(lambda x: {"a": x + 1, "b": (x * 2, x - 1)}), (floats(3),))


@call
def one_value_twice() -> Call:
    return Call(Run(lambda x: (x + 1, x + 1)), (floats(3),))


operator("an_item", lambda x: x.sum().item(), torch.arange(4))
operator("complex_input", lambda z: z * 2 + 1, torch.complex(floats(3), floats(3)))
operator("complex_output", lambda x: torch.fft.rfft(x), floats(3, 8))
operator("complex_inside", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), floats(3, 8))
operator("a_constant_tensor", lambda x: x + torch.tensor([1.0, 2.0, 3.0]), floats(3))
operator(
    "a_complex_constant", lambda x: torch.view_as_real(x * torch.tensor([1j, 2.0])), torch.complex(floats(2), floats(2))
)
operator("half_precision", lambda x: x * 2 + 1, floats(3).half())
operator("double_precision", lambda x: x.sin() / 3, floats(3).double())
operator("bfloat16_input", lambda x: x.float() * 2, floats(3).bfloat16())
operator("no_elements", lambda x: x.new_zeros(0, 3) + torch.empty(0, 3), floats(3))
operator("booleans", lambda x, y: x & ~y | (x ^ y), floats(4) > 0, floats(4) > 0.5)


# Opsets


for version in (16, 17, 18, 21, 23):
    operator(f"opset_{version}", lambda x: (x.abs() + 1).sqrt() @ x.t(), floats(3, 4), opset_version=version)
operator("group_norm_of_opset_21", nn.GroupNorm(2, 4), floats(2, 4, 5), opset_version=21)
operator("rms_norm_of_opset_23", lambda x: nn.functional.rms_norm(x, [4]), floats(2, 3, 4), opset_version=23)
operator("rms_norm_of_opset_18", lambda x: nn.functional.rms_norm(x, [4], eps=1e-5), floats(2, 3, 4), opset_version=18)
