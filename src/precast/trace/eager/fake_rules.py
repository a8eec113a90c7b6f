"""Rules for fake tensors where torch's are missing or differ from eager.

Masks: uint8 masks are accepted, and sizes are checked, as in eager.

Before: ``x[bytes]`` and ``where(bytes, x, y)`` are refused by torch's rules for fake tensors, and
        ``x[mask] = y`` is traced whatever the size of the mask is.
After:  uint8 masks select as bool masks do, and a mask of the wrong size raises eager's error.

Comparisons of random numbers with a certain result: ``torch.rand([]) < 0.0`` is never true. Models with layer drop
branch so in Python for each layer, even if the probability is 0, as it mostly is.

Before: ``if torch.rand([]) < layerdrop`` ends the capture, as a data-dependent branch.
After:  it is decided for a ``layerdrop`` of 0 or 1.

Elements of sparse tensors: how many there are is known when the program runs, and fake sparse tensors have none.

Before: ``x.to_sparse().values()`` is traced with the size 0, and ``x.to_sparse()._nnz()`` is the number 0.
After:  both end the capture, as data-dependent sizes.

``torch.linalg.lstsq``: torch has no fake rule for it. Sizes follow from those of the matrices, except for the residuals
of some drivers, which exist only for full rank.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.weak import WeakIdKeyDictionary

from precast.errors import DataDependentError

_aten = torch.ops.aten
_CHOICES = {_aten.index.Tensor, _aten._unsafe_index.Tensor}
_WRITES = {
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
}
_MASK_TYPES = (torch.bool, torch.uint8)


def with_masks_of_eager(func: Any, args: Sequence[Any], mode: FakeTensorMode) -> Sequence[Any]:
    """The arguments with uint8 masks as bool; raises for masks that eager refuses."""
    if func is _aten.where.self and args[0].dtype is torch.uint8:
        return _as_bools(args[0], mode), *args[1:]
    if func in _WRITES:
        _check_sizes(args[0], args[1])
    if func in _CHOICES and any(_is_mask(index) for index in args[1]):
        _check_sizes(args[0], args[1])
        return args[0], [_as_bools(index, mode) if _is_mask(index) else index for index in args[1]], *args[2:]
    return args


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in _MASK_TYPES


def _as_bools(mask: Tensor, mode: FakeTensorMode) -> Tensor:
    if mask.dtype is torch.bool:
        return mask
    with mode:
        return torch.empty_strided(mask.shape, mask.stride(), dtype=torch.bool, device=mask.device)


def _check_sizes(source: Tensor, indices: Sequence[Any]) -> None:
    dim = 0
    for index in indices:
        if not _is_mask(index):
            dim += 1
            continue
        if dim + index.ndim > source.ndim:
            raise IndexError(f"too many indices for tensor of dimension {source.ndim}")
        for step, size in enumerate(index.shape):
            torch._check_index(size == source.shape[dim + step], _mismatch(index, step, source, dim))
        dim += index.ndim


def _mismatch(mask: Tensor, step: int, source: Tensor, dim: int) -> Callable[[], str]:
    def text() -> str:
        sizes, sizes_of_source = (str(list(each.shape)) for each in (mask, source))
        return (
            f"The shape of the mask {sizes} at index {step} does not match the shape of the indexed tensor "
            f"{sizes_of_source} at index {dim + step}"
        )

    return text


_DRAWS = {_aten.rand.default, _aten.rand_like.default}
# The result for all numbers in [0, 1), for a limit of at most 0, and for one of at least 1.
_WHEN_LOW = {_aten.lt.Scalar: False, _aten.ge.Scalar: True}
_WHEN_HIGH = {_aten.lt.Scalar: True, _aten.le.Scalar: True, _aten.gt.Scalar: False, _aten.ge.Scalar: False}


class CertainAnswers:
    """Tracks fake tensors that are drawn from [0, 1), and comparisons of these with a certain result."""

    def __init__(self) -> None:
        self._drawn: Any = WeakIdKeyDictionary()
        self._answers: Any = WeakIdKeyDictionary()

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Record an operator's result."""
        if func in _DRAWS:
            self._drawn[result] = True
        elif (func in _WHEN_LOW or func in _WHEN_HIGH) and args[0] in self._drawn:
            limit = args[1]
            if isinstance(limit, int | float):
                answer = _WHEN_LOW.get(func) if limit <= 0 else _WHEN_HIGH.get(func) if limit >= 1 else None
                if answer is not None:
                    self._answers[result] = answer

    def answer(self, func: Any, args: Sequence[Any]) -> bool | None:
        """The result of reading a tensor's only element; None if it is data-dependent."""
        if func is not _aten._local_scalar_dense.default:
            return None
        answer: bool | None = self._answers.get(args[0])
        return answer


