"""The few places where torch's private interfaces moved between the versions that we support (2.11 and up)."""

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch._C import DispatchKey
from torch._decomp import decompositions as torch_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import GuardSource, Source
from torch._higher_order_ops import utils as operator_rules
from torch._higher_order_ops.scan import scan_op
from torch._ops import OpOverloadPacket
from torch.utils import _pytree as pytree

from precast._version import TESTED_TORCH

if TYPE_CHECKING:
    # A start without a trace does without symbols.
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_Rule = TypeVar("_Rule")


class _NamedSource(Source):
    """Where a symbolic size comes from: for torch's ShapeEnv, a plain name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NamedSource) and other.path == self.path

    @cached_property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL

    @property
    def _name_template(self) -> str:
        return self.path


def named_source(path: str) -> Source:
    """A source for ShapeEnv that is known by ``path`` in messages, such as ``args[0].shape[1]``."""
    return _NamedSource(path)


def example_sizes(shape_env: "ShapeEnv") -> "dict[sympy.Symbol, sympy.Integer]":
    """The size that each symbol had in the example inputs."""
    sizes: dict[sympy.Symbol, sympy.Integer] = (
        shape_env.backed_var_to_val if hasattr(shape_env, "backed_var_to_val") else shape_env.var_to_val
    )
    return sizes


def is_module_state(value: object) -> bool:
    """Whether an input of a graph of torch's front end is a parameter or a buffer: the front end marks them."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def aten_operators(rules: Mapping[str, _Rule]) -> list[tuple[OpOverloadPacket, _Rule]]:
    """The operators that are named, each with its rule, without those that this torch does not have.

    ``_foreach_clone`` and ``_foreach_mm`` came with 2.12.
    """
    aten = torch.ops.aten
    return [(getattr(aten, name), rule) for name, rule in rules.items() if hasattr(aten, name)]


def arguments_for_shape(op: object, args: Sequence[Any]) -> Sequence[Any]:
    """The same arguments as torch's shape function for ``op`` understands them.

    That for ``linalg_vector_norm`` keeps, up to 2.12, a dimension of size 1 that is counted from the end.
    """
    if op is not torch.ops.aten.linalg_vector_norm.default or len(args) < 3 or args[2] is None:
        return args
    rank = args[0].ndim
    return (*args[:2], [dim + rank if -rank <= dim < 0 else dim for dim in args[2]], *args[3:])


