"""Prepares control-flow operators with Python functions as branches for the tracer.

Before: ``torch.cond(p, lambda x: x + w, lambda x: {"y": x}["y"], (x,))``, where ``w`` is a captured tensor.
After:  ``cond(p, true_graph, false_graph, (x, w))``: captured tensors are lifted to operands, pytrees are flattened.

Torch leaves this to its bytecode compiler (Dynamo), and calls it unless it believes to be running inside it.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from operator import is_
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._guards import detect_fake_mode
from torch._higher_order_ops.cond import CondOp
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from precast._torch_compat import example_sizes
from precast.errors import CaptureError
from precast.trace.provenance import innermost_users_line

# Not imported as an attribute: the package has an operator of the same name.
compile_regions = import_module("torch._higher_order_ops.invoke_subgraph")

Surroundings = Callable[[], AbstractContextManager[None]]
"""Makes a context in which tensors of the user's state are replaced by their stand-ins."""


@dataclass(frozen=True)
class _Form:
    """The positions of an operator's branches, their operands, and further operands.

    Branches get the operands and then the further ones. Of ``sliced`` operands they get one row. ``with_tree`` branches
    may return any pytree. Operands that are ``spread`` are the operator's last arguments, not in a sequence.
    """

    branches: tuple[int, ...]
    operands: tuple[int, ...]
    further: int
    sliced: tuple[int, ...] = ()
    with_tree: tuple[int, ...] = ()
    spread: int | None = None

    def gathered(self, arguments: Sequence[Any]) -> list[Any]:
        return list(arguments) if self.spread is None else [*arguments[: self.spread], arguments[self.spread :], ()]

    def spread_out(self, arguments: Sequence[Any]) -> list[Any]:
        if self.spread is None:
            return list(arguments)
        return [*arguments[: self.spread], *(value for values in arguments[self.spread :] for value in values)]


FORMS = {
    "cond": _Form(branches=(1, 2), operands=(), further=3, with_tree=(1, 2)),
    "while_loop": _Form(branches=(0, 1), operands=(2,), further=3, with_tree=(1,)),
    "map_impl": _Form(branches=(0,), operands=(1,), further=2, sliced=(1,), with_tree=(0,)),
    "scan": _Form(branches=(0,), operands=(1, 2), further=3, sliced=(2,), with_tree=(0,)),
}


_REGION = _Form(branches=(0,), operands=(2,), further=3, with_tree=(0,), spread=2)
"""A region that is marked to be compiled once. Elsewhere it may write into tensors from outside of it."""

_COMPUTED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_OTHER = object()


def is_control_flow(function: object, args: Sequence[Any]) -> bool:
    """Whether this is a call of a control-flow operator whose branches are not graphs yet."""
    if not isinstance(function, torch._ops.HigherOrderOperator) or (form := _form_of(function)) is None:
        return False
    branches = [args[number] for number in form.branches if number < len(args)]
    return not any(isinstance(branch, torch.fx.GraphModule) for branch in branches)


def _form_of(operator: torch._ops.HigherOrderOperator) -> _Form | None:
    return _REGION if operator is compile_regions.invoke_subgraph else FORMS.get(operator._name)


def call_control_flow(operator: Any, args: Sequence[Any], kwargs: dict[str, Any], surroundings: Surroundings) -> Any:
    """Call the operator with flat operands, and with all tensors that its branches capture as further operands."""
    form = _form_of(operator)
    assert form is not None, "asked before"
    arguments = form.gathered([*args, *kwargs.values()])
    if isinstance(operator, CondOp) and isinstance(arguments[0], bool):
        # The predicate is constant, for example a comparison of static sizes.
        warnings.warn(
            "Pred is a Python constant: one branch of torch.cond is captured, the other is not part of the program. "
            "A boolean tensor, or a condition on a dynamic size, keeps both.",
            UserWarning,
            stacklevel=2,
        )
        with surroundings():
            return arguments[1 if arguments[0] else 2](*arguments[form.further])
    given = arguments[form.further]
    example = [*_examples(arguments, form), *given]
    branches = {number: _Branch(arguments[number], surroundings) for number in form.branches}
    # Created before any branch runs: symbols that one branch creates count as known for the next.
    notes = [_FreeValues(example) for _ in branches]
    noted = [branch.noted(note, example) for branch, note in zip(branches.values(), notes, strict=True)]
    if any(each.has_written() for each in noted):
        raise writes_outside(operator, innermost_users_line())
    free = list({id(tensor): tensor for each in noted for tensor in each.free}.values())
    sizes = list({symbol: size for each in noted for symbol, size in each.free_sizes.items()}.values())
    for number, branch in branches.items():
        arguments[number] = branch.lifted(free, len(sizes), flat=number in form.with_tree)
    arguments[form.further] = (*given, *free, *sizes)
    results = operator(*form.spread_out(arguments))
    returning = [branches[number] for number in form.with_tree]
    if not returning or returning[-1].out_tree is None:
        return results
    if any(each.constants != returning[-1].constants for each in returning):
        raise CaptureError(
            f"The branches of {operator._name} return other Python values.",
            at=innermost_users_line(),
            why="which of them runs is known when the program runs, and a graph returns the same Python values then",
            fix="Return tensors.",
        )
    return returning[-1].with_constants(results)