# What tells how many elements a sparse tensor has, and what makes one of its indices and values.
_ELEMENTS = {
    _aten.values.default, _aten._values.default, _aten.indices.default, _aten._indices.default,
    _aten.col_indices.default, _aten.row_indices.default, _aten._nnz.default,
}  # fmt: skip
_OF_PARTS = {
    _aten._sparse_coo_tensor_with_dims_and_tensors.default,
    _aten._sparse_compressed_tensor_with_dims.default,
    _aten.sparse_compressed_tensor.comp_plain_value_size,
}


class SparseTensors:
    """Tracks fake sparse tensors that are made of their parts, whose number of elements is known."""

    def __init__(self) -> None:
        self._counted: Any = WeakIdKeyDictionary()

    def note(self, func: Any, result: Any) -> None:
        """Record an operator's result."""
        if func in _OF_PARTS:
            self._counted[result] = True

    def check(self, func: Any, args: Sequence[Any]) -> None:
        """Refuse to tell how many elements a tensor has for which that depends on data."""
        if func in _ELEMENTS and args[0] not in self._counted:
            raise DataDependentError(
                f"The program uses the elements of a sparse tensor by {func.overloadpacket.__name__}().",
                why="how many there are is known when the program runs, and a graph needs to know sizes before",
                fix="Compute with the tensor as a whole, as in torch.sparse.mm, or make it dense first by to_dense().",
            )


_DEFAULT_DRIVER = "gelsy"
_WITH_SINGULAR_VALUES = ("gelss", "gelsd")


def fake_lstsq(
    matrix: Tensor, right: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fake solution, residuals, rank and singular values; must run under the fake mode."""
    driver = driver or _DEFAULT_DRIVER
    rows, columns = matrix.shape[-2:]
    if rows > columns and driver in _WITH_SINGULAR_VALUES:
        raise DataDependentError(
            f"linalg.lstsq with the driver {driver!r} returns residuals only if the matrices have full rank.",
            why="whether they have is known when the program runs, and a graph needs to know sizes before",
            fix="Use driver='gels' for matrices of full rank, or driver='gelsy' and compute the residuals yourself.",
        )
    is_vector = right.ndim == 1 or (matrix.ndim - 1 == right.ndim and right.shape == matrix.shape[:-1])
    count = 1 if is_vector else right.shape[-1]
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[: -1 if is_vector else -2])
    # LAPACK overwrites the right-hand side, column-major, which may be longer than the solution.
    solution = matrix.new_empty((*batch, count, max(rows, columns))).mT[..., :columns, :]
    nothing = matrix.new_empty(0)
    values = matrix.new_empty((*matrix.shape[:-2], min(rows, columns))) if driver in _WITH_SINGULAR_VALUES else nothing
    rank = matrix.new_empty(0 if driver == "gels" else matrix.shape[:-2], dtype=torch.int64)
    residuals = matrix.new_empty((*batch, count)) if rows > columns and driver == "gels" else matrix.new_empty(0)
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, values
