"""The exported program: a graph, its signature, and the state of the exported module."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import sympy
import torch
from torch import fx
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from precast.errors import ExportError, InputValueError
from precast.export.decompose import decompose
from precast.export.signature import Dialect, ExportGraphSignature
from precast.export.tracepoints import CallSpec, ModuleCallEntry
from precast.export.unlift import MUTATIONS, ExportedModule, unlift, users_meta
from precast.export.verifier import verify
from precast.graph.boundary import BoundaryFacts, InputFacts, OutputFacts
from precast.graph.calls import CallConvention, expected_leaves
from precast.graph.nodes import has_value, set_value, value_of
from precast.graph.printer import print_program
from precast.graph.program import Program
from precast.graph.signature import InputKind, InputSpec, Signature
from precast.graph.sizes import LEAST_NUMBER, SizeRange
from precast.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Origin:
    """Facts about the module that a program was exported from.

    ``argument_names``: of ``forward``, positional ones first. ``module_calls``: its submodules in order.
    ``aliases``: further names of tied parameters and buffers, by their name in the signature.
    ``example_inputs``: the arguments that it was exported with, or ``None`` if they were not stored.
    """

    argument_names: tuple[str, ...]
    module_calls: tuple[ModuleCallEntry, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None


class ExportedProgram:
    """A module as data: what ``export`` returns, ``save`` writes and ``load`` reads.

    It is verified when created. ``module()`` returns something to call.

    >>> from precast.export import export
    >>> exported = export(torch.nn.Linear(2, 1), (torch.ones(1, 2),))
    >>> exported.graph_signature.parameters
    ('weight', 'bias')
    >>> exported.module()(torch.zeros(1, 2)).shape
    torch.Size([1, 1])
    """

    def __init__(self, program: Program, origin: Origin, *, dialect: Dialect = Dialect.TRAINING) -> None:
        self._program = program
        self._origin = origin
        self._dialect = dialect
        self._graph_signature = ExportGraphSignature(list(program.signature.inputs), list(program.signature.outputs))
        self._state_dict = _saved_state(program, origin)
        constants = {name: tensor for name, tensor in program.state.items() if name not in self._state_dict}
        aliases = {alias: constants[name] for alias, name in origin.aliases if name in constants}
        self._constants: dict[str, torch.Tensor] = constants | aliases
        self.validate()

    @property
    def program(self) -> Program:
        """The program in the form that Precast's stages exchange, with its current state."""
        signature = self._program.signature.replace(
            inputs=tuple(self._graph_signature.input_specs), outputs=tuple(self._graph_signature.output_specs)
        )
        tensors = {**self._state_dict, **self._constants}
        state = {name: tensors[name] for name in tensors if name not in dict(self._origin.aliases)}
        return self._program.replace(signature=signature, state=state)

    @property
    def origin(self) -> Origin:
        return self._origin

    @property
    def graph_module(self) -> fx.GraphModule:
        return self._program.module

    @property
    def graph(self) -> fx.Graph:
        return self._program.graph

    @property
    def graph_signature(self) -> ExportGraphSignature:
        return self._graph_signature

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers, under all names that they have in the module."""
        return self._state_dict

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Tensors outside ``state_dict``: constants that the module refers to, and non-persistent buffers."""
        return self._constants

    @property
    def tensor_constants(self) -> dict[str, torch.Tensor]:
        return self._constants

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Iterate over the parameters, in the order of the signature."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Iterate over the parameters with their names, in the order of the signature."""
        for spec in self._specs(InputKind.PARAMETER):
            parameter = self._state_dict[str(spec.target)]
            assert isinstance(parameter, torch.nn.Parameter), "verified at construction"
            yield str(spec.target), parameter

    def buffers(self) -> Iterator[torch.Tensor]:
        """Iterate over the buffers, persistent or not, in the order of the signature."""
        return (buffer for _, buffer in self.named_buffers())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the buffers with their names; non-persistent ones are in ``constants``."""
        for spec in self._specs(InputKind.BUFFER):
            home = self._state_dict if spec.persistent else self._constants
            yield str(spec.target), home[str(spec.target)]

    def _specs(self, kind: InputKind) -> Iterable[InputSpec]:
        return (spec for spec in self._graph_signature.input_specs if spec.kind is kind)

    @property
    def range_constraints(self) -> dict[sympy.Expr, ValueRanges[Any]]:
        """The range of each symbolic size, and of input sizes that are expressions of one."""
        ranges = {symbol.symbol: _value_range(symbol.range) for symbol in self._program.sizes.symbols}
        shapes = [leaf.shape for leaf in self.call_convention.expected if isinstance(leaf, TensorSpec)]
        derived = {size for shape in shapes for size in shape if not isinstance(size, (int, sympy.Symbol))}
        of_ranges = [size for size in derived if size.free_symbols <= ranges.keys()]
        return ranges | {size: bound_sympy(size, ranges) for size in sorted(of_ranges, key=str)}

    @property
    def call_spec(self) -> CallSpec:
        return CallSpec(self._program.signature.in_tree, self._program.signature.out_tree)

    @property
    def module_call_graph(self) -> list[ModuleCallEntry]:
        return list(self._origin.module_calls)

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        return self._origin.example_inputs

    @example_inputs.setter
    def example_inputs(self, value: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        if value is not None:
            if type(value) is not tuple or [type(part) for part in value] != [tuple, dict]:
                raise InputValueError(
                    f"Example inputs should be a tuple of a tuple and a dict; they are a {type(value).__name__}.",
                    why="they are the positional and the named arguments of a call",
                    fix="Write ((x,), {}).",
                )
            self.call_convention.normalized(*value)
        self._origin = replace(self._origin, example_inputs=value)

    @property
    def dialect(self) -> str:
        return self._dialect.value

    @property
    def verifier(self) -> Callable[..., None]:
        """The function that checks such programs: ``verifier(program, dialect)``."""
        return verify

    @property
    def verifiers(self) -> list[Callable[..., None]]:
        """The same verifier as a list, as passes written for PyTorch expect."""
        return [self.verifier]

    def validate(self) -> None:
        """Verify the program again, for example after editing its graph or signature."""
        verify(self.program, self._dialect, after="validation")

    _validate = validate

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error that says how to run the program."""
        raise ExportError(
            "An ExportedProgram cannot be called.",
            why="it is a description: a graph, its signature and its state",
            fix="Call what .module() returns: exported.module()(*args, **kwargs).",
        )

    def module(self, check_guards: bool = True) -> ExportedModule:
        """Return the program as a module over the same state, called as the original was.

        Calls are checked first; with ``check_guards=False`` only their structure is.
        """
        program = self.program
        return unlift(
            program.module,
            program.signature,
            program.state,
            self.call_convention,
            module_paths=[entry.fqn for entry in self._origin.module_calls if "@" not in entry.fqn],
            aliases=dict(self._origin.aliases),
            checks_calls=check_guards,
        )

    @property
    def call_convention(self) -> CallConvention:
        """The structure, types and sizes that a call must have."""
        program = self._program
        return CallConvention(
            program.signature.in_tree, expected_leaves(program), program.sizes, self._origin.argument_names
        )

    def replace(
        self, program: Program, *, dialect: Dialect | None = None, module_calls: Sequence[ModuleCallEntry] | None = None
    ) -> "ExportedProgram":
        """Return a new program of the same origin."""
        calls = self._origin.module_calls if module_calls is None else tuple(module_calls)
        program.module.meta.update(users_meta(self.graph_module))
        return ExportedProgram(program, replace(self._origin, module_calls=calls), dialect=dialect or self._dialect)

    def _update(
        self,
        graph_module: fx.GraphModule,
        graph_signature: ExportGraphSignature,
        *,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        constants: Mapping[str, torch.Tensor] | None = None,
        verifiers: object = None,
    ) -> "ExportedProgram":
        """A program of the same origin with another graph and signature, and other state if that is given.

        ``verifiers`` is accepted for compatibility with PyTorch: every program is verified by the rules of its dialect.
        """
        _add_values_of_items(graph_module.graph)
        state = dict(self._state_dict if state_dict is None else state_dict)
        aliases = tuple((alias, name) for alias, name in self._origin.aliases if alias in state and name in state)
        state |= dict(self._constants if constants is None else constants)
        signature = self._program.signature.replace(
            inputs=tuple(graph_signature.input_specs), outputs=tuple(graph_signature.output_specs)
        )
        targets = {spec.target for spec in signature.inputs}
        program = self._program.replace(
            module=graph_module,
            signature=signature,
            state={name: tensor for name, tensor in state.items() if name in targets},
            boundary=_boundary_of(signature),
        )
        return ExportedProgram(program, replace(self._origin, aliases=aliases), dialect=self._dialect)

    def run_decompositions(
        self,
        decomp_table: Mapping[torch._ops.OperatorBase, Callable[..., Any]] | None = None,
        _preserve_ops: Sequence[torch._ops.OpOverload] = (),
        *,
        joint_loss_index: int | None = None,
        decompose_custom_triton_ops: bool = False,
    ) -> "ExportedProgram":
        """Return a new program in simpler operators, by default the Core ATen set; those in ``_preserve_ops`` are kept.

        With ``joint_loss_index`` it also returns the gradients of that output, as with ``to_joint``.
        ``decompose_custom_triton_ops`` is accepted for compatibility: custom operators are kept whole.
        """
        return decompose(self, decomp_table, _preserve_ops, loss_index=joint_loss_index)

    def to_joint(self, *, loss_index: int = 0) -> "ExportedProgram":
        """Return a new program that also returns the gradients of one scalar output.

        They are the gradients of every parameter, and of every user input that requires grad.
        """
        return decompose(self, {}, (), loss_index=loss_index)

    def __str__(self) -> str:
        program = self.program
        lines = ["ExportedProgram:", *_indented(print_program(program, signature=False).splitlines())]
        lines += ["", "Graph signature:", *_indented(str(self._graph_signature).splitlines())]
        ranges = program.sizes.ranges_text()
        guards = [program.sizes.in_words(guard.condition) for guard in program.sizes.guards]
        lines += ["Range constraints:", *_indented(ranges or ["none"])]
        return "\n".join(lines + (["Assumed:", *_indented(guards)] if guards else []))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