class WritingRegionError(CaptureError):
    """A region that is to be one node writes into a tensor from outside of it."""


def writes_outside(operator: torch._ops.HigherOrderOperator, line: str | None) -> CaptureError:
    """The error for a branch with side effects."""
    kind = WritingRegionError if operator is compile_regions.invoke_subgraph else CaptureError
    return kind(
        f"A branch of {operator._name.removesuffix('_impl')} writes into a tensor from outside of it.",
        at=line,
        why="which of the branches run, and how often, is known when the program runs: they are graphs without side "
        "effects",
        fix="Return the new value from the branch, and write it after the call.",
    )


def _examples(arguments: Sequence[Any], form: _Form) -> list[Any]:
    with disable_proxy_modes_tracing():
        return [value[0] if number in form.sliced else value for number in form.operands for value in arguments[number]]


class _Branch:
    """One branch: a Python function of flat operands. ``out_tree`` is known once it has run."""

    def __init__(self, function: Callable[..., Any], surroundings: Surroundings) -> None:
        self._function = function
        self._surroundings = surroundings
        self.out_tree: pytree.TreeSpec | None = None
        self.constants: dict[int, Any] = {}
        """Its results that are neither tensors nor sizes, by number."""

    def with_constants(self, results: Sequence[Any]) -> Any:
        """Its full results; ``results`` are those that are not constants."""
        assert self.out_tree is not None, "it has run"
        others = iter(results)
        leaves = (self.constants.get(number, _OTHER) for number in range(self.out_tree.num_leaves))
        return pytree.tree_unflatten([next(others) if each is _OTHER else each for each in leaves], self.out_tree)

    def noted(self, noting: "_FreeValues", example: Sequence[Any]) -> "_FreeValues":
        """Run once, unrecorded, and record the tensors and sizes that come from outside."""
        with disable_proxy_modes_tracing(), torch.no_grad(), _unrecorded(example), noting, self._surroundings():
            noting.note(self._function(*example))
        return noting

    def lifted(self, free: Sequence[torch.Tensor], sizes: int, *, flat: bool) -> Callable[..., Any]:
        """A function that takes the free tensors as its last arguments, and returns flat results if ``flat``.

        ``sizes`` more arguments follow: as inputs, they make their symbols known to the tracer.
        """

        def run(*args: Any) -> Any:
            args = args[: len(args) - sizes]
            given, further = args[: len(args) - len(free)], args[len(args) - len(free) :]
            exchange = _Exchange(dict(zip(map(id, free), further, strict=True)))
            with exchange, self._surroundings():
                result = self._function(*given)
            leaves, tree = pytree.tree_flatten(exchange.exchanged(result))
            leaves = _each_of_its_own(leaves, (*given, *further))
            if not flat:
                return pytree.tree_unflatten(leaves, tree)
            self.out_tree = tree
            self.constants = {number: leaf for number, leaf in enumerate(leaves) if not _is_computed(leaf)}
            return tuple(filter(_is_computed, leaves))

        return run


