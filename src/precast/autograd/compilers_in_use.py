"""What a user hands to AOT autograd to compile with, as one value that travels through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.autograd.boxing import BoxedCall, as_boxed
from precast.backend import Backend, CompiledFunction, Compiler, CompilerFunction, PartitionFunction, as_compiler
from precast.options import Options
from precast.partition import default_partition
from precast.trace.raising_checks import raised_by_program

_REMEMBERED = "_precast_compilers"
_DYNAMIC = "_precast_dynamic"


@dataclass(frozen=True)
class CompilersInUse:
    """Two compilers, one for graphs without a backward, and how the joint graph is made and split.

    With ``disable_functionalization``, graphs write into their inputs and intermediates as the program does.
    """

    forward: Compiler
    backward: Compiler
    inference: Compiler
    partition: PartitionFunction = default_partition
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None
    keep_inference_input_mutations: bool = False
    disable_functionalization: bool = False

    @classmethod
    def of(
        cls,
        fw_compiler: CompilerFunction,
        bw_compiler: CompilerFunction | None,
        inference_compiler: CompilerFunction | None,
        **others: Any,
    ) -> "CompilersInUse":
        """Fill in what the user left out, for which the forward's compiler serves; functions become compilers."""
        forward = as_compiler(fw_compiler)
        inference = forward if inference_compiler is None else as_compiler(inference_compiler)
        if bw_compiler is None:
            return cls(forward, forward, inference, **others)
        return cls(*_drawing_alike(forward, as_compiler(bw_compiler)), inference, **others)

    @classmethod
    def of_backend(cls, backend: Backend, options: Options) -> "CompilersInUse":
        """All that a backend says about how a function is compiled; its compilers work as the options ask for."""

        def configured(compiler: CompilerFunction | None) -> CompilerFunction | None:
            return None if compiler is None else as_compiler(compiler).with_options(options)

        return cls.of(
            as_compiler(backend.fw_compiler).with_options(options),
            configured(backend.bw_compiler),
            configured(backend.inference_compiler),
            partition=backend.partition_fn or default_partition,
            decompositions=backend.decompositions,
        )


def _drawing_alike(forward: Compiler, backward: Compiler) -> tuple[Compiler, Compiler]:
    """The two so that what one draws the other can draw again: both with one generator, if need be torch's."""
    if forward.random_source() == backward.random_source():
        return forward, backward
    return forward.drawing_as_torch(), backward.drawing_as_torch()


def remember_compilers(call: Callable[..., Any], compilers: CompilersInUse, dynamic: bool | None = None) -> None:
    """Let ``compilers_of`` and ``dynamic_of`` find out what a function was compiled with."""
    call.__dict__[_REMEMBERED], call.__dict__[_DYNAMIC] = compilers, dynamic


def compilers_of(compiled: object) -> CompilersInUse | None:
    """What a compiled function or module was compiled with; None of anything else."""
    found: CompilersInUse | None = _remembered(compiled, _REMEMBERED)
    return found


def dynamic_of(compiled: object) -> bool | None:
    """Whether a compiled function or module takes all sizes at once; of anything else as if it were compiled now."""
    found: bool | None = _remembered(compiled, _DYNAMIC)
    return found


def _remembered(compiled: object, name: str) -> Any:
    """Found on a compiled function, which a compiled module holds."""
    attributes = getattr(compiled, "__dict__", {})
    return getattr(attributes.get("_compiled", compiled), "__dict__", {}).get(name)


def named_call(compiled: CompiledFunction, name: str) -> BoxedCall:
    """What a compiler made, as a call whose errors are the program's and tell the graph's name."""
    boxed = as_boxed(compiled)

    def call(inputs: list[Any]) -> Sequence[Any]:
        try:
            return boxed(inputs)
        except Exception as error:
            error.add_note(f"raised in the compiled graph {name}")
            raised = raised_by_program(error)
            if raised is None:
                raise
            raise raised from error

    return call
