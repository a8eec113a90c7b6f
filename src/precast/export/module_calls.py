"""Which submodules the program called, and for those whose signature is kept, with what."""

from dataclasses import dataclass

from torch.utils._pytree import TreeSpec

from precast.ir.signature import ArgumentSpec


@dataclass(frozen=True)
class ModuleCallSignature:
    """The inputs and outputs of one call of a submodule, as names in the graph, and their trees."""

    inputs: tuple[ArgumentSpec, ...]
    outputs: tuple[ArgumentSpec, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    forward_arg_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ModuleCallEntry:
    """One submodule by its dotted path (empty for the whole program); the signature only where it was kept."""

    fqn: str
    signature: ModuleCallSignature | None = None


@dataclass(frozen=True)
class CallSpec:
    """The trees of a call: of ``(args, kwargs)`` and of what comes back."""

    in_spec: TreeSpec
    out_spec: TreeSpec
