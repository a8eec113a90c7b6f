"""The custom operators of Precast, in the namespace ``precast``.

- ``random_seed``, ``random_stream``: counter-based random numbers. A *stream* is two integers: a seed, which a call of
  a program draws once, and the number of one random operator in it. It replaces the generator state in torch's
  operators for replaying a draw.
- ``checked``: a check of values that eager's kernel makes, for decompositions of such kernels.
- ``grouped_rows``, ``grouped_sums``: products of groups of rows, each by its own matrix, as in a mixture of experts.
  ``ends[g]`` is the end of group ``g``, which begins at the end of the previous one. Rows after the last end are in no
  group. The two are each other's derivatives, so that gradients of any order are made of them.
- ``ctc``: the CTC loss with its gradient; torch's operator has a result of data-dependent size.
- ``joined``, ``fft…``: complex numbers as pairs of real ones, and Fourier transforms of these.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_library = torch.library.Library("precast", "FRAGMENT")
_library.define("random_seed() -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("random_stream(Tensor seed, int number) -> Tensor")

SEED_LIMIT = 2**63 - 1


def _seed() -> torch.Tensor:
    return torch.randint(SEED_LIMIT, (), device="cpu")


def _stream(seed: torch.Tensor, number: int) -> torch.Tensor:
    return torch.stack([seed, torch.full_like(seed, number)])


_library.impl("random_seed", _seed, "CompositeExplicitAutograd")
_library.impl("random_stream", _stream, "CompositeExplicitAutograd")

random_seed = torch.ops.precast.random_seed.default
"""``random_seed() -> int64 tensor without dimensions``: drawn from torch's generator."""
random_stream = torch.ops.precast.random_stream.default
"""``random_stream(seed, number) -> int64[2]``."""


_library.define("checked(Tensor value, Tensor is_wrong, str error, str message) -> Tensor")
_KINDS = {"index": IndexError, "value": RuntimeError}


def _checked(value: Tensor, is_wrong: Tensor, error: str, message: str) -> Tensor:
    if bool(is_wrong.any()):
        raise _KINDS[error](message)
    return value.clone()


def _fake_checked(value: Tensor, is_wrong: Tensor, error: str, message: str) -> Tensor:
    return torch.empty_like(value)


for _processor in ("CPU", "CUDA"):
    _library.impl("checked", _checked, _processor)
torch.library.register_fake("precast::checked", _fake_checked, lib=_library)

checked = torch.ops.precast.checked.default
"""``checked(value, is_wrong, error, message)``: ``value`` if nothing in ``is_wrong`` is true; else an IndexError or
RuntimeError."""


_library.define("grouped_rows(Tensor rows, Tensor matrices, Tensor ends) -> Tensor")
_library.define("grouped_sums(Tensor left, Tensor right, Tensor ends) -> Tensor")


def _groups(ends: torch.Tensor) -> list[slice]:
    bounds = [0, *ends.tolist()]
    return [slice(start, end) for start, end in itertools.pairwise(bounds)]


