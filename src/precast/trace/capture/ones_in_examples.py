"""Sizes of 0 and 1 in the example that were declared dynamic, in programs that work only for those sizes.

They are traced as other numbers, so that they do not freeze. But a program may need them, to broadcast for example.

Before: ``x + y`` with ``x: f32[n, 3]``, ``y: f32[m, 3]``, both ``Dim.AUTO``, and an example in which m is 1: it fails
        for the numbers that n and m were traced as
After:  m is 1; if it was declared to be free, an error that names it
"""

from collections.abc import Callable
from typing import Any, TypeVar

from precast.errors import PrecastError, SymbolicShapeError
from precast.trace.capture.dims import DimHint, DimSpec
from precast.trace.capture.dynamic_shapes import Frozen, LeafDims

T = TypeVar("T")
REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What programs raise for sizes that they do not allow."""


def with_ones_if_needed(
    record: Callable[[Any], T], dynamic_shapes: Any, described: Callable[[Any], list[LeafDims]]
) -> T:
    """``record(dynamic_shapes)``; if the program fails, with those sizes as in the example that may be so."""
    try:
        return record(dynamic_shapes)
    except PrecastError:
        raise
    except REFUSALS as error:
        leaves = [leaf for leaf in described(dynamic_shapes) if leaf is not None]
        sizes = [each for leaf in leaves for each in leaf.described()]
        ones = [(path, spec) for path, spec, size in sizes if is_free(spec) and size in (0, 1)]
        if not ones:
            raise
        try:
            return record(Frozen(dynamic_shapes, is_automatic))
        except REFUSALS:
            promised = [path for path, spec in ones if not is_automatic(spec)]
            if not promised or not _succeeds(record, Frozen(dynamic_shapes, is_free)):
                raise error from None
            raise SymbolicShapeError(
                f"The program fails unless {', '.join(promised)} {'is' if len(promised) == 1 else 'are'} as in the "
                "example, where such a size is 0 or 1.",
                why=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
                fix="Leave these sizes static (None), or give an example with other sizes.",
            ) from error


def _succeeds(record: Callable[[Any], object], dynamic_shapes: Any) -> bool:
    try:
        record(dynamic_shapes)
    except REFUSALS:
        return False
    return True


def is_free(spec: DimSpec) -> bool:
    return spec is not None and not isinstance(spec, int) and not (isinstance(spec, DimHint) and spec.is_static)


def is_automatic(spec: DimSpec) -> bool:
    return isinstance(spec, DimHint) and spec.kind == "AUTO"
