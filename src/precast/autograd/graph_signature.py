"""Which placeholder and which result of an exported flat graph is what."""

from dataclasses import dataclass, field

from torch.utils._pytree import TreeSpec


@dataclass(frozen=True)
class BackwardSignature:
    """What the gradients of a joint graph belong to: names of results → names of parameters or of inputs."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass(frozen=True)
class GraphSignature:
    """The contract of ``aot_export_module``'s graph.

    Placeholders are parameters, buffers, then user inputs. Results are updated buffers, updated user inputs, user
    outputs, and for a joint graph the gradients. Parameters and buffers are named as in the module, everything else as
    in the graph.
    """

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: TreeSpec
    out_spec: TreeSpec
    backward_signature: BackwardSignature | None = None
    parameters_to_mutate: dict[str, str] = field(default_factory=dict)
