"""The ways into AOT autograd, spelled and called as PyTorch's users know them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from precast.autograd.boxing import Compiler
from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse, PartitionFunction
from precast.partition import default_partition


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
) -> Callable[..., Any]:
    """``fn``, with its forward and backward compiled when first called.

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
    )
    compiled = AotCallable(fn, compilers, dynamic=dynamic)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    return call
