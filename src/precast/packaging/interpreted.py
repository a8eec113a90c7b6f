"""A packaged model without its native code: torch interprets the programs in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import fx

from precast.artifact.manifest import EntryDescription
from precast.artifact.package import Package
from precast.artifact.schema import damaged
from precast.artifact.weights import Weight
from precast.errors import InputTypeError, InputValueError, PrecastError
from precast.export.load import NONSENSE, program_in
from precast.export.program import ExportedProgram
from precast.graph.nodes import value_of
from precast.graph.signature import ConstantArgument, InputKind
from precast.graph.tensor_spec import dtype_name
from precast.ops.operators_in_files import with_checked_calls
from precast.packaging.samples import as_weight
from precast.packaging.traced_program import STATE_UPDATES, is_found_number
from precast.runtime.tensors import Tensor, are_bits, with_bits, without_bits


@dataclass(frozen=True)
class InterpretedEntry:
    """One program that torch runs node by node, over state that it shares with others."""

    on_gpu: ClassVar[bool] = False

    description: EntryDescription
    exported: ExportedProgram
    state: dict[str, torch.Tensor]
    state_names: dict[str, str]

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]:
        """Call with the right number of tensors."""
        expected = [each.dtype for each in self.description.inputs]
        given = [with_bits(each, dtype) for each, dtype in zip(tensors, expected, strict=True)]
        outputs = self._outputs([_given(each) for each in given])
        if like_torch:
            return tuple(outputs)
        as_bits = are_bits(tensors)
        try:
            return tuple(without_bits(_for_numpy(output), as_bits=as_bits) for output in outputs)
        except TypeError as problem:
            raise InputTypeError(
                "numpy has no such dtype as an output of this model", why=str(problem), fix="pass torch tensors"
            ) from problem

    def run_bits(self, tensors: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(map(as_weight, self._outputs([_as_torch(each) for each in tensors])))

    def _outputs(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        program = self.exported.program
        given = iter(tensors)
        inputs: list[Any] = []
        for spec in program.signature.inputs:
            if spec.kind is not InputKind.USER_INPUT:
                inputs.append(self._state_tensor(str(spec.target)))
            elif isinstance(spec.arg, ConstantArgument):
                inputs.append(spec.arg.value)
            else:
                value = next(given)
                inputs.append(value if not _is_size(self.exported, spec.arg.name) else int(value))
        updates: dict[str, torch.Tensor] = {}
        outputs: list[torch.Tensor] = []
        for result, output, node in zip(self._results(inputs), program.signature.outputs, program.results, strict=True):
            if output.kind in STATE_UPDATES:
                updates[self.state_names[str(output.target)]] = result
            elif isinstance(result, torch.Tensor):
                outputs.append(result)
            elif is_found_number(node):
                outputs.append(torch.tensor(result))
        if len(outputs) != len(self.description.outputs):
            raise damaged("the program in the file returns other results than it describes", "their numbers differ")
        self.state.update(updates)
        return outputs

    def _results(self, inputs: Sequence[Any]) -> list[Any]:
        """The program's results, in memory of their own."""
        runner = _Runner(self.checked_module)
        try:
            with torch.no_grad():
                results = runner.run(*inputs)
                return [each.clone() if isinstance(each, torch.Tensor) else each for each in results]
        except (IndexError, PrecastError):
            raise
        except NONSENSE as problem:
            # Failed assertions of a program raise as in native code, unless the file passes them malformed arguments.
            if "assert" in str(runner.at) and isinstance(problem, RuntimeError) and "Declaration:" not in str(problem):
                raise
            raise damaged("the program in the file cannot be run on these inputs", str(problem)) from problem

    @cached_property
    def checked_module(self) -> fx.GraphModule:
        return with_checked_calls(self.exported.program.module)

    def _state_tensor(self, target: str) -> torch.Tensor:
        """A tensor of the model's state, or one of the program alone, if native code does not support its dtype."""
        return (
            self.state[self.state_names[target]] if target in self.state_names else self.exported.program.state[target]
        )


class _Runner(fx.Interpreter):
    """Records the current node."""

    at: object = None

    def run_node(self, node: fx.Node) -> Any:
        self.at = node.target
        return super().run_node(node)


@dataclass(frozen=True)
class TorchState:
    """The state that interpreted entries share."""

    tensors: dict[str, torch.Tensor]

    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def read(self, name: str) -> Weight:
        return as_weight(self.tensors[name])

    def write(self, name: str, value: Any) -> None:
        old = self.tensors[name]
        new = _given(with_bits(value, dtype_name(old.dtype)))
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            expected, came = (f"{each.dtype} {tuple(each.shape)}" for each in (old, new))
            raise InputValueError(
                f"state '{name}': expected {expected}, got {came}",
                why="the program reads it as it was exported",
                fix="Write a tensor of that dtype and shape.",
            )
        self.tensors[name] = new.detach().clone()


