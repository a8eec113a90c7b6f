"""What a user hands to AOT autograd to compile with, as one value that travels through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import fx

from precast.autograd.boxing import BoxedCall, Compiled, Compiler, as_boxed
from precast.backend import Backend
from precast.options import Options
from precast.partition import default_partition

_REMEMBERED = "_precast_compilers"

PartitionFunction = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True)
class CompilersInUse:
    """Two compilers, one for graphs without a backward, and how the joint graph is made and split."""

    forward: Compiler
    backward: Compiler
    inference: Compiler
    partition: PartitionFunction = default_partition
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None
    keep_inference_input_mutations: bool = False

    @classmethod
    def of(
        cls,
        fw_compiler: Compiler,
        bw_compiler: Compiler | None,
        inference_compiler: Compiler | None,
        **others: Any,
    ) -> "CompilersInUse":
        """Fill in what the user left out: the forward's compiler serves for all."""
        inference = fw_compiler if inference_compiler is None else inference_compiler
        if bw_compiler is None:
            return cls(fw_compiler, fw_compiler, inference, **others)
        return cls(*_drawing_alike(fw_compiler, bw_compiler), inference, **others)

    @classmethod
    def of_backend(cls, backend: Backend, options: Options) -> "CompilersInUse":
        """All that a backend says about how a function is compiled; its compilers work as the options ask for."""
        return cls.of(
            _configured(backend.fw_compiler, options),
            _configured(backend.bw_compiler, options),
            _configured(backend.inference_compiler, options),
            partition=backend.partition_fn or default_partition,
            decompositions=backend.decompositions,
        )


def _configured(compiler: Any, options: Options) -> Any:
    """The compiler as the options ask for; one that knows no options is taken as it is."""
    configure = getattr(compiler, "with_options", None)
    return compiler if configure is None else configure(options)


def _drawing_alike(forward: Compiler, backward: Compiler) -> tuple[Compiler, Compiler]:
    """The two so that what one draws the other can draw again: both with one generator, if need be torch's.

    A compiler with a generator of its own says so by ``random_source``, and goes without by ``drawing_as_torch()``.
    """
    if getattr(forward, "random_source", None) == getattr(backward, "random_source", None):
        return forward, backward
    return _drawing_as_torch(forward), _drawing_as_torch(backward)


def _drawing_as_torch(compiler: Compiler) -> Compiler:
    change: Callable[[], Compiler] | None = getattr(compiler, "drawing_as_torch", None)
    return compiler if change is None else change()


def remember_compilers(call: Callable[..., Any], compilers: CompilersInUse) -> None:
    """Let ``compilers_of`` find out what a function was compiled with."""
    call.__dict__[_REMEMBERED] = compilers


def compilers_of(compiled: object) -> CompilersInUse | None:
    """What a compiled function or module was compiled with; None of anything else."""
    attributes = getattr(compiled, "__dict__", {})
    found: CompilersInUse | None = attributes.get(_REMEMBERED)
    return found if found is not None or "_compiled" not in attributes else compilers_of(attributes["_compiled"])


@runtime_checkable
class ReadyCompiler(Protocol):
    """A compiler that has something to do before it is given a graph: it is told of the state that graphs will read."""

    def get_ready(self, state: Sequence[torch.Tensor], /) -> None: ...


def get_ready(compilers: CompilersInUse, state: Sequence[torch.Tensor]) -> None:
    """Tell the forward's compiler, or whoever the user chose for all, that a trace begins."""
    compiler: object = compilers.forward
    if isinstance(compiler, ReadyCompiler):
        compiler.get_ready(state)


def named_call(compiled: Compiled, name: str) -> BoxedCall:
    """What a compiler made, as a call whose errors tell the graph's name."""
    boxed = as_boxed(compiled)

    def call(inputs: list[Any]) -> Sequence[Any]:
        try:
            return boxed(inputs)
        except Exception as error:
            error.add_note(f"raised in the compiled graph {name}")
            raise

    return call
