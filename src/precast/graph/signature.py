"""Which input and output of a flat graph is what: the contract between a program and whoever calls it.

Names follow PyTorch's export signatures, so that code that reads them moves over.

What an input or an output of a program is to whoever calls it.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

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
    """A tensor, known in the graph by ``name``."""

    name: str


@dataclass(frozen=True)
class SymIntArgument:
    """A symbolic integer, known in the graph by ``name``."""

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


ArgumentSpec = TensorArgument | SymIntArgument | ConstantArgument | TokenArgument | CustomObjArgument


@dataclass(frozen=True)
class InputSpec:
    """One input: its kind, its place in the graph, and for state the name (``target``) it has in the module.

    ``persistent`` is given for buffers only: whether ``state_dict`` holds it.
    """

    kind: InputKind
    arg: ArgumentSpec
    target: str | None = None
    persistent: bool | None = None


@dataclass(frozen=True)
class OutputSpec:
    """One output: its kind, its place in the graph, and what it updates or is the gradient of (``target``)."""

    kind: OutputKind
    arg: ArgumentSpec
    target: str | None = None


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs in graph order, and the trees that users call with and get back.

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
    """What the gradients of a joint graph belong to: names of results → names of parameters or of inputs."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str
