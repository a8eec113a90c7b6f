"""TorchScript modules inside an exported program: their operators are recorded like those of other modules.

Before: ``self.head(x)`` with ``self.head = torch.jit.trace(…)``, whose state TorchScript's interpreter reads itself
After:  ``linear(x, p_head_weight, p_head_bias)``: while it runs, the module holds stand-ins for its state
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import active_fake_mode
from torch.jit._recursive import wrap_cpp_module

from precast.errors import CaptureError, PrecastError
from precast.trace.provenance import innermost_users_line

# TorchScript operations on tensors that do not read their memory.
_STRUCTURE = frozenset(
    f"prim::{name}"
    for name in (
        "Constant", "DictConstruct", "GetAttr", "If", "ListConstruct", "ListUnpack", "Loop", "NumToTensor",
        "RaiseException", "TupleConstruct", "TupleIndex", "TupleUnpack", "Uninitialized", "device", "dtype", "is_cpu",
        "is_cuda", "is_meta", "is_nested", "is_quantized", "is_sparse", "layout", "max", "min", "requires_grad",
        "unchecked_cast",
    )
) | frozenset(
    f"aten::{name}"
    for name in (
        "Bool", "Float", "FloatImplicit", "Int", "IntImplicit", "ScalarImplicit", "__getitem__", "__is__", "__isnot__",
        "append", "dim", "len", "list", "size",
    )
)  # fmt: skip
_is_entered: ContextVar[bool] = ContextVar("enters_script_modules", default=False)


@contextmanager
def entering_script_modules() -> Iterator[None]:
    """While active, traces enter TorchScript modules; their attributes other than tensors become constants."""
    token = _is_entered.set(True)
    try:
        yield
    finally:
        _is_entered.reset(token)


@contextmanager
def script_modules_over(substitute: Callable[[Any], Any]) -> Iterator[None]:
    """While active, TorchScript modules that the program calls run over stand-ins for their state."""
    if not _is_entered.get():
        yield
        return
    plain: Callable[..., Any] = torch.nn.Module._call_impl

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        _check(module)
        args, kwargs = substitute(args), substitute(kwargs)
        try:
            with _over_stand_ins(module, substitute), torch._C.DisableTorchFunction():
                return plain(module, *args, **kwargs)
        except PrecastError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                f"A {module.original_name} of TorchScript cannot be captured.",
                at=innermost_users_line(),
                why=_message_of(error) or "its code decides on values or on sizes that may change",
                fix="Use the module that it was made from, or leave the sizes that it reads static.",
            ) from error

    bare = torch._C.ScriptMethod.__call__

    def call_bare(method: Any, *args: Any, **kwargs: Any) -> Any:
        """A method of ``module._c``, which is no ``torch.nn.Module``, as a method of one."""
        if torch._C._is_torch_function_enabled() and method.name == "forward":
            return call(wrap_cpp_module(method.owner), *args, **kwargs)
        return bare(method, *args, **kwargs)

    with (
        patch.object(torch.jit.ScriptModule, "_call_impl", call),
        patch.object(torch._C.ScriptMethod, "__call__", call_bare),
    ):
        yield


@contextmanager
def _over_stand_ins(module: Any, substitute: Callable[[Any], Any]) -> Iterator[None]:
    held = [(each, name, tensor) for each in module.modules() for name, tensor in _tensors_of(each)]
    mode = active_fake_mode()
    # TorchScript's optimizer compares and folds constants, which tracing would record.
    with ExitStack() as stack, torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        # TorchScript's compiler would look for the Python that the module was made from.
        stack.enter_context(patch.object(torch.compiler, "_is_exporting_flag", False))
        if mode is not None:
            # Tensor constants in its code are not state.
            stack.enter_context(patch.object(mode, "allow_non_fake_inputs", True))
        for owner, name, tensor in held:
            stack.callback(owner._c.setattr, name, tensor)
            owner._c.setattr(name, substitute(tensor))
        yield


def _tensors_of(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _check(module: Any) -> None:
    """Refuse code that assigns attributes, which the trace would really do, and code that bypasses operators."""
    dispatched = _dispatched()
    for node in _nodes(module.inlined_graph):
        kind, name = node.kind(), node.schema().partition("(")[0]
        if kind == "prim::SetAttr":
            raise CaptureError(
                f"A {module.original_name} of TorchScript assigns to its attributes.",
                at=innermost_users_line(),
                why="a program has no attributes but buffers that are written in place",
                fix="Write into a buffer (self.count.add_(1)), or use the module that it was made from.",
            )
        if not (name in dispatched or kind in _STRUCTURE or (kind.startswith("aten::") and not _has_tensors(node))):
            raise CaptureError(
                f"A {module.original_name} of TorchScript calls {kind}.",
                at=innermost_users_line(),
                why="TorchScript runs it itself, in memory that tensors do not have while they are traced",
                fix="Use the module that it was made from, or leave that out of it.",
            )


@cache
def _dispatched() -> frozenset[str]:
    """The operators that tracing sees when TorchScript calls them."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _has_tensors(node: Any) -> bool:
    return any("Tensor" in str(value.type()) for value in (*node.inputs(), *node.outputs()))


def _message_of(error: BaseException) -> str:
    lines = [line.partition("Error: ")[2].strip() for line in str(error).splitlines() if "Error: " in line]
    return next(filter(None, reversed(lines)), "")
