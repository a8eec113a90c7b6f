"""The signature of an exported program, with the interface of PyTorch's, and the dialects of programs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from torch import fx

from precast.graph.signature import (
    BackwardSignature,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TokenArgument,
)


class ExportBackwardSignature(BackwardSignature):
    """Alias of ``BackwardSignature``, by its name in ``torch.export``."""


@dataclass
class ExportGraphSignature:
    """Describes each placeholder and each result of the graph, in graph order.

    Placeholders are parameters, buffers, constants, then user inputs. Results are updated state and inputs, user
    outputs, then gradients.
    """

    input_specs: list[InputSpec] = field(default_factory=list)
    output_specs: list[OutputSpec] = field(default_factory=list)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_parameters.values())

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_buffers.values())

    @property
    def non_persistent_buffers(self) -> tuple[str, ...]:
        specs = (spec for spec in self.input_specs if spec.kind is InputKind.BUFFER and spec.persistent is False)
        return tuple(str(spec.target) for spec in specs)

    @property
    def lifted_tensor_constants(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_lifted_tensor_constants.values())

    @property
    def lifted_custom_objs(self) -> tuple[str, ...]:
        return tuple(self.inputs_to_lifted_custom_objs.values())

    @property
    def user_inputs(self) -> tuple[object, ...]:
        """The names of the placeholders of arguments; for Python constants, the value itself."""
        specs = (spec for spec in self.input_specs if spec.kind is InputKind.USER_INPUT)
        return tuple(_name_or_value(spec) for spec in specs)

    @property
    def user_outputs(self) -> tuple[object, ...]:
        """The names of the results that callers receive; for Python constants, the value itself."""
        specs = (spec for spec in self.output_specs if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT))
        return tuple(_name_or_value(spec) for spec in specs)

    @property
    def inputs_to_parameters(self) -> dict[str, str]:
        return self._inputs(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self) -> dict[str, str]:
        return self._inputs(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self) -> dict[str, str]:
        return self._inputs(InputKind.CONSTANT_TENSOR)

    @property
    def inputs_to_lifted_custom_objs(self) -> dict[str, str]:
        return self._inputs(InputKind.CUSTOM_OBJ)

    @property
    def buffers_to_mutate(self) -> dict[str, str]:
        return self._outputs(OutputKind.BUFFER_MUTATION)

    @property
    def parameters_to_mutate(self) -> dict[str, str]:
        return self._outputs(OutputKind.PARAMETER_MUTATION)

    @property
    def user_inputs_to_mutate(self) -> dict[str, str]:
        return self._outputs(OutputKind.USER_INPUT_MUTATION)

    @property
    def input_tokens(self) -> tuple[str, ...]:
        return tuple(spec.arg.name for spec in self.input_specs if isinstance(spec.arg, TokenArgument))

    @property
    def output_tokens(self) -> tuple[str, ...]:
        return tuple(spec.arg.name for spec in self.output_specs if isinstance(spec.arg, TokenArgument))

    @property
    def backward_signature(self) -> ExportBackwardSignature | None:
        losses = [spec.arg.name for spec in self.output_specs if spec.kind is OutputKind.LOSS_OUTPUT]
        if not losses:
            return None
        return ExportBackwardSignature(
            gradients_to_parameters=self._outputs(OutputKind.GRADIENT_TO_PARAMETER),
            gradients_to_user_inputs=self._outputs(OutputKind.GRADIENT_TO_USER_INPUT),
            loss_output=losses[0],
        )

    @property
    def assertion_dep_token(self) -> None:
        """No token orders the assertions of a program: they stand in its graph."""
        return None

    def replace_all_uses(self, old: str, new: str) -> None:
        """Update the signature after a node was renamed from ``old`` to ``new``."""
        self.output_specs = [
            replace(spec, arg=replace(spec.arg, name=new)) if spec.arg.name == old else spec
            for spec in self.output_specs
        ]

    def get_replace_hook(self, replace_inputs: bool = False) -> Callable[[fx.Node, str, fx.Node], None]:
        """Return a hook for ``fx.GraphModule._set_replace_hook`` that keeps this signature up to date during edits.

        With ``replace_inputs``, replaced inputs are followed as well.
        """

        def follow(old: fx.Node, new: str, user: fx.Node) -> None:
            if user.op == "output":
                self.replace_all_uses(old.name, new)
            if replace_inputs and old.op == "placeholder":
                self.input_specs = [
                    replace(spec, arg=replace(spec.arg, name=new)) if spec.arg.name == old.name else spec
                    for spec in self.input_specs
                ]

        return follow

    def _inputs(self, kind: InputKind) -> dict[str, str]:
        return {spec.arg.name: str(spec.target) for spec in self.input_specs if spec.kind is kind}

    def _outputs(self, kind: OutputKind) -> dict[str, str]:
        return {spec.arg.name: str(spec.target) for spec in self.output_specs if spec.kind is kind}

    def __str__(self) -> str:
        return "\n".join(
            [
                "inputs:",
                *(f"  {_described(spec)}" for spec in self.input_specs),
                "outputs:",
                *(f"  {_described(spec)}" for spec in self.output_specs),
            ]
        )


def _name_or_value(spec: InputSpec | OutputSpec) -> object:
    return spec.arg.value if isinstance(spec.arg, ConstantArgument) else spec.arg.name


def _described(spec: InputSpec | OutputSpec) -> str:
    value = f" = {spec.arg.value!r}" if isinstance(spec.arg, ConstantArgument) else ""
    if isinstance(spec.arg, CustomObjArgument):
        value = f" ({spec.arg.class_fqn})"
    target = f" target={spec.target!r}" if spec.target is not None else ""
    stays_behind = " persistent=False" if isinstance(spec, InputSpec) and spec.persistent is False else ""
    return f"{spec.arg.name}{value}: {spec.kind.name}{target}{stays_behind}"


class Dialect(Enum):
    """``TRAINING``: composite pre-autograd ops, can be trained on. ``ATEN``: decomposed into simpler ops."""

    TRAINING = "TRAINING"
    ATEN = "ATEN"

    def __str__(self) -> str:
        return self.value
