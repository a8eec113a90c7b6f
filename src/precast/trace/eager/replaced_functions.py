"""Replaces functions whose kernels, or whose gradients, depend on values in ways that cannot be traced.

Before: out = transformers.grouped_mm_fallback(rows, experts, ends)     its backward branches in Python on ``ends``
After:  out = precast.grouped_rows(rows, experts, ends)                 computes the same, and so does its backward

Before: ``cov(x)`` compares numbers in C++ to warn of too few observations; ``ctc_loss`` has a result as large as the
        longest target, which is data-dependent
After:  ``cov`` decomposed into products; ``precast.ctc``, which returns losses and their gradients

Before: ``x[0].fill_diagonal_(1)`` writes by strides, which functionalization refuses in a view
After:  ``x[0].diagonal().fill_(1)``

Before: ``istft(z)`` checks in C++ whether its windows cover the signal
After:  transforms, overlapping sums, and a check in the graph

Before: ``combinations(x)`` selects by a mask several times, each time with another unknown number of results
After:  elements looked up at the places of an upper triangle

Before: ``torch.tensor(x.shape[0] > 3)``, whose C++ code needs a concrete bool
After:  a tensor of the number 1 or 0, converted to bool

Before: ``torch.linspace(-1, 1, x.shape[2])``, whose C++ code needs a concrete number of steps
After:  ``arange``, scaled from both ends, as eager does it

Before: ``x.sub_(y, alpha=t)``, with ``t`` a symbol: torch's decomposition checks whether it equals 1
After:  ``x.add_(y, alpha=-t)``

Before: ``scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(…))``, as libraries write while they are traced
After:  the same without a mask, or with ``is_causal``, for which there are faster kernels

Before: ``v = x[:2]; v.t_(); v[0] += 1``, where autograd replays the view as it was before the ``t_``
After:  ``v = x[:2].t(); v[0] += 1``
"""

from collections.abc import Callable, Sequence
from itertools import combinations, combinations_with_replacement, pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional

from precast.ops.own_operators import checked, ctc, grouped_rows
from precast.trace.eager.attention_masks import attention


def replacement_of(function: Any) -> Callable[..., Any] | None:
    """A function with the same arguments and results that can be traced; None if there is none."""
    if isinstance(function, OpOverload):
        return _OPERATORS.get(function.name().partition(".")[0])
    if isinstance(function, OpOverloadPacket):
        return _OPERATORS.get(function._qualified_op_name)
    return _FUNCTIONS.get(function)


def _experts(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    result: Tensor = grouped_rows(input, weight, offs)
    return result


def _grouped_mm(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, **others: Any) -> Tensor:
    """Rows times the matrices of their groups; torch traces bfloat16 itself, and reports the errors of other calls."""
    is_ours = offs is not None and mat_a.ndim == 2 and mat_b.ndim == 3 and mat_a.dtype is not torch.bfloat16
    if is_ours and offs is not None and all(each is None for each in others.values()) and mat_a.dtype is mat_b.dtype:
        return _experts(mat_a, mat_b, offs)
    result: Tensor = torch._grouped_mm(mat_a, mat_b, offs=offs, **others)
    return result


def _refuse(value: Tensor, is_wrong: Tensor, message: str) -> Tensor:
    """The same value, with an error at run time if anything in ``is_wrong`` is true."""
    with torch.no_grad():
        nothing: Tensor = checked(torch.zeros_like(value), is_wrong, "value", message)
    return value + nothing


def _weights(fweights: Tensor | None, aweights: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The product of both weights, and the second of them, checked to be non-negative."""
    counts = None if fweights is None else _refuse(fweights, fweights < 0, "cov(): fweights cannot be negative")
    shares = None if aweights is None else _refuse(aweights, aweights < 0, "cov(): aweights cannot be negative")
    given = [each for each in (counts, shares) if each is not None]
    return (None if not given else given[0] if len(given) == 1 else given[0] * given[1]), shares


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of rows; with too few observations, the divisor is zero as in eager."""
    given = [each for each in (fweights, aweights) if each is not None]
    columns = input.shape[-1] if input.ndim else 1
    if input.ndim > 2 or input.dtype is torch.bool or any(each.shape != (columns,) for each in given):
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input.reshape(1, columns) if input.ndim < 2 else input
    weights, shares = _weights(fweights, aweights)
    if weights is None:
        centered = rows - (rows.sum(1) / columns).unsqueeze(1)
        product = centered @ centered.T.conj()
        return product.div(torch.sym_max(columns - correction, 0)).squeeze()
    total = weights.sum()
    total = _refuse(total, total == 0, "cov(): weights sum to zero, can't be normalized")
    centered = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    if shares is not None and correction != 0:
        divisor = total - correction * (weights * shares).sum() / total
    else:
        divisor = total - correction
    divisor = torch.where(divisor <= 0, torch.zeros_like(divisor), divisor)
    return (centered @ (centered * weights).T.conj()).div(divisor).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    """Covariances divided by standard deviations, clipped to [-1, 1]."""
    covariances = _cov(input)
    if covariances.ndim == 0:
        return covariances / covariances
    deviations = covariances.diag().real.sqrt() if covariances.is_complex() else covariances.diag().sqrt()
    found = covariances / deviations.unsqueeze(1) / deviations.unsqueeze(0)
    if not found.is_complex():
        return found.clip(-1, 1)
    return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))


