"""The entry points of AOT autograd, with PyTorch's names and signatures."""

import functools
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from precast.autograd.callable import AotCallable
from precast.autograd.compiled_module import compile_module
from precast.autograd.compilers_in_use import CompilersInUse, remember_compilers
from precast.autograd.variants.table import Variant
from precast.backend import CompilerFunction, PartitionFunction
from precast.errors import InputTypeError
from precast.partition import default_partition

_VARIANTS = "_precast_variants"


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: CompilerFunction,
    bw_compiler: CompilerFunction | None = None,
    partition_fn: PartitionFunction = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: CompilerFunction | None = None,
    *,
    dynamic: bool | None = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
) -> Callable[..., Any]:
    """Return ``fn`` with its forward and backward compiled: on the first call, and again for calls that fit no variant.

    ``bw_compiler`` and ``inference_compiler`` default to ``fw_compiler``. With ``dynamic=True`` one compilation serves
    all sizes that satisfy its guards; with ``None`` a size becomes dynamic when it changes. ``num_params_buffers`` is
    the number of leading arguments that are parameters and buffers, and ``enable_log`` turns logging of compilations on
    or off; neither changes results. With ``disable_functionalization`` the graphs keep in-place operators, for
    compilers that want to see them.

    >>> import torch
    >>> from precast.compilers import nop
    >>> x = torch.ones(3, requires_grad=True)
    >>> aot_function(lambda x: x.sin().sum(), nop)(x).backward()
    >>> bool((x.grad == x.cos()).all())
    True
    """
    compilers = CompilersInUse.of(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition=partition_fn,
        decompositions=decompositions,
        keep_inference_input_mutations=keep_inference_input_mutations,
        disable_functionalization=disable_functionalization,
    )
    return compile_callable(fn, compilers=compilers, dynamic=dynamic, leading_state=num_params_buffers, logs=enable_log)


def compile_callable(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """A plain function around an ``AotCallable``, to which the other arguments are passed.

    A method that is compiled in the body of its class is compiled separately for each object.
    """
    compiled = AotCallable(function, **arguments)
    methods: MutableMapping[Any, AotCallable] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(owner := args[0], torch.nn.Module) and isinstance(function, FunctionType):
            method = methods.get(owner)
            if method is None:
                method = methods[owner] = AotCallable(MethodType(function, owner), **arguments)
            return method(*args[1:], **kwargs)
        return compiled(*args, **kwargs)

    remember_compilers(call, compiled.compilers, compiled.dynamic)
    call.__dict__["_precast_original"] = function
    call.__dict__[_VARIANTS] = lambda: [found for each in (compiled, *methods.values()) for found in each.variants()]
    return call


def variants(compiled: Callable[..., Any]) -> tuple[Variant, ...]:
    """Return the variants of a compiled function or module: when and why each was compiled, and what it assumes.

    >>> import torch
    >>> from precast.compilers import nop
    >>> double = aot_function(lambda x: x * 2, nop)
    >>> _ = double(torch.ones(2)), double(torch.ones(3))
    >>> [(variant.reason, variant.inputs) for variant in variants(double)]
    [('the first call', ('x: float32[2]',)), ('x (sizes (2,), then (3,))', ('x: float32[3]',))]
    """
    attributes = getattr(compiled, "__dict__", {})
    found = attributes.get(_VARIANTS)
    if found is None and "_compiled" in attributes:
        found = attributes["_compiled"].__dict__[_VARIANTS]
    if found is None:
        raise InputTypeError(
            f"precast.variants got an object of type {type(compiled).__name__} that was not compiled.",
            why="only what precast.compile and similar functions return has variants",
            fix="Pass the compiled function or module.",
        )
    return tuple(found())


def aot_module(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Return ``mod`` with its forward and backward compiled; the other arguments are those of ``aot_function``.

    >>> import torch
    >>> from precast.compilers import nop
    >>> linear = torch.nn.Linear(2, 3)
    >>> compiled = aot_module(linear, nop)
    >>> compiled(torch.ones(1, 2)).sum().backward()
    >>> linear.weight.grad
    tensor([[1., 1.],
            [1., 1.],
            [1., 1.]])
    """
    _check_module(mod, "aot_module")
    return compile_module(mod, functools.partial(_aot_function, args, kwargs))


def _aot_function(args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Callable[..., Any]:
    """``aot_function`` with the function last, so that a compiled module can be copied and pickled."""
    return aot_function(function, *args, **kwargs)


def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[Any],
    fw_compiler: CompilerFunction,
    bw_compiler: CompilerFunction | None = None,
    partition_fn: PartitionFunction = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: CompilerFunction | None = None,
    compiler_config_extra: Any = None,
    ignore_shape_env: bool = False,
    disable_functionalization: bool = False,
    pre_grad_passes: Callable[[Any, Sequence[Any]], torch.nn.Module] | None = None,
    compile_region_name: str | None = None,
) -> Callable[..., Any]:
    """Compile ``mod`` now, for inputs like ``args``; return a flat callable that reads parameters at each call.

    If ``args`` are fake tensors, as other tracers pass them, symbolic sizes become dynamic; if sizes depend on data,
    compilation waits for the first real call. ``pre_grad_passes(mod, args)`` returns the module to compile.
    ``compiler_config_extra``, ``ignore_shape_env`` and ``compile_region_name`` are accepted for compatibility and
    ignored.
    """
    _check_module(mod, "aot_module_simplified")
    if pre_grad_passes is not None:
        mod = pre_grad_passes(mod, args)
    compilers = CompilersInUse.of(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition=partition_fn,
        decompositions=decompositions,
        keep_inference_input_mutations=keep_inference_input_mutations,
        disable_functionalization=disable_functionalization,
    )
    compiled = AotCallable(mod, compilers, dynamic=any(map(_has_symbols, args)))
    if all(map(_has_examples, args)):
        compiled.compile_for(*map(_example_of, args))

    def forward(*inputs: Any) -> Any:
        return compiled(*inputs)

    return forward


def _has_symbols(arg: Any) -> bool:
    return isinstance(arg, torch.SymInt) or (is_fake(arg) and arg._has_symbolic_sizes_strides)


def _has_examples(arg: Any) -> bool:
    """Whether a real example like ``arg`` can be made: its sizes are known, and its device is available."""
    if is_fake(arg):
        has_memory = arg.device.type == "cpu" or (arg.device.type == "cuda" and torch.cuda.is_available())
        return has_memory and all(map(_has_examples, arg.shape))
    return not isinstance(arg, torch.SymInt) or bool(arg.node.has_hint())


def _example_of(arg: Any) -> Any:
    """``arg``, or an uninitialized real tensor like it."""
    if isinstance(arg, torch.SymInt):
        return arg.node.hint
    if not is_fake(arg):
        return arg
    size, stride = (list(map(_example_of, numbers)) for numbers in (arg.shape, arg.stride()))
    return torch.empty_strided(size, stride, dtype=arg.dtype, device=arg.device, requires_grad=arg.requires_grad)


def _check_module(mod: Any, name: str) -> None:
    if not isinstance(mod, torch.nn.Module):
        raise InputTypeError(
            f"{name} got an object of type {type(mod).__name__}.",
            why="it compiles modules",
            fix="Pass an nn.Module, or use aot_function for a plain function.",
        )


compiled_function = aot_function
compiled_module = aot_module
