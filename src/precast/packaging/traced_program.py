"""An exported program in the native backend's operators, with the names of its state.

Before: ``graph(p_weight, b_count, x) -> (add, relu)`` in pre-autograd ATen ops
After:  the same in the native backend's operators; which inputs are state, and the model's names of it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from precast.autograd.variants.graphs import tidy
from precast.compilers.common_subexpressions import fx_graph_cse
from precast.export.program import ExportedProgram
from precast.export.sizes import fake_mode_of
from precast.graph.nodes import constant_sources_of, placeholders_of, results_of, subgraph_of, value_of
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, OutputKind
from precast.graph.sizes import SizeSymbol
from precast.native.decompositions.table import standalone_decompositions
from precast.native.graph_passes.checks_without_tokens import checks_without_tokens
from precast.native.graph_passes.complex_pairs import complex_as_pairs
from precast.native.graph_passes.freezing import freeze_graph
from precast.native.rules.sizes import free_unbacked
from precast.packaging.remaining_sizes import with_remaining_sizes
from precast.trace.capture.least_sizes import with_least_sizes_of_graph
from precast.trace.eager.python_kernels import again_with_python_kernels
from precast.trace.fake_inputs import fresh_copies
from precast.trace.functionalize import functionalized
from precast.trace.record import trace
from precast.trace.retrace import as_flat_function
from precast.trace.session import tracing_session

STATE_UPDATES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default


def is_found_number(result: object) -> bool:
    """Whether a result is a data-dependent integer."""
    value = value_of(result) if isinstance(result, fx.Node) else result
    return isinstance(value, torch.SymInt) and bool(free_unbacked_symbols(value))


MAX_SIZE = 2**62
"""Files state no upper bound above it, since no tensor is as large."""


def packaged_range(symbol: SizeSymbol) -> tuple[int, int | None]:
    """The sizes, or integer arguments, that a package accepts; native code computes with numbers from 0 on."""
    upper = symbol.range.upper
    return max(symbol.range.lower, 0), None if upper is None or upper > MAX_SIZE else upper


@dataclass(frozen=True)
class TracedProgram:
    """``specs``: the role of each placeholder, by name. ``names``: the model's names of the state that is read, by
    placeholder. ``module`` may have some of that state as constants: attributes computed from the sources they name.
    """

    exported: ExportedProgram
    module: fx.GraphModule
    specs: Mapping[str, InputSpec]
    names: Mapping[str, str]
    updates: tuple[str | None, ...]

    @property
    def program(self) -> Program:
        return self.exported.program

    @property
    def updated(self) -> set[str]:
        """The model's names of the state that calls update."""
        return {name for name in self.updates if name is not None}

    @property
    def constants(self) -> list[fx.Node]:
        """State that became constants, and values folded from it."""
        return [node for node in self.module.graph.nodes if node.op == "get_attr" and subgraph_of(node) is None]

    def sources(self, constant: fx.Node) -> set[str]:
        """The model's names of the tensors that a constant was computed from."""
        return {self.names[source] for source in constant_sources_of(constant)}

    def plain_name(self, constant: fx.Node) -> str | None:
        """The model's name of a constant that is an unchanged tensor of the state; None for a computed one."""
        sources = constant_sources_of(constant)
        if len(sources) != 1:
            return None
        (source,) = sources
        value = self.value_of_constant(constant)
        original = self.program.state[str(self.specs[source].target)]
        is_same = value.data_ptr() == original.data_ptr() and value.shape == original.shape
        return self.names[source] if is_same and value.stride() == original.stride() else None

    def value_of_constant(self, constant: fx.Node) -> torch.Tensor:
        value = attrgetter(str(constant.target))(self.module)
        assert isinstance(value, torch.Tensor), f"{constant.target} is not a tensor"
        return value

    def is_passed(self, placeholder: fx.Node) -> bool:
        """Whether the caller passes a value at each call; Python values are constants."""
        spec = self.specs.get(placeholder.name)
        is_user_input = spec is not None and spec.kind is InputKind.USER_INPUT
        return is_user_input and isinstance(value_of(placeholder), torch.Tensor | torch.SymInt)

    def frozen(self, changing: Collection[str]) -> TracedProgram:
        """The same with all state except ``changing`` as constants, folded as far as possible."""
        values = {
            placeholder: self.program.state[str(self.specs[placeholder].target)]
            for placeholder, name in self.names.items()
            if name not in changing
        }
        return replace(self, module=freeze_graph(self.module, values))


def trace_program(exported: ExportedProgram, state_names: Mapping[str, str]) -> TracedProgram:
    """Decompose the whole program; ``state_names`` maps its own names of state to the model's."""
    module = complex_as_pairs(checks_without_tokens(_decomposed(exported.program)), alone=True)
    # Preserved operators accept sizes that their decompositions do not.
    program = exported.program.replace(
        sizes=with_least_sizes_of_graph(exported.program.sizes, exported.program.module, module)
    )
    exported = exported.replace(program)
    specs = dict(zip((node.name for node in placeholders_of(module.graph)), program.signature.inputs, strict=True))
    returned = {node for node in results_of(module.graph) if isinstance(node, fx.Node)}
    read = {node.name for node in placeholders_of(module.graph) if node.users or node in returned}
    names = {
        name: state_names[str(spec.target)]
        for name, spec in specs.items()
        # State that native code cannot represent has no name: operators that read it are refused.
        if spec.kind in _STATE_KINDS and name in read and str(spec.target) in state_names
    }
    updates = tuple(
        state_names.get(str(spec.target)) if spec.kind in STATE_UPDATES else None for spec in program.signature.outputs
    )
    return TracedProgram(exported, module, specs, names, updates)


def fold_constants_of(programs: Mapping[str, TracedProgram]) -> dict[str, TracedProgram]:
    """The programs over constants, except for the state that any of them updates.

    A value computed from a tensor is folded only if nothing else reads the tensor itself: otherwise, assigning to the
    tensor would affect some results and not others.
    """
    changing = {name for each in programs.values() for name in each.updated}
    while True:
        frozen = {name: each.frozen(changing) for name, each in programs.items()}
        read, consumed = set(changing), set[str]()
        for each in frozen.values():
            for constant in each.constants:
                is_plain = each.plain_name(constant) is not None
                (read if is_plain else consumed).update(each.sources(constant))
        if not read & consumed - changing:
            return frozen
        changing |= read & consumed


def _decomposed(program: Program) -> fx.GraphModule:
    """The same graph in the native backend's operators."""
    if any(free_unbacked(each.symbol) for each in program.sizes.symbols):
        # `x[mask] + y[mask]` has one data-dependent size only if the places of the mask are computed once.
        program = with_remaining_sizes(program.replace(graph=fx_graph_cse(program.graph)))
    module = retraced(program, standalone_decompositions())
    if not any(node.target is _RECURRENT for node in module.graph.nodes):
        return module
    # An operator that only torch has, for a recurrent layer of unsupported length or type, must be decomposed.
    with _without_mkldnn():
        return retraced(program, standalone_decompositions())


@again_with_python_kernels
def retraced(program: Program, decompositions: Mapping[Any, Callable[..., Any]] | None) -> fx.GraphModule:
    """Retrace the program's graph over the same inputs, decomposing operators."""
    mode = fake_mode_of(program)
    inputs = [value_of(node) for node in program.placeholders]
    function = functionalized(as_flat_function(program.module))
    with tracing_session(), torch.no_grad():
        with mode:
            copies = fresh_copies(inputs)
        return tidy(trace(function, copies, mode, decompositions=decompositions))


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """While active, recurrent layers are decomposed into products and formulas of single steps."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