def _istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Inverse transforms of the frames, weighted, overlap-added, and divided by the sum of the weights."""
    hop, frames = hop_length or n_fft // 4, input.shape[-1]
    is_plain = input.is_complex() and input.ndim in (2, 3) and not return_complex
    if not is_plain or (window is not None and (window.is_complex() or window.shape != (win_length or n_fft,))):
        return torch.istft(
            input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex
        )
    spectra = (input if input.ndim == 3 else input.unsqueeze(0)).transpose(1, 2)
    # Eager reads only the first half of two-sided spectra.
    waves = torch.fft.irfft(spectra[..., : n_fft // 2 + 1], n_fft, norm="ortho" if normalized else "backward")
    weights = torch.ones(win_length or n_fft, dtype=waves.dtype, device=waves.device) if window is None else window
    before = (n_fft - weights.shape[0]) // 2
    weights = functional.pad(weights, (before, n_fft - weights.shape[0] - before))
    whole = n_fft + hop * (frames - 1)

    def overlapped(rows: Tensor) -> Tensor:
        return functional.fold(rows, (1, whole), (1, n_fft), stride=(1, hop))[:, 0, 0]

    signal = overlapped((waves * weights).transpose(1, 2))
    total = overlapped((weights * weights)[None, :, None].expand(1, n_fft, frames))
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - start
    signal, total = signal[:, start:end], total[:, start:end]
    total = _refuse(total, total.abs().amin() < 1e-11, "window overlap add min: 1")
    signal = signal / total
    if end > whole:
        signal = functional.pad(signal, (0, end - whole))
    return signal if input.ndim == 3 else signal.squeeze(0)


_REDUCTIONS = ("none", "mean", "sum")


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The connectionist temporal classification loss."""
    lengths, ends = (_as_lengths(each) for each in (input_lengths, target_lengths))
    is_batch = log_probs.ndim == 3
    rows = log_probs if is_batch else log_probs.unsqueeze(1)
    losses: Tensor
    losses, _ = ctc(
        rows,
        targets if is_batch or targets.ndim != 1 else targets.unsqueeze(0),
        lengths,
        ends,
        blank,
        zero_infinity,
        log_probs.requires_grad and torch.is_grad_enabled(),
    )
    kind = _REDUCTIONS[reduction] if isinstance(reduction, int) else reduction
    if kind == "mean":
        return (losses / ends.clamp(min=1).to(losses)).mean()
    if kind == "sum":
        return losses.sum()
    return losses if is_batch else losses.squeeze(0)