def _each_of_its_own(results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The results of a branch; those over memory of its inputs, or of others, are copied: they are values."""
    seen = {each.untyped_storage()._cdata for each in inputs if _has_storage(each)}
    own = []
    for result in results:
        if _has_storage(result):
            storage = result.untyped_storage()._cdata
            result = result.clone() if storage in seen else result
            seen.add(storage)
        own.append(result)
    return own


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_computed(leaf: Any) -> bool:
    """Whether branches may differ in this result: tensors, sizes, and ints, which are treated as sizes."""
    return isinstance(leaf, _COMPUTED) or type(leaf) is int


def _unrecorded(example: Sequence[Any]) -> AbstractContextManager[None]:
    """While active, new unbacked symbols are dropped."""
    mode = detect_fake_mode(list(example))
    return nullcontext() if mode is None or mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols()


class _FreeValues(TorchFunctionMode):
    """Records free tensors, neither given nor computed inside, and free symbols of sizes, which no known tensor has."""

    def __init__(self, known: Sequence[Any]) -> None:
        super().__init__()
        # Kept alive, so that ids are not reused.
        self._known = {id(value): value for value in known if isinstance(value, torch.Tensor)}
        self._versions = [(value, _version_of(value)) for value in self._known.values()]
        self.free: list[torch.Tensor] = []
        self.free_sizes: dict[sympy.Symbol, torch.SymInt] = {}
        self._symbols = {symbol for value in known for symbol in _symbols_of(value)}
        mode = detect_fake_mode(list(known))
        self._shape_env = None if mode is None else mode.shape_env
        self._made_before = set(self._shape_env.var_to_range) if self._shape_env is not None else set()

    def note(self, values: Any) -> None:
        for leaf in pytree.tree_leaves(values):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._known:
                self._known[id(leaf)] = leaf
                self._versions.append((leaf, _version_of(leaf)))
                self.free.append(leaf)
                self._symbols |= _symbols_of(leaf)
            elif isinstance(leaf, slice):
                self.note((leaf.start, leaf.stop, leaf.step))
            elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                for symbol in leaf.node.expr.free_symbols & self._made_before - self._symbols:
                    if leaf.node.expr == symbol and isinstance(leaf, torch.SymInt):
                        # The tracer knows the object itself.
                        self.free_sizes[symbol] = leaf
                    self.free_sizes.setdefault(symbol, self._size(symbol))

    def has_written(self) -> bool:
        """Whether a tensor that came from outside was written since it was seen first, itself or through a view."""
        return any(_version_of(tensor) != version for tensor, version in self._versions)

    def _size(self, symbol: sympy.Symbol) -> torch.SymInt:
        assert self._shape_env is not None, "symbols are made by shape environments"
        hint = example_sizes(self._shape_env).get(symbol)
        size = self._shape_env.create_symintnode(symbol, hint=None if hint is None else int(hint))
        assert isinstance(size, torch.SymInt), "a symbol is not a number"
        return size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._known |= {id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


def _version_of(tensor: torch.Tensor) -> int:
    """How often its memory was written; tensors of the inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _symbols_of(value: Any) -> set[sympy.Symbol]:
    """The symbols that an input makes known to a tracer: those that by themselves are a size, or the number."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    found = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
    return {expression for expression in found if isinstance(expression, sympy.Symbol)}


class _Exchange(TorchFunctionMode):
    """Replaces tensors in the arguments of torch functions, by identity."""

    def __init__(self, tensors: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def exchanged(self, values: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: self._tensors.get(id(tensor), tensor), values)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.exchanged((args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def without_bytecode_compiler() -> Iterator[None]:
    """While active, control-flow functions called on this thread call their operators directly, without Dynamo."""
    thread = threading.get_ident()
    original = torch.compiler.is_dynamo_compiling

    def is_dynamo_compiling() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        ours = threading.get_ident() == thread and caller.startswith("torch._higher_order_ops.")
        return ours or original()

    call: Callable[..., Any] = CondOp.__call__

    def call_flat(operator: CondOp, predicate: Any, true_function: Any, false_function: Any, operands: Any) -> Any:
        """Flatten the operands: ``torch.cond`` takes pytrees, its operator does not."""
        flat, tree = pytree.tree_flatten(tuple(operands))
        if len(flat) == len(operands) and all(map(is_, flat, operands)):
            return call(operator, predicate, true_function, false_function, operands)
        return call(operator, predicate, _on_tree(true_function, tree), _on_tree(false_function, tree), tuple(flat))

    flat_cond = patch.object(CondOp, "__call__", call_flat)
    regions = patch.object(compile_regions, "invoke_subgraph_placeholder", _call_region)
    with patch.object(torch.compiler, "is_dynamo_compiling", is_dynamo_compiling), flat_cond, regions:
        yield


_keeps_regions = ContextVar("_keeps_regions", default=False)


@contextmanager
def whole_regions() -> Iterator[None]:
    """While active, regions that are marked to be compiled once are one node of the program, not inlined."""
    token = _keeps_regions.set(True)
    try:
        yield
    finally:
        _keeps_regions.reset(token)


def _call_region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a region that is marked to be compiled once."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, _COMPUTED)]
    if not _keeps_regions.get() or not given:
        return function(*args, **kwargs)

    def run(*operands: Any) -> Any:
        remaining = iter(operands)
        full = [next(remaining) if isinstance(leaf, _COMPUTED) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(full, tree)
        return function(*args, **kwargs)

    return compile_regions.invoke_subgraph(run, _name_of(function), *given)


def _name_of(region: Callable[..., Any]) -> str:
    """The function's own name, or its class's for a forward."""
    names = getattr(region, "__qualname__", "region").split(".")
    return str(names[-2] if names[-1] == "forward" and len(names) > 1 else names[-1])


def _on_tree(function: Callable[..., Any], tree: pytree.TreeSpec) -> Callable[..., Any]:
    return lambda *flat: function(*pytree.tree_unflatten(list(flat), tree))
