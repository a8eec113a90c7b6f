"""Fake tensors for a program's inputs: the right metadata, no data, and symbols where sizes may change.

A dynamic size is traced with an example that is neither 0 nor 1, whatever the user's example was: programs take special
paths at those sizes, and fake tensors, which have no data, need not repeat them.

Also unwraps and rewraps tensor subclasses (``__tensor_flatten__``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import fx
from torch._guards import SLoc
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import transform_subclass
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from precast._torch_compat import named_source
from precast.errors import CaptureError
from precast.graph.opened_objects import is_wrapper
from precast.graph.sizes import LEAST_NUMBER, SizeGuard, SizeRange, SizeSymbol, SymbolicSizes
from precast.trace.eager.fake_mode import make_fake_mode
from precast.trace.provenance import innermost_users_line


@dataclass(frozen=True)
class DynamicSize:
    """A dynamic size, ``scale * root + offset``, where ``root`` names the free symbol."""

    root: str
    scale: int = 1
    offset: int = 0


DimensionPlan = DynamicSize | None
"""How one dimension is traced: as a symbol, or (``None``) as the example's size."""


class FakeInputs:
    """Makes fake inputs over one set of size symbols, and reports afterwards what tracing assumed about them."""

    def __init__(self, shape_env: ShapeEnv | None = None) -> None:
        """Use a new shape environment, or that of fake tensors which the caller already has."""
        self._shape_env = _LocatingShapeEnv(duck_shape=False) if shape_env is None else shape_env
        self.mode = make_fake_mode(self._shape_env)
        self._symbols: dict[str, SizeSymbol] = {}
        self._hints: dict[str, int] = {}
        self._examples: dict[str, int] = {}

    def declare(self, root: str, *, example: int, seen_at: str, size_range: SizeRange | None = None) -> None:
        """Create the symbol for a free size, unless it exists."""
        if root in self._symbols:
            return
        size_range = size_range or SizeRange()
        hint = _usable_hint(example, size_range, set(self._hints.values()))
        self._examples[root] = example
        expression = self._shape_env.create_symbol(
            hint, named_source(seen_at), dynamic_dim=DimDynamic.DYNAMIC, do_not_specialize_zero_one=hint < 2
        )
        lower = max(size_range.lower, min(hint, 2))
        upper = int_oo if size_range.upper is None else size_range.upper
        self._shape_env.var_to_range[expression] = ValueRanges(lower, upper)
        self._symbols[root] = SizeSymbol(expression, root, seen_at, size_range)
        self._hints[root] = hint

    def number(self, root: str, example: int, size_range: SizeRange) -> int | torch.SymInt:
        """A symbol for an integer that is not a size: any value in its range, 0 and 1 like others."""
        expression = self._shape_env.create_unspecified_symbol(example, named_source(root), DimDynamic.DYNAMIC)
        lower = -int_oo if size_range.lower == LEAST_NUMBER else size_range.lower
        upper = int_oo if size_range.upper is None else size_range.upper
        self._shape_env.var_to_range[expression] = ValueRanges(lower, upper)
        self._symbols[root] = SizeSymbol(expression, root, root, size_range)
        self._hints[root] = example
        made: int | torch.SymInt = self._shape_env.create_symintnode(expression, hint=example)
        return made

    def fake(self, tensor: torch.Tensor, plan: Sequence[DimensionPlan] = ()) -> torch.Tensor:
        """A fake of ``tensor``, with the planned dimensions symbolic; a fake tensor keeps its own sizes."""
        if is_fake(tensor) and not any(plan):
            self.bind(tensor.shape)
            with self.mode:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return _with_standing_of(tensor, made)
        if not any(plan):
            with self.mode:
                return self.mode.from_tensor(tensor, static_shapes=True)
        if is_wrapper(tensor):
            raise CaptureError(
                f"A {type(tensor).__name__} is to have dynamic sizes.",
                why="only the subclass knows how its sizes follow from those of the tensors inside of it",
                fix="Leave its sizes static.",
            )
        sizes = [self.size(dimension, example) for dimension, example in zip(plan, tensor.shape, strict=True)]
        strides = _strides_like(tensor, sizes)
        with self.mode:
            made = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            torch._C._set_conj(made, tensor.is_conj())
            torch._C._set_neg(made, tensor.is_neg())
        return _with_standing_of(tensor, made)

    def bind(self, sizes: Iterable[Any]) -> None:
        """Tell torch that unbacked symbols in these sizes are bound by an input, not by an operator."""
        bound = {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}
        pending = self._shape_env.pending_fresh_unbacked_symbols
        pending[:] = [symbol for symbol in pending if symbol not in bound]

    def has_assertions(self, node: fx.Node) -> bool:
        """Whether a node binds an unbacked symbol about which there are assertions to check at run time."""
        env = self._shape_env
        return any(
            symbol in env.replacements or env.deferred_runtime_asserts.get(symbol)
            for symbol in node.meta.get("unbacked_bindings") or ()
        )

    def size(self, dimension: DimensionPlan, example: int) -> int | torch.SymInt:
        """The symbolic integer for a planned dimension; the example for a static one."""
        if dimension is None:
            return example
        symbol = self._symbols[dimension.root]
        expression = dimension.scale * symbol.symbol + dimension.offset
        hint = dimension.scale * self._hints[dimension.root] + dimension.offset
        made: int | torch.SymInt = self._shape_env.create_symintnode(expression, hint=hint)
        return made

    def example(self, root: str) -> int:
        """The size that a symbol is traced with."""
        return self._hints[root]

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """For a run that is not recorded: unbacked symbols that it creates are dropped."""
        with self._shape_env.ignore_fresh_unbacked_symbols():
            yield

    def sizes(self) -> SymbolicSizes:
        """The symbols with the ranges that tracing left, and the guards so far."""
        symbols = [replace(each, range=self._narrowed(each)) for each in self._symbols.values()]
        return SymbolicSizes(tuple(symbols), size_guards(self._shape_env))

    def _narrowed(self, symbol: SizeSymbol) -> SizeRange:
        """The range that tracing left; tracing assumes that sizes are 2 or more, which says nothing about 0 and 1."""
        found, declared = self._shape_env.var_to_range[symbol.symbol], symbol.range
        lower = int(found.lower) if isinstance(found.lower, sympy.Integer) else declared.lower
        upper = int(found.upper) if isinstance(found.upper, sympy.Integer) else declared.upper
        return SizeRange(lower if lower > 2 or declared.lower < 0 else declared.lower, upper)

    def specialized(self) -> dict[str, sympy.Expr]:
        """Free sizes that tracing specialized to a number or to an expression over other sizes, by root name."""
        replaced = {root: self._shape_env.replace(symbol.symbol) for root, symbol in self._symbols.items()}
        return {root: now for root, now in replaced.items() if now != self._symbols[root].symbol}

    def refuse_other_numbers(self) -> None:
        """Raise if tracing specialized a size to a number that is not the example's, but the one it was traced as."""
        for root, now in self.specialized().items():
            if now.is_number and now != self._examples.get(root, now):
                raise RuntimeError(f"the program takes the size {root} for a number, which differs between calls")