def interpreted_entries(package: Package) -> tuple[list[InterpretedEntry], TorchState]:
    """The entries of a file, over one state; none of its native code is read."""
    state = {name: _as_torch(weight) for name, weight in package.state().items()}
    entries: list[InterpretedEntry] = []
    for entry in package.manifest.entries:
        if entry.program is None:
            raise damaged(f"the entry {entry.name!r} cannot be interpreted", "the file holds no program for it")
        exported = program_in(package, member=entry.program, check_weights=False)
        if not set(entry.state_names.values()) <= state.keys():
            raise damaged(f"the program of {entry.name!r} reads state that the file does not have", "names differ")
        updated = [str(spec.target) for spec in exported.program.signature.outputs_of(*STATE_UPDATES)]
        if not set(updated) <= entry.state_names.keys():
            raise damaged(f"the program of {entry.name!r} updates state that the model does not have", "names differ")
        _check_interface(entry.interface, exported)
        entries.append(InterpretedEntry(entry.interface, exported, state, dict(entry.state_names)))
    return entries, TorchState(state)


def _check_interface(interface: EntryDescription, exported: ExportedProgram) -> None:
    """Check that a manifest matches its program: the dtypes and ranks of the tensors passed and returned."""
    program = exported.program
    inputs = [
        value_of(node)
        for spec, node in zip(program.signature.inputs, program.placeholders, strict=True)
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]
    outputs = [
        value_of(result)
        for spec, result in zip(program.signature.outputs, program.results, strict=True)
        if spec.kind not in STATE_UPDATES
        and isinstance(result, fx.Node)
        and (isinstance(value_of(result), torch.Tensor) or is_found_number(result))
    ]
    for described, values in ((interface.inputs, inputs), (interface.outputs, outputs)):
        if [(each.dtype, len(each.shape)) for each in described] != list(map(_kind, values)):
            raise damaged(f"the manifest describes another entry {interface.name!r} than its program", "tensors differ")


def _kind(value: object) -> tuple[str, int]:
    return (dtype_name(value.dtype), value.dim()) if isinstance(value, torch.Tensor) else ("i64", 0)


def _is_size(exported: ExportedProgram, name: str) -> bool:
    (node,) = (node for node in exported.program.placeholders if node.name == name)
    return isinstance(value_of(node), torch.SymInt)


def _given(value: Any) -> torch.Tensor:
    """A tensor of the caller's, as a torch tensor."""
    if isinstance(value, Weight):
        return _from_numpy(value.carrier).view(torch.bfloat16)
    return value if isinstance(value, torch.Tensor) else _from_numpy(value)


def _for_numpy(output: torch.Tensor) -> Any:
    """An output as an array; bfloat16 as its bits."""
    return as_weight(output) if output.dtype is torch.bfloat16 else output.resolve_conj().resolve_neg().numpy()


def _from_numpy(array: Any) -> torch.Tensor:
    """The array's memory, or a copy if torch cannot represent it: negative or fractional strides, or read-only."""
    if array.dtype.newbyteorder("=") != array.dtype:
        raise InputTypeError(
            f"an array has the dtype {array.dtype.str}",
            why="torch supports only this machine's byte order",
            fix=f"convert it: array.astype({array.dtype.newbyteorder('=').str!r})",
        )
    is_plain = array.flags.writeable and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    try:
        return torch.from_numpy(array if is_plain else np.array(array))
    except TypeError as problem:
        raise InputTypeError(
            f"arrays of {array.dtype} are not supported", why=str(problem), fix="convert the array first"
        ) from problem


def _as_torch(weight: Weight) -> torch.Tensor:
    """A copy: state changes, and a file's memory may be read-only. Broadcast elements are not expanded."""
    carrier = weight.carrier
    steps = [stride // carrier.itemsize for stride in carrier.strides]
    length = 1 + sum((size - 1) * step for size, step in zip(carrier.shape, steps, strict=True)) if carrier.size else 0
    memory = np.lib.stride_tricks.as_strided(carrier, (length,), (carrier.itemsize,))
    tensor = torch.from_numpy(np.array(memory)).as_strided(carrier.shape, steps)
    return tensor.view(torch.bfloat16) if weight.dtype == "bf16" else tensor
