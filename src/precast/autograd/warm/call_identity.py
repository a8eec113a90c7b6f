"""The identity of a call: everything about it, and about the process, that can be seen without tracing it."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast._version import __version__
from precast.artifact.trees import class_name
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.guards.call_key import ambient_key, memory_order
from precast.autograd.warm.description import Description
from precast.cache import Indescribable, own_sources, processor_identity
from precast.graph.float32_precision import float32_precision
from precast.options import as_options, environment_variables, key_text

_SWITCHES = (
    "_get_blas_preferred_backend", "_get_cpu_allow_fp16_reduced_precision_reduction", "_get_cpu_capability",
    "_get_cudnn_deterministic", "_get_cudnn_enabled", "_get_cudnn_sdp_enabled", "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only", "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled", "_get_linalg_preferred_backend",
    "_get_math_sdp_allow_fp16_bf16_reduction", "_get_math_sdp_enabled", "_get_mem_efficient_sdp_enabled",
    "_get_mkldnn_deterministic", "_get_mkldnn_enabled", "_get_nnpack_enabled",
    "_get_overrideable_sdp_enabled", "_get_qengine", "_is_fwd_grad_enabled", "_is_grad_layout_enforcement_enabled",
    "_is_torch_function_enabled", "_is_view_replay_enabled", "is_autocast_cache_enabled",
)  # fmt: skip
# Set by shells, terminals and schedulers for each session; what programs compute does not depend on them.
_SESSION_VARIABLES = frozenset({
    "_", "COLUMNS", "DISPLAY", "LINES", "LOGNAME", "OLDPWD", "PPID", "PWD", "PYTEST_CURRENT_TEST", "SHLVL", "TERM",
    "TERM_SESSION_ID", "TMPDIR", "TMUX", "TMUX_PANE", "TTY", "WINDOWID", "XDG_SESSION_ID",
})  # fmt: skip
_SESSION_PREFIXES = ("SSH_", "PRECAST_CACHE", "SLURM_JOB", "SLURM_STEP", "VSCODE_")


def surroundings() -> Iterator[str]:
    """Versions, machine, modes and switches, as texts. Raises Indescribable if modes or global hooks are active."""
    _refuse_interference()
    yield f"precast {__version__} {own_sources()}"
    yield f"torch {torch.__version__} {torch.version.git_version}"
    yield f"python {sys.version} {sys.flags}"
    yield processor_identity()
    yield repr(ambient_key())
    for name in _SWITCHES:
        switch = getattr(torch._C, name, None)
        yield f"{name} {None if switch is None else switch()}"
    yield f"precision of float32 {float32_precision()}"


def environment() -> Iterator[str]:
    """Environment variables and importable packages: what the results of cached functions may depend on."""
    for name, value in sorted(environment_variables().items()):
        if name not in _SESSION_VARIABLES and not name.startswith(_SESSION_PREFIXES):
            yield f"{name}={value}"
    for folder in sys.path:
        path = Path(folder)
        yield f"{folder} {path.stat().st_mtime_ns if path.name == 'site-packages' and path.exists() else ''}"


def _refuse_interference() -> None:
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Indescribable("a mode that is active around the call")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Indescribable("a transform that is active around the call")
    module = sys.modules["torch.nn.modules.module"]
    if any(value for name, value in vars(module).items() if name.startswith("_global_") and isinstance(value, dict)):
        raise Indescribable("hooks on all modules")


def describe_call(
    function: Callable[..., Any],
    values: Sequence[Any],
    guard_key: tuple[Any, ...],
    compilers: CompilersInUse,
    symbols: Mapping[tuple[int, int], str],
    numbers: Collection[int],
) -> Description:
    """Describe the function, its modules, inputs, compilers and surroundings. Raises Indescribable.

    ``values`` are the tensors of the modules' state and the leaves of the arguments, ``guard_key`` the rest of the
    guard key. Sizes that are ``symbols``, by value and dimension, do not count; values at the positions ``numbers``
    stand for Python numbers.
    """
    description = Description()
    for word in surroundings():
        description.word(word)
    _describe_compilers(compilers, description)
    tree, (modes, layout, _), _ = guard_key
    description.word(str(modes))
    description.word(layout)
    _describe_tree(tree, description)
    description.word(f"numbers {sorted(numbers)}")
    _describe_values(values, symbols, description)
    description.add(torch.Tensor)
    _describe_function(function, description)
    return description


def _describe_tree(tree: Any, description: Description) -> None:
    """Describe the pytree of the arguments; a number stands for that many plain tensors."""
    if not isinstance(tree, pytree.TreeSpec):
        description.add(tree)
        return
    description.add(tree.type)
    description.add(tree.context)
    children = tree.children()
    description.word(str(len(children)))
    for child in children:
        _describe_tree(child, description)


def _describe_function(function: Callable[..., Any], description: Description) -> None:
    if not isinstance(function, torch.nn.Module | FunctionType | MethodType | partial):
        raise Indescribable(f"a callable of type {type(function).__name__}")
    description.add(function)


def _describe_compilers(compilers: CompilersInUse, description: Description) -> None:
    for compiler in (compilers.forward, compilers.backward, compilers.inference):
        if (key := compiler.cache_key) is None:
            raise Indescribable(f"the compiler {compiler.qualified_name}, which has no cache_key")
        description.word(f"{compiler.qualified_name} {key}")
        description.word(key_text(as_options(compiler.options)))
    description.add(compilers.partition)
    _describe_decompositions(compilers.decompositions, description)
    description.word(f"{compilers.keep_inference_input_mutations} {compilers.disable_functionalization}")


def _describe_decompositions(table: Any, description: Description) -> None:
    """Describe a table by how it is pickled; one of ours by its class, since our sources are described anyway."""
    if table is None:
        return
    if type(table).__module__.startswith("precast."):
        description.word(class_name(type(table)))
        return
    if "__reduce__" not in vars(type(table)):
        raise Indescribable("decompositions of the caller's own")
    description.add(table.__reduce__())


def _describe_values(values: Sequence[Any], symbols: Mapping[tuple[int, int], str], description: Description) -> None:
    """Describe inputs by their metadata, and by which of them are the same object or share memory."""
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            description.add(value)
            continue
        shape = [symbols.get((number, dimension), size) for dimension, size in enumerate(value.shape)]
        # Strides depend on symbolic sizes.
        strides = value.stride() if shape == list(value.shape) else memory_order(value)
        description.add_tensor(value, shape, strides)