def _usable_hint(example: int, size_range: SizeRange, taken: set[int]) -> int:
    """The example if it is 2 or more; otherwise a size in the range, distinct from other symbols' if possible."""
    if example >= 2:
        return example
    candidates = [hint for hint in (11, 13, 17, 19, 23, 7, 5, 3, 4, 6, 8, 9, 10, 2) if hint in size_range]
    fresh = [hint for hint in candidates if hint not in taken]
    return (fresh or candidates or [example])[0]


def _strides_like(tensor: torch.Tensor, sizes: Sequence[int | torch.SymInt]) -> list[int | torch.SymInt]:
    """Strides for the symbolic sizes in the tensor's memory order; strides that are not dense stay numbers.

    In a dimension of size 1, a stride equal to the extent of other dimensions in the example becomes their extent.
    """
    strides: list[int | torch.SymInt] = list(tensor.stride())
    inner_to_outer = list(reversed(range(tensor.dim())))
    if not tensor.is_contiguous():
        inner_to_outer.sort(key=tensor.stride)
    dense: int | torch.SymInt = 1
    dense_example = 1
    ones = [dim for dim, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    lengths: dict[int, int | torch.SymInt] = {1: 1}
    for dim in inner_to_outer:
        if tensor.is_contiguous() or tensor.stride(dim) == dense_example:
            strides[dim] = dense
        if tensor.stride(dim) != 0 and dim not in ones:
            dense, dense_example = strides[dim] * sizes[dim], tensor.stride(dim) * tensor.shape[dim]
            lengths.setdefault(dense_example, dense)
    return [lengths.get(tensor.stride(dim), stride) if dim in ones else stride for dim, stride in enumerate(strides)]


class _LocatingShapeEnv(ShapeEnv):
    """Records with each guard the user's line that caused it, rather than torch's."""

    def _get_sloc(self, *args: Any, **kwargs: Any) -> SLoc:
        return SLoc(None, innermost_users_line())


def size_guards(shape_env: ShapeEnv) -> tuple[SizeGuard, ...]:
    """The guards on sizes that tracing has added so far."""
    return tuple(SizeGuard(guard.expr, _users_place(guard.sloc)) for guard in shape_env.guards)


def _users_place(location: SLoc) -> str | None:
    line = location.maybe_user_loc
    return None if line is None else str(line)


def fresh_copies(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the fake inputs, so that a run that resizes or transposes one leaves the original unchanged.

    Inputs that share memory still do. Must run under the inputs' fake mode.
    """
    return [_fresh_copy(value) if isinstance(value, torch.Tensor) else value for value in inputs]


def _fresh_copy(tensor: torch.Tensor) -> torch.Tensor:
    return _with_standing_of(tensor, tensor.detach())


def _with_standing_of(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Give ``made`` the ``requires_grad`` and ``is_leaf`` of ``tensor``: autograd forbids writes into such leaves."""
    mark_parameter(tensor, made)
    if tensor.is_leaf:
        # Only if it differs: inside a torch.func transform, requires_grad_ raises.
        return made if made.requires_grad == tensor.requires_grad else made.requires_grad_(tensor.requires_grad)
    torch._mirror_autograd_meta_to(tensor, made)  # type: ignore[attr-defined]
    return made


def mark_parameter(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Let ``made`` be an instance of ``nn.Parameter`` if ``tensor`` is one."""
    if isinstance(tensor, torch.nn.Parameter):
        made.__dict__["_is_param"] = True


def map_inner(wrapper: Any, function: Callable[[Any], Any]) -> Any:
    """The same wrapper around mapped inner tensors, with the same autograd metadata."""
    mapped = transform_subclass(wrapper, lambda _, inner: function(inner))
    torch._mirror_autograd_meta_to(wrapper, mapped)  # type: ignore[attr-defined]
    return mapped


def innermost(value: Any) -> list[torch.Tensor]:
    """The plain tensors inside a tensor: itself, or those inside its wrappers, in order."""
    if not is_wrapper(value):
        return [value]
    names, _ = value.__tensor_flatten__()
    inner = [getattr(value, name) for name in names]
    return [plain for tensor in inner if isinstance(tensor, torch.Tensor) for plain in innermost(tensor)]
