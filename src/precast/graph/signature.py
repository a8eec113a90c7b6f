"""The meaning of each input and output of a flat graph: the contract between a program and its callers.

Names follow PyTorch's export signatures, so that code that reads those works unchanged.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from torch.utils._pytree import TreeSpec


class InputKind(Enum):
    USER_INPUT = auto()
    PARAMETER = auto()
    BUFFER = auto()
    CONSTANT_TENSOR = auto()
    CUSTOM_OBJ = auto()
    TOKEN = auto()


class OutputKind(Enum):
    USER_OUTPUT = auto()
    LOSS_OUTPUT = auto()
    BUFFER_MUTATION = auto()
    PARAMETER_MUTATION = auto()
    GRADIENT_TO_PARAMETER = auto()
    GRADIENT_TO_USER_INPUT = auto()
    USER_INPUT_MUTATION = auto()
    INTERMEDIATE_BASE = auto()
    TOKEN = auto()


@dataclass(frozen=True)
class TensorArgument:
    """A tensor; ``name`` is its node in the graph."""

    name: str


@dataclass(frozen=True)
class SymIntArgument:
    """A symbolic integer; ``name`` is its node in the graph."""

    name: str


@dataclass(frozen=True)
class SymFloatArgument:
    """A symbolic float; ``name`` is its node in the graph."""

    name: str


@dataclass(frozen=True)
class SymBoolArgument:
    """A symbolic bool; ``name`` is its node in the graph."""

    name: str


@dataclass(frozen=True)
class ConstantArgument:
    """A plain Python value that the program was specialized to."""

    name: str
    value: object = None


@dataclass(frozen=True)
class TokenArgument:
    """A token that orders side effects; callers never see it."""

    name: str


@dataclass(frozen=True)
class CustomObjArgument:
    """An opaque script object."""

    name: str
    class_fqn: str


NumberArgument = SymIntArgument | SymFloatArgument | SymBoolArgument
ArgumentSpec = TensorArgument | NumberArgument | ConstantArgument | TokenArgument | CustomObjArgument


def value_argument(name: str, value: object) -> TensorArgument | NumberArgument:
    """The argument spec of a traced value."""
    kinds = {torch.Tensor: TensorArgument, torch.SymFloat: SymFloatArgument, torch.SymBool: SymBoolArgument}
    made: type[Any] = next((made for kind, made in kinds.items() if isinstance(value, kind)), SymIntArgument)
    argument: TensorArgument | NumberArgument = made(name)
    return argument


@dataclass(frozen=True)
class InputSpec:
    """One input: its kind, its placeholder, and for state its name in the module (``target``).

    ``persistent`` is set for buffers only: whether ``state_dict`` contains it.
    """

    kind: InputKind
    arg: ArgumentSpec
    target: str | None = None
    persistent: bool | None = None


@dataclass(frozen=True)
class OutputSpec:
    """One output: its kind, its node, and for updates and gradients the name of what it belongs to (``target``)."""

    kind: OutputKind
    arg: ArgumentSpec
    target: str | None = None


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs in graph order, and the pytrees of the arguments and of the results.

    ``in_tree`` is the tree of ``(args, kwargs)``; its leaves are the ``USER_INPUT`` specs in order.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    in_tree: TreeSpec
    out_tree: TreeSpec

    def inputs_of(self, *kinds: InputKind) -> tuple[InputSpec, ...]:
        return tuple(spec for spec in self.inputs if spec.kind in kinds)

    def outputs_of(self, *kinds: OutputKind) -> tuple[OutputSpec, ...]:
        return tuple(spec for spec in self.outputs if spec.kind in kinds)

    def replace(self, **changes: object) -> "Signature":
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BackwardSignature:
    """Maps the gradients in a joint graph (names of results) to the parameters and inputs that they belong to."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str
