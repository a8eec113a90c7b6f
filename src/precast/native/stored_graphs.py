"""Compiled graphs in serialized form: the key of their code, its fallbacks, and the steps around it.

Before: ``CompiledGraph``
After:  names of operators, plain arguments and small constants as JSON, from which ``open_steps`` restores the steps
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload

from precast.artifact.constants import Kind
from precast.errors import ExportError
from precast.graph.constants import torch_codec
from precast.native.call import GraphSteps, NativeStep, OperatorCall, Reshape, Result, SizeReader, TorchStep, Value
from precast.native.loops.buffers import Buffer
from precast.native.loops.expressions import index_from_json, index_to_json
from precast.native.loops.index import Index
from precast.native.loops.program import FallbackStep, LoopProgram, SizeSource, Slot
from precast.native.targets import OpenEntry, Target
from precast.ops.own_operators import operator_named, random_seed
from precast.options import Options

MOST_BYTES = 2**20
"""Larger constants are not stored with a graph."""


@dataclass(frozen=True)
class StoredGraph:
    """The key of built code, the libraries it needs, and the fallbacks of each entry, as a program without kernels.

    `in_place` are, for each entry, the numbers of results that it does not return, but writes into inputs. `steps` are
    all steps of a call, serialized, and `weights` the constants that the code is opened over. Where the steps cannot be
    serialized there are none, and the graph itself is needed to restore it.
    """

    target: str
    key: str
    needs: tuple[str, ...]
    programs: tuple[LoopProgram, ...]
    in_place: tuple[tuple[int, ...], ...]
    steps: Mapping[str, Any] | None = None
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Any] | None = None
    """What ``native.frozen`` stores of a graph whose weights are computed from the first call's inputs."""

    def to_bytes(self) -> bytes:
        programs = [_program_data(program) for program in self.programs]
        content: dict[str, Any] = {"target": self.target, "key": self.key, "needs": self.needs, "programs": programs}
        content |= {"in_place": self.in_place, "steps": self.steps, "frozen": self.frozen}
        return json.dumps({**content, "weights": _CONSTANTS.write(dict(self.weights))}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StoredGraph:
        content = json.loads(data)
        programs, in_place = map(_program, content["programs"]), map(tuple, content["in_place"])
        code = content["target"], content["key"], tuple(content["needs"])
        weights = _CONSTANTS.read(content["weights"])
        return cls(*code, tuple(programs), tuple(in_place), content["steps"], weights, content["frozen"])

    def with_steps(self, graph: GraphSteps, weights: Mapping[str, torch.Tensor]) -> StoredGraph:
        """The same with all steps of a call, if they can be serialized."""
        steps = serialized_steps(graph)
        are_small = sum(weight.nbytes for weight in weights.values()) <= MOST_BYTES
        return self if steps is None or not are_small else replace(self, steps=steps, weights=weights)


def open_steps(stored: StoredGraph, target: Target, options: Options) -> GraphSteps:
    """Restore the steps over the stored code; a ``BuildError`` if that has been evicted."""
    assert stored.steps is not None, "the graph was stored with its steps"
    return read_steps(stored.steps, open_entries(stored, target, options)(stored.weights))


def open_entries(
    stored: StoredGraph, target: Target, options: Options
) -> Callable[[Mapping[str, torch.Tensor]], Sequence[OpenEntry]]:
    """Find a stored graph's code; the returned function opens it over constants by their names."""
    if not stored.programs:
        return lambda weights: ()
    code = target.find(stored.key, stored.needs, options)
    return lambda weights: target.open(code, stored.programs, weights)


def written_in_place(program: LoopProgram) -> tuple[int, ...]:
    """The numbers of the results that a fused program writes into inputs."""
    return tuple(number for number, result in enumerate(program.results) if result is None)


def called_back(program: LoopProgram) -> LoopProgram:
    """The parts of a program that running its fallbacks needs."""
    return LoopProgram(program.name, (), (), program.sizes, program.fallbacks)


def _program_data(program: LoopProgram) -> dict[str, Any]:
    sizes = [[source.symbol, source.position, source.dimension] for source in program.sizes]
    steps = [_fallback_data(step) for step in program.fallbacks]
    return {"name": program.name, "sizes": sizes, "steps": steps}


def _program(content: dict[str, Any]) -> LoopProgram:
    sizes = tuple(SizeSource(*source) for source in content["sizes"])
    return LoopProgram(content["name"], (), (), sizes, tuple(map(_fallback, content["steps"])))


class NotSerializable(Exception):  # noqa: N818
    """Something in a graph that cannot be serialized."""


_DEVICES = ("cpu", "cuda")
"""Devices a constant may be on: other memory cannot be stored as bytes."""


def _tensor_data(tensor: torch.Tensor) -> list[Any]:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not is_plain or tensor.device.type not in _DEVICES or tensor.nbytes > MOST_BYTES:
        raise NotSerializable
    elements = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    device = str(tensor.device)
    return [tensor.dtype, list(tensor.shape), list(tensor.stride()), elements.numpy().tobytes(), device]


def _tensor(content: list[Any]) -> torch.Tensor:
    dtype, shape, stride, elements, device = content
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return made.copy_(torch.frombuffer(bytearray(elements), dtype=dtype).view(shape)) if elements else made


_CONSTANTS = torch_codec(
    value=Kind((Value,), attrgetter("number"), Value, int),
    slot=Kind((Slot,), attrgetter("position"), Slot, int),
    index=Kind((Index,), index_to_json, index_from_json, list),
    tensor=Kind((torch.Tensor,), _tensor_data, _tensor, list),
)


def _fallback_data(step: FallbackStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "operator": step.operator,
        "inputs": [buffer.dtype for buffer in step.inputs],
        "outputs": [buffer.dtype for buffer in step.outputs],
        "arguments": _CONSTANTS.write(step.arguments),
        "keywords": [[name, _CONSTANTS.write(value)] for name, value in step.keyword_arguments],
        "at": step.at,
    }


def _fallback(content: dict[str, Any]) -> FallbackStep:
    # Shapes come with each call; of a buffer, only its dtype is needed.
    inputs, outputs = (tuple(Buffer("", dtype, (), ()) for dtype in content[key]) for key in ("inputs", "outputs"))
    keywords = tuple((name, _CONSTANTS.read(value)) for name, value in content["keywords"])
    arguments = _CONSTANTS.read(content["arguments"])
    return FallbackStep(content["name"], content["operator"], inputs, outputs, arguments, keywords, at=content["at"])


def serialized_steps(graph: GraphSteps) -> dict[str, Any] | None:
    """The steps in serialized form; None if they call something without a name, or hold large constants."""
    try:
        return {
            "inputs": graph.inputs,
            "constants": _CONSTANTS.write(dict(graph.constants)),
            "sizes": _readers_data(graph.sizes),
            "steps": [_step_data(step) for step in graph.steps],
            "results": [_result_data(result) for result in graph.results],
            "values": graph.values,
        }
    except (NotSerializable, ExportError):
        return None


def read_steps(content: Mapping[str, Any], entries: Sequence[OpenEntry]) -> GraphSteps:
    """Restore the steps, over the entries of their code."""
    remaining = iter(entries)
    steps = tuple(
        _call_step(step) if "calls" in step else _native_step(step, next(remaining)) for step in content["steps"]
    )
    return GraphSteps(
        content["inputs"],
        _CONSTANTS.read(content["constants"]),
        _readers(content["sizes"]),
        steps,
        tuple(map(_result, content["results"])),
        content["values"],
    )


def _step_data(step: NativeStep | TorchStep) -> dict[str, Any]:
    if isinstance(step, TorchStep):
        return {"calls": [_call_data(call) for call in step.calls], "dead": step.dead}
    passed = {"inputs": step.inputs, "sizes": step.sizes, "outputs": step.outputs}
    return {**passed, "updated": step.updated, "dead": step.dead}


def _native_step(content: Mapping[str, Any], entry: OpenEntry) -> NativeStep:
    inputs, sizes, outputs, dead = (tuple(content[key]) for key in ("inputs", "sizes", "outputs", "dead"))
    return NativeStep(
        entry, inputs, sizes, outputs, tuple((value, source) for value, source in content["updated"]), dead
    )


def _call_step(content: Mapping[str, Any]) -> TorchStep:
    return TorchStep(tuple(map(_call, content["calls"])), tuple(content["dead"]))


def _readers_data(readers: Sequence[SizeReader[int]]) -> list[Any]:
    return [[each.symbol, each.source, each.dimension, each.factor, each.offset] for each in readers]


def _readers(content: Sequence[Any]) -> tuple[SizeReader[int], ...]:
    return tuple(SizeReader(*each) for each in content)


def _call_data(call: OperatorCall) -> dict[str, Any]:
    return {
        "operator": _operator_name(call.function),
        "arguments": _CONSTANTS.write(call.arguments),
        "keywords": _CONSTANTS.write(call.keywords),
        "output": call.output,
        "sizes": _readers_data(call.sizes),
        "sees_grad_mode": call.sees_grad_mode,
    }


def _call(content: Mapping[str, Any]) -> OperatorCall:
    name = content["operator"]
    return OperatorCall(
        _FUNCTIONS[name] if name in _FUNCTIONS else operator_named(name),
        _CONSTANTS.read(content["arguments"]),
        _CONSTANTS.read(content["keywords"]),
        content["output"],
        _readers(content["sizes"]),
        content["sees_grad_mode"],
    )


_OPERATORS = ("aten", "prims", random_seed.namespace)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (operator.getitem, operator.add, operator.sub, operator.mul, operator.truediv)},
    **{each.__name__: each for each in (operator.floordiv, operator.mod, operator.pow, operator.neg, operator.index)},
    **{each.__name__: each for each in (torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min, torch.sym_not)},
}
"""Functions that graphs apply to Python numbers."""


def _operator_name(function: Callable[..., Any]) -> str:
    if isinstance(function, OpOverload):
        if function.namespace in _OPERATORS:
            return str(function)
    elif _FUNCTIONS.get(name := getattr(function, "__name__", "")) is function:
        return name
    raise NotSerializable


def _result_data(result: Result) -> dict[str, Any]:
    views = [
        {"shape": _CONSTANTS.write(view.shape)} if isinstance(view, Reshape) else _call_data(view)
        for view in result.views
    ]
    return {"value": _CONSTANTS.write(result.value), "views": views, "is_copied": result.is_copied}


def _result(content: Mapping[str, Any]) -> Result:
    views = [Reshape(_CONSTANTS.read(view["shape"])) if "shape" in view else _call(view) for view in content["views"]]
    return Result(_CONSTANTS.read(content["value"]), tuple(views), content["is_copied"])
