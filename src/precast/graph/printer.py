"""Programs as text that is the same from run to run, so that it can be read, diffed and kept as golden files.

::

    def forward(p_weight: f32[3, 4], x: f32[2, 4]):
        t: f32[4, 3] = aten.t.default(p_weight)
        mm: f32[2, 3] = aten.mm.default(x, t)
        return (mm,)

    inputs:  p_weight = PARAMETER weight; x = USER_INPUT
    outputs: mm = USER_OUTPUT
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from precast.graph.nodes import has_value, module_path_of, source_line_of, value_of
from precast.graph.program import Program
from precast.graph.signature import InputSpec, OutputSpec
from precast.graph.sizes import SymbolicSizes
from precast.graph.tensor_spec import describe


def print_program(
    program: Program,
    *,
    shapes: bool = True,
    strides: bool = False,
    modules: bool = False,
    sources: bool = False,
    signature: bool = True,
) -> str:
    """Return the program as text; each keyword adds one kind of detail.

    >>> import torch
    >>> from precast.trace.capture import capture
    >>> print(print_program(capture(lambda x: x.sin() + 1, (torch.ones(2, 3),)), signature=False))
    def forward(x: f32[2, 3]):
        sin: f32[2, 3] = aten.sin.default(x)
        add: f32[2, 3] = aten.add.Tensor(sin, 1)
        return (add,)
    """
    detail = _Detail(shapes, strides, modules, sources, program.sizes)
    lines = list(_graph_lines(program.module, "forward", detail))
    if signature:
        lines += ["", *_signature_lines(program)]
    return "\n".join(lines)


def target_name(target: object) -> str:
    """``aten.add.Tensor`` for ops, ``module.name`` for other functions; never an object address."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(target)
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", None) or "builtins"
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', type(target).__name__)}"


@dataclass(frozen=True)
class _Detail:
    """Which kinds of detail to print, and the user's names of sizes."""

    shapes: bool
    strides: bool
    modules: bool
    sources: bool
    sizes: SymbolicSizes = field(default_factory=SymbolicSizes)

    def of_value(self, node: fx.Node) -> str:
        if not self.shapes or not has_value(node):
            return ""
        return f": {self.sizes.in_words(describe(value_of(node), strides=self.strides))}"

    def of_origin(self, node: fx.Node) -> str:
        parts = [module_path_of(node)] if self.modules and module_path_of(node) else []
        line = source_line_of(node) if self.sources else None
        parts += [str(line)] if line else []
        return f"  # {' | '.join(parts)}" if parts else ""


def _graph_lines(module: fx.GraphModule, name: str, detail: _Detail) -> Iterator[str]:
    parameters = [f"{node.name}{detail.of_value(node)}" for node in module.graph.nodes if node.op == "placeholder"]
    yield f"def {name}({', '.join(parameters)}):"
    for node in module.graph.nodes:
        if node.op == "output":
            yield f"    return {_argument(node.args[0])}"
        elif node.op == "get_attr":
            yield f"    {node.name}{detail.of_value(node)} = self.{node.target}"
        elif node.op != "placeholder":
            arguments = [_argument(argument) for argument in node.args]
            arguments += [f"{key}={_argument(argument)}" for key, argument in node.kwargs.items()]
            note = detail.of_origin(node)
            yield f"    {node.name}{detail.of_value(node)} = {target_name(node.target)}({', '.join(arguments)}){note}"
    for child_name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            yield ""
            yield from _graph_lines(child, child_name, detail)


def _argument(argument: object) -> str:
    if isinstance(argument, fx.Node):
        return argument.name
    if isinstance(argument, tuple):
        return f"({', '.join(map(_argument, argument))}{',' if len(argument) == 1 else ''})"
    if isinstance(argument, list):
        return f"[{', '.join(map(_argument, argument))}]"
    if isinstance(argument, dict):
        return f"{{{', '.join(f'{key!r}: {_argument(value)}' for key, value in argument.items())}}}"
    if isinstance(argument, slice):
        return f"slice({_argument(argument.start)}, {_argument(argument.stop)}, {_argument(argument.step)})"
    if isinstance(argument, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return target_name(argument)
    return str(argument) if isinstance(argument, (torch.dtype, torch.device, torch.layout)) else repr(argument)


def _signature_lines(program: Program) -> Iterator[str]:
    yield f"inputs:  {'; '.join(map(_spec, program.signature.inputs))}"
    yield f"outputs: {'; '.join(map(_spec, program.signature.outputs))}"
    if program.sizes.symbols:
        yield "sizes:   " + "; ".join(program.sizes.ranges_text())
    if program.sizes.guards:
        yield "guards:  " + "; ".join(program.sizes.in_words(guard.condition) for guard in program.sizes.guards)


def _spec(spec: InputSpec | OutputSpec) -> str:
    target = f" {spec.target}" if spec.target is not None else ""
    return f"{spec.arg.name} = {spec.kind.name}{target}"
