"""The compilers and settings that a user passes to AOT autograd, as one value."""

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
    """The compilers for forward, backward and inference graphs, and how the joint graph is traced and partitioned.

    With ``disable_functionalization``, graphs mutate their inputs and intermediates as the program does.
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
        """Compilers that are None default to the forward's; functions are wrapped as compilers."""
        forward = as_compiler(fw_compiler)
        inference = forward if inference_compiler is None else as_compiler(inference_compiler)
        if bw_compiler is None:
            return cls(forward, forward, inference, **others)
        return cls(*_drawing_alike(forward, as_compiler(bw_compiler)), inference, **others)

    @classmethod
    def of_backend(cls, backend: Backend, options: Options) -> "CompilersInUse":
        """The compilers and settings of a backend, with the options applied to its compilers."""

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
    """Make both use the same random source, so that the backward can recompute draws: if they differ, torch's."""
    if forward.random_source() == backward.random_source():
        return forward, backward
    return forward.drawing_as_torch(), backward.drawing_as_torch()


def remember_compilers(call: Callable[..., Any], compilers: CompilersInUse, dynamic: bool | None = None) -> None:
    """Record what a function was compiled with, for ``compilers_of`` and ``dynamic_of``."""
    call.__dict__[_REMEMBERED], call.__dict__[_DYNAMIC] = compilers, dynamic


def compilers_of(compiled: object) -> CompilersInUse | None:
    """The compilers of a compiled function or module; None for anything else."""
    found: CompilersInUse | None = _remembered(compiled, _REMEMBERED)
    return found


def dynamic_of(compiled: object) -> bool | None:
    """The ``dynamic`` setting of a compiled function or module; None, the default, for anything else."""
    found: bool | None = _remembered(compiled, _DYNAMIC)
    return found


def _remembered(compiled: object, name: str) -> Any:
    """Look up an attribute of a compiled function, or of the one inside a compiled module."""
    attributes = getattr(compiled, "__dict__", {})
    return getattr(attributes.get("_compiled", compiled), "__dict__", {}).get(name)


def named_call(compiled: CompiledFunction, name: str) -> BoxedCall:
    """A compiler's result as a call that raises the program's errors, with a note of the graph's name."""
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