def _fill_diagonal(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Fill the diagonal through views; torch reports the errors of other arguments."""
    if input.ndim < 2 or (input.ndim > 2 and len(set(input.shape)) > 1):
        return input.fill_diagonal_(fill_value, wrap)
    rows, columns = input.shape[0], input.shape[-1]
    starts = range(0, rows, columns + 1) if wrap and input.ndim == 2 and rows > columns else (0,)
    for start in starts:
        diagonal = input[start:].diagonal()
        while diagonal.ndim > 1:
            diagonal = diagonal.diagonal(0, 0, -1)
        diagonal.fill_(fill_value)
    return input


def _deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy with memory of its own; torch reports the error for results of autograd."""
    copied: Tensor | None = tensor.__deepcopy__(memo) if not tensor.is_leaf else memo.get(id(tensor))
    if copied is None:
        copied = memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return copied


def _moving(in_place: Callable[..., Any], view: Callable[..., Any]) -> Callable[..., Any]:
    """A change of a view's sizes or strides, which makes it another view: the object stays."""

    def moved(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        # What is recorded as it is, without functionalization, is recorded by the object.
        is_recorded = isinstance(tensor, FakeTensor) and get_proxy_mode() is not None
        if is_recorded or not isinstance(tensor, FakeTensor | FunctionalTensor) or not tensor._is_view():
            result: Tensor = in_place(tensor, *args, **options)
            return result
        other = view(tensor, *args, **options)
        before = dict(vars(tensor))
        vars(tensor).update(vars(other))
        vars(other).update(before)
        # Not torch.utils.swap_tensors, which wants that nobody holds them: what autograd has saved is the view before.
        torch._C._swap_tensor_impl(tensor, other)
        return tensor

    return moved


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Elements at increasing places, in the order of these; how many is data-dependent if the length is symbolic."""
    if input.ndim != 1 or r < 1:
        return torch.combinations(input, r, with_replacement)
    count: int | torch.SymInt = input.shape[0]
    if isinstance(count, int):
        choose = combinations_with_replacement if with_replacement else combinations
        places = torch.tensor(list(choose(range(count), r)), dtype=torch.int64, device=input.device)
        return input[places.reshape(-1, r)]
    places = torch.arange(count, device=input.device)  # type: ignore[call-overload]
    rows = torch.meshgrid([places] * r, indexing="ij")
    in_order = torch.ones_like(rows[0], dtype=torch.bool)
    for left, right in pairwise(rows):
        in_order = in_order & (left <= right if with_replacement else left < right)
    return input[in_order.nonzero()]


def _as_lengths(lengths: Tensor | Sequence[int]) -> Tensor:
    found = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths)
    return found.reshape(-1)


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """``torch.tensor`` that also takes conditions on sizes."""
    if not isinstance(data, torch.SymBool):
        return torch.tensor(data, dtype=dtype, **options)
    number = torch.scalar_tensor(torch.sym_ite(data, 1, 0), dtype=torch.int64, device=options.get("device"))
    return number.to(torch.bool if dtype is None else dtype)


def _linspace(start: Any, end: Any, steps: Any = None, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """``torch.linspace`` that also takes a symbol as the number of steps."""
    kind = dtype or torch.get_default_dtype()
    is_plain = all(isinstance(each, int | float) for each in (start, end)) and kind.is_floating_point
    if not isinstance(steps, torch.SymInt) or not is_plain or not options.keys() <= {"device"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    count: Any = steps
    numbers = torch.arange(count, **options)
    first, last, intervals = (
        torch.full((), each, dtype=kind, **options) for each in (start, end, torch.sym_max(count - 1, 1))
    )
    step = (last - first) / intervals
    is_near_start = numbers < torch.sym_max(count // 2, 1)
    return torch.where(is_near_start, first + step * numbers, last - step * (count - 1 - numbers))


# Their parameters have the libraries' names, since they may be passed by name.
_OPERATORS: dict[str, Callable[..., Any]] = {"transformers::grouped_mm_fallback": _experts}


def _subtracting(subtract: Any, add: Any) -> Callable[..., Any]:
    def subtracted(*operands: Any, **options: Any) -> Any:
        if isinstance(options.get("alpha"), torch.SymInt | torch.SymFloat):
            return add(*operands, **{**options, "alpha": -options["alpha"]})
        return subtract(*operands, **options)

    return subtracted


_SUBTRACTIONS: dict[Any, Any] = {
    torch.sub: torch.add, torch.subtract: torch.add, Tensor.sub: Tensor.add, Tensor.subtract: Tensor.add,
    Tensor.sub_: Tensor.add_, Tensor.subtract_: Tensor.add_,
}  # fmt: skip
_VIEWS = ("as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.tensor: _tensor,
    torch.linspace: _linspace,
    **{(method := getattr(Tensor, f"{name}_")): _moving(method, getattr(Tensor, name)) for name in _VIEWS},
    **{subtract: _subtracting(subtract, add) for subtract, add in _SUBTRACTIONS.items()},
    torch.combinations: _combinations,
    torch._grouped_mm: _grouped_mm,
    functional.grouped_mm: _grouped_mm,
    torch.cov: _cov,
    Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    Tensor.corrcoef: _corrcoef,
    torch.istft: _istft,
    Tensor.istft: _istft,
    torch.ctc_loss: _ctc_loss,
    functional.ctc_loss: _ctc_loss,
    functional.scaled_dot_product_attention: attention,
    Tensor.fill_diagonal_: _fill_diagonal,
    Tensor.__deepcopy__: _deep_copy,
}