def slice_by_data(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Of fake tensors, a slice whose bounds are data; None: torch's own rule does.

    That of 2.11 makes a size of its own where it cannot compare the bounds, which nothing relates to them any more.
    """
    if _RELATES_SLICES or op is not torch.ops.aten.slice.Tensor or not any(map(_is_data, (*args, *kwargs.values()))):
        return None
    given: dict[str, Any] = {"dim": 0, "start": None, "end": None, "step": 1}
    given |= {**dict(zip(given, args[1:], strict=False)), **kwargs}
    source, dim, step = args[0], given["dim"], given["step"]
    start = 0 if given["start"] is None else given["start"]
    end = sys.maxsize if given["end"] is None else given["end"]
    size = source.shape[dim]
    first, last = _place_in(size, start), size if isinstance(end, int) and end >= sys.maxsize else _place_in(size, end)
    if first is None or last is None:
        return None
    sizes, strides = list(source.shape), list(source.stride())
    sizes[dim] = (_length_between(first, last) + step - 1) // step
    strides[dim] *= step
    result: torch.Tensor = source.as_strided(sizes, strides, source.storage_offset() + first * source.stride(dim))
    return result


_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_RELATES_SLICES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def _is_data(value: object) -> bool:
    return isinstance(value, torch.SymInt) and bool(import_module(_SYMBOLS).free_unbacked_symbols(value))


def _place_in(size: Any, index: Any) -> Any:
    """The place that an index of a slice means; None if its sign is not known."""
    symbols = import_module(_SYMBOLS)
    if symbols.guard_or_false(index >= 0):
        return index if symbols.guard_or_false(index <= size) else torch.sym_min(index, size)
    return torch.sym_max(index + size, 0) if symbols.guard_or_false(index < 0) else None


def _length_between(first: Any, last: Any) -> Any:
    symbols = import_module(_SYMBOLS)
    return last - first if symbols.guard_or_false(last >= first) else torch.sym_max(last - first, 0)


@contextmanager
def python_kernels() -> Iterator[None]:
    """While active, operators with a kernel in Python take that; those of recurrent layers do what eager does.

    Up to 2.12, an LSTM's last states have a dimension more than its first; an input without elements is given to a
    library that takes none. Over a number of steps that is not known, layers are scans, not as many steps as in the
    example; where gradients are recorded, which torch cannot take of such scans, they are for that number of steps.
    """
    torchs: tuple[Any, ...] = torch_decompositions.one_layer_lstm, torch_decompositions.mkldnn_one_layer_lstm
    plain_layer: Any = torch_decompositions.one_layer_rnn

    def one_layer_rnn(
        source: Any, hidden: Any, weights: Any, has_biases: bool, hidden_fn: Any, reverse: bool = False
    ) -> Any:
        if isinstance(source.shape[0], int) or torch.is_grad_enabled():
            return plain_layer(source, hidden, weights, has_biases, hidden_fn, reverse)

        def following(row: Any, states: Any, weights: Any, biases: Any) -> Any:
            return (hidden_fn(row, states[0], None, None, *weights, *biases),)

        result, (last,) = _scanned_layer(source, (hidden,), weights, has_biases, following, reverse)
        return result, last

    def one_layer_lstm(source: Any, hidden: Any, weights: Any, has_biases: bool, reverse: bool = False) -> Any:
        if isinstance(source.shape[0], int) or len(weights) in (3, 5) or torch.is_grad_enabled():
            result, states = torchs[0](source, hidden, weights, has_biases, reverse)
        else:
            cell: Any = torch_decompositions.lstm_cell

            def following(row: Any, states: Any, weights: Any, biases: Any) -> Any:
                return cell(row, *states, *weights, *biases, None, chunk_dim=2)

            result, states = _scanned_layer(source, hidden, weights, has_biases, following, reverse)
        return result, tuple(state.reshape(first.shape) for state, first in zip(states, hidden, strict=True))

    def mkldnn_one_layer_lstm(source: Any, *args: Any, **kwargs: Any) -> Any:
        is_empty = any(isinstance(size, int) and size == 0 for size in source.shape)
        return (one_layer_lstm if is_empty else torchs[1])(source, *args, **kwargs)

    kernels: dict[str, Any] = {
        "one_layer_lstm": one_layer_lstm,
        "mkldnn_one_layer_lstm": mkldnn_one_layer_lstm,
        "one_layer_rnn": one_layer_rnn,
    }
    with patch.multiple(torch_decompositions, **kernels), python_dispatcher():
        yield


@contextmanager
def python_dispatcher() -> Iterator[None]:
    """While active, operators with a kernel in Python take that, except where torch's is wrong.

    ``max_pool1d`` is a pool over one row: its own kernel specializes the length. Torch's margin loss of several labels
    counts targets that the format says to ignore.
    """
    pool, loss = torch.ops.aten.max_pool1d.default, torch.ops.aten.multilabel_margin_loss_forward.default

    def over_one_row(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> torch.Tensor:
        sizes = [1, *kernel_size], [1, *(stride or kernel_size)], [0, *padding], [1, *dilation]
        result: torch.Tensor = torch.ops.aten.max_pool2d.default(x.unsqueeze(-2), *sizes, ceil_mode).squeeze(-2)
        return result

    pooling = patch.dict(pool.py_kernels, {DispatchKey.CompositeImplicitAutograd: over_one_row})
    with pooling, patch.dict(loss.py_kernels), enable_python_dispatcher():
        loss.py_kernels.pop(DispatchKey.Autograd, None)
        _forget_dispatch(pool, loss)
        try:
            yield
        finally:
            _forget_dispatch(pool, loss)


def _forget_dispatch(*operators: torch._ops.OpOverload) -> None:
    for each in operators:
        each._dispatch_cache.clear()


def _scanned_layer(source: Any, hidden: Any, weights: Any, has_biases: bool, step: Any, reverse: bool) -> Any:
    """One recurrent layer in one direction, as a scan over its steps."""
    input_weight, own = weights[0], [weights[1], *weights[3:4]]
    rows = torch.nn.functional.linear(source, input_weight, weights[2] if has_biases else None)

    def following(*values: Any) -> list[Any]:
        states, row, (weight, *biases) = values[: len(hidden)], values[len(hidden)], values[len(hidden) + 1 :]
        new = step(row, states, (weight,), biases or (None,))
        return [*new, new[0].squeeze(0).clone()]

    *last, results = scan_op(
        following, [each.unsqueeze(0) for each in hidden], [rows.flip(0) if reverse else rows], tuple(own)
    )
    return results.flip(0) if reverse else results, tuple(each.squeeze(0) for each in last)


@contextmanager
def exchanged_operands_of_transforms(exchange: Callable[[Any], Any]) -> Iterator[None]:
    """While active, on this thread, transforms of ``torch.func`` wrap other tensors than those they are given.

    They do so before any torch function sees a tensor, and in functions that nobody is meant to know.
    """
    thread = threading.get_ident()

    def exchanging(wrap: Any, operands: int) -> Any:
        def exchanged(*args: Any) -> Any:
            if threading.get_ident() != thread:
                return wrap(*args)
            changed = pytree.tree_map_only(torch.Tensor, exchange, args[operands])
            return wrap(*args[:operands], changed, *args[operands + 1 :])

        return exchanged

    differentiating: dict[str, Any] = torch.func.vjp.__globals__
    batching: dict[str, Any] = torch.func.vmap.__globals__["vmap_impl"].__globals__
    with ExitStack() as stack:
        places = (differentiating, "_wrap_all_tensors", 0), (batching, "_create_batched_inputs", 1)
        for names, name, operands in places:
            stack.enter_context(patch.dict(names, {name: exchanging(names[name], operands)}))
        yield


SHARING_CHECKS = tuple(
    module
    # By its name: as an attribute of the package, it is hidden by the operator.
    for module in (operator_rules, import_module("torch._higher_order_ops.while_loop"))
    if hasattr(module, "_check_alias_and_mutation")
)
"""Torch's modules by whose name the check is called that operands of control flow share no memory.

``while_loop`` has that name since 2.12; before, it looks it up when it is called.
"""


CHECKPOINT_GENERATOR = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(torch_checkpoint, name)
)
"""Torch's generator that is advanced once before and once after a checkpointed function runs."""


def checkpoint_context(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The ``context_fn`` among what that generator is called with after the function."""
    return kwargs["context_fn"] if "context_fn" in kwargs else args[1]


def deferred_asserts(env: "ShapeEnv") -> Mapping[Any, Sequence[Any]]:
    """The conditions to be checked at run time, by the last symbol from data in each; None for those on sizes alone.

    Torch 2.11 files conditions on floats from data under None, too, and then asserts nothing.
    """
    # Imported here: a start without a trace does without symbols.
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    filed: dict[Any, list[Any]] = env.deferred_runtime_asserts
    for condition in filed.pop(None, []):
        floats = [each for each in condition.expr.free_symbols if symbol_is_type(each, SymT.UNBACKED_FLOAT)]
        last = max(floats, key=lambda symbol: (len(symbol.name), symbol.name), default=None)
        filed.setdefault(last, []).append(condition)
    return filed


def warn_if_untested(version: str) -> None:
    """Tell the user of a torch that no test has seen; it may work all the same."""
    major, minor, *_ = version.split(".")
    if not TESTED_TORCH[0] <= (int(major), int(minor)) <= TESTED_TORCH[1]:
        oldest, newest = (".".join(map(str, tested)) for tested in TESTED_TORCH)
        warnings.warn(f"Precast is tested with torch {oldest} to {newest}; this is torch {version}", stacklevel=2)


# Once, when the first program is traced.
warn_if_untested(torch.__version__)
