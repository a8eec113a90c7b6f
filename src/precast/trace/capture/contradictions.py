"""Finds where a program contradicts the user's ``dynamic_shapes``, and suggests fixes.

Before: ``dynamic_shapes={"x": {0: batch}}`` and the guards ``Eq(s0, 4)``, ``s1 <= 512`` from tracing.
After:  one ``SymbolicShapeError`` that lists each contradiction with the user's line, and corrected dynamic_shapes
        as source text to paste.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from precast.errors import SymbolicShapeError
from precast.graph.sizes import SizeGuard, SizeRange, SizeSymbol, SymbolicSizes, holds
from precast.trace.capture.dims import Dim, DimHint, DimSpec, root_of
from precast.trace.capture.dynamic_shapes import LeafDims, NumberDim, TensorDims


@dataclass(frozen=True)
class Correction:
    """What to declare a size as: a Dim with another range, or an expression, perhaps over a new Dim (``root``)."""

    range: SizeRange | None = None
    expression: sympy.Expr | None = None
    root: Dim | None = None


def suggest(leaves: Sequence[LeafDims], arguments: Mapping[str, object], corrections: Mapping[str, Correction]) -> str:
    """Source text: the definitions of all names that are needed, and ``dynamic_shapes`` by argument name."""
    remaining = iter(leaves)
    shapes = {name: _render(value, remaining, corrections) for name, value in arguments.items()}
    entries = ", ".join(f"{name!r}: {text}" for name, text in shapes.items())
    return "\n".join([*_definitions(leaves, corrections), f"dynamic_shapes = {{{entries}}}"])


def _definitions(leaves: Sequence[LeafDims], corrections: Mapping[str, Correction]) -> Iterator[str]:
    """Free Dims first, then the sizes that are computed from them."""
    roots = {
        root.name: root
        for leaf in leaves
        for _, spec, _ in (leaf.described() if leaf is not None else ())
        if (root := root_of(spec)) is not None
    }
    corrected = {name: corrections.get(name, Correction()) for name in roots}
    for name, correction in corrected.items():
        if correction.expression is None:
            yield _definition(name, correction.range or roots[name].range)
        elif correction.root is not None:
            yield _definition(correction.root.name, correction.root.range)
    # A size may be derived from one that is itself derived from a new Dim.
    given = {sympy.Symbol(n): c.expression for n, c in corrected.items() if c.root is not None}
    for name, correction in corrected.items():
        if correction.expression is not None:
            yield f"{name} = {sympy.expand(correction.expression.xreplace(given))}"


def _definition(name: str, size_range: SizeRange) -> str:
    lower = f", min={size_range.lower}" if size_range.lower else ""
    upper = f", max={size_range.upper}" if size_range.upper is not None else ""
    return f"{name} = Dim({name!r}{lower}{upper})"


def _render(value: object, leaves: Iterator[LeafDims], corrections: Mapping[str, Correction]) -> str:
    children, tree = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if isinstance(value, torch.Tensor) or tree.is_leaf():
        return _render_leaf(next(leaves), corrections)
    keys: list[Any] = [key for (key,), _ in children]
    texts = [_render(child, leaves, corrections) for _, child in children]
    names = [getattr(key, "key", getattr(key, "name", None)) for key in keys]
    if keys and None not in names:
        return f"{{{', '.join(f'{name!r}: {text}' for name, text in zip(names, texts, strict=True))}}}"
    return f"[{', '.join(texts)}]"


def _render_leaf(leaf: LeafDims, corrections: Mapping[str, Correction]) -> str:
    texts = [_render_dim(path, spec, corrections) for path, spec, _ in leaf.described()] if leaf is not None else []
    if isinstance(leaf, NumberDim):
        return texts[0] or "None"
    dims = ", ".join(f"{number}: {text}" for number, text in enumerate(texts) if text is not None)
    return f"{{{dims}}}" if dims else "None"


def _render_dim(path: str, spec: DimSpec, corrections: Mapping[str, Correction]) -> str | None:
    """The text for one size; None for a static one."""
    if spec is None or (isinstance(spec, DimHint) and spec.is_static):
        return None
    if isinstance(spec, DimHint) and (spec.name or path) in corrections:
        return "Dim.AUTO"
    root = root_of(spec)
    return "Dim.AUTO" if root is not None and corrections.get(root.name) == _UNKNOWN else repr(spec)


_UNKNOWN = Correction()
"""For a size whose allowed values no Dim can describe."""

_SCANNED_SIZES = 600
_LARGE_SIZES = tuple(2**power + extra for power in range(10, 21) for extra in (-1, 0, 1))


@dataclass(frozen=True)
class Contradiction:
    """One condition that the program needs and the user did not declare, the line that needs it, and the correction."""

    what: str
    at: str | None
    root: str
    correction: Correction


def check_no_contradictions(
    leaves: Sequence[LeafDims],
    arguments: Mapping[str, object],
    sizes: SymbolicSizes,
    specialized: Mapping[str, sympy.Expr],
    *,
    allows_narrower: bool = False,
) -> None:
    """Raise if a size that the user declared cannot vary as declared.

    ``Dim.AUTO`` may become anything, and ``Dim.DYNAMIC`` anything but a constant. Relations between sizes that no Dim
    can express, such as ``a < b``, are left for each call to check; with ``allows_narrower``, so are conditions that do
    not hold for every size of a range.
    """
    declared = _declared_roots([leaf for leaf in leaves if leaf is not None])
    free = {root for root, size_range in declared.items() if size_range is None}
    promised = {root: size_range for root, size_range in declared.items() if size_range is not None}
    found = [*_pinned(promised, free, sizes, specialized)]
    if not allows_narrower:
        found += _narrowed(promised, sizes, specialized)
    if not found:
        return
    corrections = {contradiction.root: contradiction.correction for contradiction in found}
    raise SymbolicShapeError(
        f"Constraints violated ({', '.join(corrections)})! "
        f"The program contradicts dynamic_shapes: {'; '.join(one.what for one in found)}.",
        at="; ".join(dict.fromkeys(one.at for one in found if one.at)) or None,
        why="a size that was declared dynamic must be free to take every value of its range",
        fix=f"Change the lines above, or declare what holds. Suggested fixes:\n"
        f"{suggest(leaves, arguments, corrections)}",
    )


def _declared_roots(leaves: Sequence[TensorDims | NumberDim]) -> dict[str, SizeRange | None]:
    """The sizes that the user declared dynamic, by the name of their symbol; None for those without a range."""
    roots: dict[str, SizeRange | None] = {}
    for path, spec, _ in (each for leaf in leaves for each in leaf.described()):
        if (root := root_of(spec)) is not None:
            roots[root.name] = root.range
        elif isinstance(spec, DimHint) and spec.kind == "DYNAMIC":
            roots[spec.name or path] = None
    return roots


def _pinned(
    promised: Mapping[str, SizeRange],
    free: Collection[str],
    sizes: SymbolicSizes,
    specialized: Mapping[str, sympy.Expr],
) -> Iterator[Contradiction]:
    """Declared sizes that were specialized to a number, or, if declared by a Dim, to an expression over other Dims."""
    names = {symbol.symbol: symbol.name for symbol in sizes.symbols}
    for symbol in sizes.symbols:
        now = specialized.get(symbol.name)
        if now is None or not (symbol.name in promised or (symbol.name in free and now.is_number)):
            continue
        size_range = promised.get(symbol.name, SizeRange())
        if size_range.lower == size_range.upper == now:
            continue
        roots = {names.get(each, str(each)) for each in now.free_symbols}
        if not roots <= promised.keys() or not _is_linear(now):
            continue
        named = now.xreplace({each: sympy.Symbol(name) for each, name in names.items()})
        what = f"{symbol.name} must be {named}" if roots else f"{symbol.name} must be the constant {named}"
        yield Contradiction(what, _line_that_pinned(symbol, sizes), symbol.name, Correction(expression=named))


def _is_linear(expression: sympy.Expr) -> bool:
    """Whether it is a number, or a Dim can express it: a multiple of one other size, plus a number."""
    if expression.is_number:
        return True
    if len(expression.free_symbols) != 1 or not expression.is_polynomial():
        return False
    polynomial = sympy.Poly(expression)
    return bool(polynomial.degree() == 1 and all(c.is_Integer for c in polynomial.all_coeffs()) and polynomial.LC() > 0)


def _line_that_pinned(symbol: SizeSymbol, sizes: SymbolicSizes) -> str | None:
    equalities = [guard for guard in sizes.guards if isinstance(guard.condition, sympy.Eq)]
    return next((guard.at for guard in equalities if symbol.symbol in guard.condition.free_symbols), None)


def _open_guards(sizes: SymbolicSizes, specialized: Mapping[str, sympy.Expr]) -> Iterator[SizeGuard]:
    """Guards beyond the specialized sizes. ``Ne`` only excludes coincidences, and is left for each call to check."""
    replaced = {symbol.symbol: specialized[symbol.name] for symbol in sizes.symbols if symbol.name in specialized}
    for guard in sizes.guards:
        condition = guard.condition.xreplace(replaced)
        if condition.free_symbols and not isinstance(condition, sympy.Ne):
            yield SizeGuard(condition, guard.at)


def _narrowed(
    declared: Mapping[str, SizeRange], sizes: SymbolicSizes, specialized: Mapping[str, sympy.Expr]
) -> Iterator[Contradiction]:
    """Sizes that may not take every value of their declared range, by the traced range and the guards on them alone."""
    guards = list(_open_guards(sizes, specialized))
    for symbol in sizes.symbols:
        if symbol.name not in declared or symbol.name in specialized:
            continue
        alone = [guard for guard in guards if guard.condition.free_symbols == {symbol.symbol}]
        candidates = _candidates(declared[symbol.name])
        allowed = [
            size
            for size in candidates
            if size in symbol.range and all(holds(guard.condition, {symbol.symbol: size}) for guard in alone)
        ]
        if len(allowed) < len(candidates):
            about = [guard for guard in guards if symbol.symbol in guard.condition.free_symbols]
            broken = [g for g in alone if not all(holds(g.condition, {symbol.symbol: s}) for s in candidates)] or about
            what, correction = _narrower(symbol.name, declared[symbol.name], candidates, allowed)
            yield Contradiction(what, broken[0].at if broken else None, symbol.name, correction)


def _candidates(size_range: SizeRange) -> list[int]:
    """Sizes of the range to try: all small ones and some large ones. 0 and 1 are left out: tracing assumes neither."""
    lower = size_range.lower if size_range.upper is not None and size_range.upper < 2 else max(size_range.lower, 2)
    ends = (lower + _SCANNED_SIZES, *_LARGE_SIZES, lower if size_range.upper is None else size_range.upper)
    return sorted({size for size in (*range(lower, lower + _SCANNED_SIZES), *ends) if size in size_range})


def _narrower(
    name: str, size_range: SizeRange, candidates: Sequence[int], allowed: Sequence[int]
) -> tuple[str, Correction]:
    """What the allowed sizes have in common: an interval, or a factor."""
    if not allowed:
        return f"no size that {name} may have is possible", Correction()
    upper = size_range.upper if allowed[-1] == candidates[-1] else allowed[-1]
    lower = size_range.lower if allowed[0] == candidates[0] else allowed[0]
    inside = [size for size in candidates if allowed[0] <= size <= allowed[-1]]
    if len(allowed) == 1:
        return f"{name} must be the constant {allowed[0]}", Correction(expression=sympy.Integer(allowed[0]))
    if allowed == inside:
        narrowed = SizeRange(lower, upper)
        return f"{name} must be in {narrowed}, not {size_range}", Correction(range=narrowed)
    step = int(sympy.igcd(*(size - allowed[0] for size in allowed), 0))
    if step > 1 and allowed == [size for size in inside if (size - allowed[0]) % step == 0]:
        return _in_steps(name, step, lower, upper, allowed)
    excluded = next(size for size in candidates if size not in set(allowed))
    return f"{name} cannot be {excluded}, which its range {size_range} allows", _UNKNOWN


def _in_steps(name: str, step: int, lower: int, upper: int | None, allowed: Sequence[int]) -> tuple[str, Correction]:
    """Every n-th size from ``lower`` to ``upper``, as an expression over a Dim that counts the steps."""
    rest = allowed[0] % step
    offset = rest - step if 2 * rest > step else rest
    least = max(0, -((offset - lower) // step))
    most = None if upper is None else (upper - offset) // step
    root = Dim(f"_{name}", least if least * step + offset > step else 0, most)
    what = f"{name} must be {f'{rest} more than ' if rest else ''}a multiple of {step}"
    return what, Correction(expression=step * sympy.Symbol(root.name) + offset, root=root)
