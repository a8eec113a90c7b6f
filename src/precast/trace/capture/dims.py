"""How users declare one size: ``Dim``, relations between dims, and hints; ours, or PyTorch's converted to ours.

Before: ``torch.export.Dim("batch", max=64)``, ``2 * batch``, ``"batch"``
After:  ``Dim("batch", max=64)``, ``DerivedDim(batch, 2, 0)``, ``DimHint("DYNAMIC", name="batch")``
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from precast.errors import InputTypeError, InputValueError
from precast.graph.sizes import SizeRange


@dataclass(frozen=True)
class DimHint:
    """How to treat a dimension without a name; call a hint to set bounds.

    ``AUTO``: dynamic if the program allows it. ``DYNAMIC``: dynamic, in the range that the program allows. ``STATIC``:
    fixed to the size in the example. Hints with the same ``name`` mean equal sizes.

    >>> Dim.DYNAMIC(max=64)
    Dim.DYNAMIC(max=64)
    """

    kind: str
    min: int | None = None
    max: int | None = None
    name: str | None = None

    def __call__(self, min: int | None = None, max: int | None = None) -> "DimHint":
        """The same hint with bounds."""
        _check_bounds(f"Dim.{self.kind}", min or 0, max)
        return DimHint(self.kind, min, max, self.name)

    @property
    def is_static(self) -> bool:
        return self.kind == "STATIC"

    @property
    def range(self) -> SizeRange:
        return SizeRange(self.min or 0, self.max)

    def __repr__(self) -> str:
        if self.name is not None:
            return repr(self.name)
        bounds = [f"{end}={value}" for end, value in (("min", self.min), ("max", self.max)) if value is not None]
        return f"Dim.{self.kind}" + (f"({', '.join(bounds)})" if bounds else "")


@dataclass(frozen=True)
class Dim:
    """A dynamic size with a name and a range. Using the same ``Dim`` in two places means that both sizes are equal.

    >>> batch = Dim("batch", min=1, max=64)
    >>> 2 * batch + 1
    2*batch + 1
    """

    name: str
    min: int = 0
    max: int | None = None

    AUTO: ClassVar[DimHint] = DimHint("AUTO")
    DYNAMIC: ClassVar[DimHint] = DimHint("DYNAMIC")
    STATIC: ClassVar[DimHint] = DimHint("STATIC")

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", self.min or 0)
        _check_name(self.name)
        _check_bounds(f"Dim {self.name!r}", self.min, self.max)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def range(self) -> SizeRange:
        return SizeRange(self.min, self.max)

    def __add__(self, offset: int) -> "DerivedDim":
        return DerivedDim(self, 1, 0) + offset

    def __sub__(self, offset: int) -> "DerivedDim":
        return DerivedDim(self, 1, 0) - offset

    def __mul__(self, scale: int) -> "DerivedDim":
        return DerivedDim(self, 1, 0) * scale

    def __rsub__(self, other: object) -> "DerivedDim":
        raise _not_linear(self, f"{other!r} - {self!r}")

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DerivedDim:
    """A size that is derived from another one: ``scale * root + offset``."""

    root: Dim
    scale: int
    offset: int

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise _not_linear(self.root, repr(self))

    @property
    def __name__(self) -> str:
        return repr(self)

    def fn(self, size: int) -> int:
        """This size if the root's is ``size``."""
        return self.scale * size + self.offset

    def __add__(self, offset: int) -> "DerivedDim":
        if type(offset) is not int:
            raise _not_linear(self, f"{self!r} + {offset!r}")
        return DerivedDim(self.root, self.scale, self.offset + offset)

    def __sub__(self, offset: int) -> "DerivedDim":
        if type(offset) is not int:
            raise _not_linear(self, f"{self!r} - {offset!r}")
        return self + -offset

    def __mul__(self, scale: int) -> "DerivedDim":
        if type(scale) is not int:
            raise _not_linear(self, f"{self!r} * {scale!r}")
        return DerivedDim(self.root, self.scale * scale, self.offset * scale)

    def __rsub__(self, other: object) -> "DerivedDim":
        raise _not_linear(self, f"{other!r} - {self!r}")

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        scaled = self.root.name if self.scale == 1 else f"{self.scale}*{self.root.name}"
        return scaled if self.offset == 0 else f"{scaled} {'-' if self.offset < 0 else '+'} {abs(self.offset)}"


DimSpec = Dim | DerivedDim | DimHint | int | None
"""What users may write for one dimension; an int or ``None`` keeps it static."""


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Return several dims with the same range.

    >>> dims("batch", "length", max=64)
    (batch, length)
    """
    return tuple(Dim(name, min or 0, max) for name in names)


def root_of(spec: object) -> Dim | None:
    """The free dim that a spec is over; ``None`` for hints and numbers."""
    return spec.root if isinstance(spec, DerivedDim) else spec if isinstance(spec, Dim) else None


def as_dim_spec(value: Any, path: str) -> DimSpec:
    """Convert what was written for one dimension: a string is a name; PyTorch's dims are recognized by attributes."""
    if value is None or isinstance(value, (Dim, DerivedDim, DimHint)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_name(value)
        return DimHint("DYNAMIC", name=value)
    parts: dict[str, Any] = {name: getattr(value, name, None) for name in ("type", "root", "fn", "value", "__name__")}
    if getattr(parts["type"], "name", None) in ("AUTO", "DYNAMIC", "STATIC"):
        return DimHint(parts["type"].name, value.min, value.max)
    if parts["root"] is not None and callable(parts["fn"]):
        return _derived(_torchs_dim(parts["root"]), parts["fn"])
    if isinstance(parts["__name__"], str) and not isinstance(value, type) and hasattr(value, "min"):
        return parts["value"] if isinstance(parts["value"], int) else _torchs_dim(value)
    raise InputTypeError(
        f"dynamic_shapes says {value!r} for {path}.",
        why="a dimension is described by a Dim, a name, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None",
        fix='Write for example Dim("batch").',
    )


def _torchs_dim(dim: Any) -> Dim:
    # PyTorch's infinity is not an int.
    return Dim(dim.__name__, int(dim.min), int(dim.max) if isinstance(dim.max, int) else None)


def _derived(root: Dim, function: Callable[[int], int]) -> DerivedDim:
    offset = int(function(0))
    return DerivedDim(root, int(function(1)) - offset, offset)


def _check_name(name: str) -> None:
    if not name.isidentifier():
        raise InputValueError(
            f"{name!r} cannot name a dimension.",
            why="the name appears in generated code and messages",
            fix='Use a Python identifier, such as Dim("batch").',
        )


def _check_bounds(what: str, lower: int, upper: int | None) -> None:
    if lower < 0 or (upper is not None and upper < lower):
        raise InputValueError(
            f"{what} has the empty range {lower}..{upper}.",
            why="min must be at least 0 and at most max",
            fix="Give min <= max, or leave them out.",
        )


class DimArithmeticError(InputValueError, NotImplementedError):
    """A relation between sizes that cannot be declared: it is not linear and increasing."""


def _not_linear(dim: object, written: str) -> DimArithmeticError:
    return DimArithmeticError(
        f"{written} cannot be a size that follows from {dim!r}.",
        why="only increasing linear relations with whole numbers can be declared",
        fix="Name the smaller dimension with Dim and derive the larger one from it, as 2 * batch + 1.",
    )