def _value_range(size_range: SizeRange) -> ValueRanges[Any]:
    lower = -int_oo if size_range.lower == LEAST_NUMBER else size_range.lower
    return ValueRanges(lower, int_oo if size_range.upper is None else size_range.upper)


def _add_values_of_items(graph: fx.Graph) -> None:
    """Passes add ``getitem`` nodes without values, which are those of what they are taken from."""
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        source, position = node.args
        if not has_value(node) and isinstance(source, fx.Node) and has_value(source):
            set_value(node, operator.getitem(value_of(source), position))  # type: ignore[call-overload]


def _boundary_of(signature: Signature) -> BoundaryFacts:
    """The facts about the graph's boundary that a signature implies."""
    mutations = signature.outputs_of(*MUTATIONS)
    updated = {spec.target for spec in mutations}
    inputs = [InputFacts(mutates_data=(spec.target or spec.arg.name) in updated) for spec in signature.inputs]
    return BoundaryFacts(tuple(inputs), tuple(OutputFacts() for _ in signature.outputs[len(mutations) :]))


def _saved_state(program: Program, origin: Origin) -> dict[str, torch.Tensor]:
    """The module's ``state_dict``: parameters and persistent buffers, under all their names."""
    saved = {
        str(spec.target): program.state[str(spec.target)]
        for spec in program.signature.inputs
        if spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
        if str(spec.target) in program.state
    }
    return saved | {alias: saved[name] for alias, name in origin.aliases if name in saved}