def _rows(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result = rows.new_zeros(rows.shape[0], matrices.shape[2])
    for group, matrix in zip(_groups(ends), matrices, strict=True):
        result[group] = rows[group] @ matrix
    return result


def _sums(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result = left.new_zeros(ends.shape[0], left.shape[1], right.shape[1])
    for group, total in zip(_groups(ends), result, strict=True):
        total.copy_(left[group].T @ right[group])
    return result


def _rows_shape(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _check("grouped_rows", rows.ndim == 2 and matrices.ndim == 3, rows, matrices, ends)
    torch._check(rows.shape[1] == matrices.shape[1], lambda: "grouped_rows: rows and matrices do not fit")
    torch._check(ends.shape[0] == matrices.shape[0], lambda: "grouped_rows: one end for each matrix is needed")
    return rows.new_empty(rows.shape[0], matrices.shape[2])


def _sums_shape(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _check("grouped_sums", left.ndim == right.ndim == 2, left, right, ends)
    torch._check(left.shape[0] == right.shape[0], lambda: "grouped_sums: left and right have other numbers of rows")
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1])


def _check(name: str, has_ranks: bool, one: torch.Tensor, other: torch.Tensor, ends: torch.Tensor) -> None:
    are_integers = ends.dtype in (torch.int32, torch.int64)
    torch._check(has_ranks and ends.ndim == 1 and are_integers, lambda: f"{name}: operands of other ranks or types")
    torch._check(one.dtype == other.dtype, lambda: f"{name}: expected one type, got {one.dtype} and {other.dtype}")


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: object) -> None:
    ctx.save_for_backward(*inputs)


def _rows_backward(
    context: torch.autograd.function.FunctionCtx, slope: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    rows, matrices, ends = context.saved_tensors  # type: ignore[attr-defined]
    wants_rows, wants_matrices, _ = context.needs_input_grad  # type: ignore[attr-defined]
    return (
        grouped_rows(slope, matrices.transpose(1, 2), ends) if wants_rows else None,
        grouped_sums(rows, slope, ends) if wants_matrices else None,
        None,
    )


def _sums_backward(
    context: torch.autograd.function.FunctionCtx, slope: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    left, right, ends = context.saved_tensors  # type: ignore[attr-defined]
    wants_left, wants_right, _ = context.needs_input_grad  # type: ignore[attr-defined]
    return (
        grouped_rows(right, slope.transpose(1, 2), ends) if wants_left else None,
        grouped_rows(left, slope, ends) if wants_right else None,
        None,
    )


for _name, _kernel, _shape, _backward in (
    ("grouped_rows", _rows, _rows_shape, _rows_backward),
    ("grouped_sums", _sums, _sums_shape, _sums_backward),
):
    for _processor in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _processor)
    torch.library.register_fake(f"precast::{_name}", _shape, lib=_library)
    torch.library.register_autograd(f"precast::{_name}", _backward, setup_context=_keep, lib=_library)

grouped_rows = torch.ops.precast.grouped_rows.default
"""``grouped_rows(rows[s, k], matrices[g, k, n], ends[g]) -> [s, n]``: each row by its group's matrix; zeros in none."""
grouped_sums = torch.ops.precast.grouped_sums.default
"""``grouped_sums(left[s, k], right[s, n], ends[g]) -> [g, k, n]``: the sum over each group of its rows' products."""


_library.define(
    "ctc(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool zero_infinity, bool wants_slope) -> (Tensor, Tensor)"
)


def _ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    wants_slope: bool,
) -> tuple[Tensor, Tensor]:
    # Eager accepts lengths on the host for tensors on a GPU; the kernel itself does not.
    lengths = [each.to(log_probs.device) for each in (input_lengths, target_lengths)]
    losses, alphas = torch.ops.aten._ctc_loss.Tensor(log_probs, targets, *lengths, blank, zero_infinity)
    if not wants_slope:
        return _finite(losses, zero_infinity), log_probs.new_empty(0)
    slope = torch.ops.aten._ctc_loss_backward.Tensor(
        torch.ones_like(losses), log_probs, targets, *lengths, losses, alphas, blank, zero_infinity
    )
    return _finite(losses, zero_infinity), slope.contiguous()


def _finite(losses: Tensor, zero_infinity: bool) -> Tensor:
    return torch.where(losses == torch.inf, torch.zeros_like(losses), losses) if zero_infinity else losses


def _ctc_shape(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    wants_slope: bool,
) -> tuple[Tensor, Tensor]:
    slope = log_probs.new_empty(log_probs.shape if wants_slope else 0)
    return log_probs.new_empty(log_probs.shape[1]), slope


def _ctc_keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _ctc_backward(ctx: torch.autograd.function.FunctionCtx, slope: Tensor, unused: Tensor | None) -> tuple[Any, ...]:
    (slopes,) = ctx.saved_tensors  # type: ignore[attr-defined]
    return slopes * slope[None, :, None], None, None, None, None, None, None


for _processor in ("CPU", "CUDA"):
    _library.impl("ctc", _ctc, _processor)
torch.library.register_fake("precast::ctc", _ctc_shape, lib=_library)
torch.library.register_autograd("precast::ctc", _ctc_backward, setup_context=_ctc_keep, lib=_library)

ctc = torch.ops.precast.ctc.default
"""``ctc(…) -> losses[batch], slopes[time, batch, classes]``: the loss of each sequence, and its gradient if wanted."""


_library.define("joined(Tensor real, Tensor imaginary) -> Tensor")


def _joined(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.stack((real, imaginary), -1)


def _joined_shape(real: Tensor, imaginary: Tensor) -> Tensor:
    return real.new_empty([*real.shape, 2])


for _processor in ("CPU", "CUDA"):
    _library.impl("joined", _joined, _processor)
torch.library.register_fake("precast::joined", _joined_shape, lib=_library)

joined = torch.ops.precast.joined.default
"""``joined(real, imaginary) -> […, 2]``: the parts of complex numbers, interleaved."""


_library.define("fft(Tensor pairs, int[] dims, int normalization, bool forward) -> Tensor")
_library.define("fft_of_real(Tensor source, int[] dims, int normalization) -> Tensor")
_library.define("fft_to_real(Tensor pairs, int[] dims, int normalization, SymInt size) -> Tensor")


def _fft(pairs: Tensor, dims: list[int], normalization: int, forward: bool) -> Tensor:
    return torch.view_as_real(torch.ops.aten._fft_c2c(torch.view_as_complex(pairs), dims, normalization, forward))


def _fft_of_real(source: Tensor, dims: list[int], normalization: int) -> Tensor:
    return torch.view_as_real(torch.ops.aten._fft_r2c(source, dims, normalization, True))


def _fft_to_real(pairs: Tensor, dims: list[int], normalization: int, size: int) -> Tensor:
    found: Tensor = torch.ops.aten._fft_c2r(torch.view_as_complex(pairs), dims, normalization, size)
    return found


def _fft_shape(pairs: Tensor, dims: list[int], normalization: int, forward: bool) -> Tensor:
    return pairs.new_empty(pairs.shape)


def _fft_of_real_shape(source: Tensor, dims: list[int], normalization: int) -> Tensor:
    sizes = list(source.shape)
    sizes[dims[-1]] = sizes[dims[-1]] // 2 + 1
    return source.new_empty([*sizes, 2])


def _fft_to_real_shape(pairs: Tensor, dims: list[int], normalization: int, size: int) -> Tensor:
    sizes = list(pairs.shape[:-1])
    sizes[dims[-1]] = size
    return pairs.new_empty(sizes)


_TRANSFORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "fft": (_fft, _fft_shape),
    "fft_of_real": (_fft_of_real, _fft_of_real_shape),
    "fft_to_real": (_fft_to_real, _fft_to_real_shape),
}
for _name, _functions in _TRANSFORMS.items():
    _library.impl(_name, _functions[0], "CPU")
    torch.library.register_fake(f"precast::{_name}", _functions[1], lib=_library)

fft = torch.ops.precast.fft.default
"""``fft(pairs[…, 2], dims, normalization, forward) -> […, 2]``: complex numbers are pairs; dims are not negative."""
fft_of_real = torch.ops.precast.fft_of_real.default
"""``fft_of_real(source[…], dims, normalization) -> […, 2]``: the first half along the last of the dims."""
fft_to_real = torch.ops.precast.fft_to_real.default
"""``fft_to_real(pairs[…, 2], dims, normalization, size) -> […]``: the inverse, with ``size`` elements along the last
dim."""


def operator_named(name: str) -> OpOverload:
    """``aten.sort.default`` → the operator, torch's or one of these."""
    namespace, operator, overload = name.split(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    return found
