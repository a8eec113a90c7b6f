"""Every operator that torch itself tests, through native code, compared with eager and with float64."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from precast.autograd import aot_function
from precast.backend import CompilerFunction
from precast.native.decompositions.table import native_decompositions
from precast.partition import min_cut_rematerialization_partition
from tests.autograd.op_samples import _INPUT_TYPES, _UNINITIALIZED, OPS, _Run, _samples
from tests.autograd.op_samples import GAPS as AUTOGRAD_GAPS
from tests.native.operators.batches import Batch

GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("op_gaps.toml").read_text(encoding="utf-8"))
"""What is not as good as eager, and why. May only shrink: an entry that works fails its test."""
NAMES = [name for name in OPS if name not in AUTOGRAD_GAPS["operator"] and not name.startswith("empty")]

CASES_A_LIBRARY = 400
"""So many that headers are read rarely, so few that their graphs fit in memory."""

_DECOMPOSITIONS = native_decompositions()

# Operators that tell what they found, and where: of equals, eager tells any.
_TELL_PLACES = frozenset({"topk", "kthvalue", "median", "nanmedian", "sort"})

# Beyond twice eager's error: a few units in the last place of the largest element. A single number may be a sum in
# which most cancels: there, of the largest input. Eager's error in double precision nobody knows: it may be as large.
_SLACK = 8


@dataclass(frozen=True)
class Case:
    """One call of an operator."""

    name: str
    dtype: torch.dtype
    number: int


def cases(names: Sequence[str], dtypes: Sequence[torch.dtype], *, count: int) -> dict[Case, SampleInput]:
    return {
        Case(name, dtype, number): sample
        for name in names
        for dtype in dtypes
        for number, sample in enumerate(_samples(OPS[name], dtype, count=count))
    }


Compare = Callable[[Case, SampleInput, Callable[..., object]], None]
"""Raises if what was compiled for a call is not like eager."""


def failures(selected: dict[Case, SampleInput], folder: Path, compare: Compare | None = None) -> dict[Case, str]:
    """Which of the calls are not like eager, and how."""
    found, remaining = dict[Case, str](), iter(selected.items())
    while some := dict(islice(remaining, CASES_A_LIBRARY)):
        found |= _failures_of_one_library(some, folder, compare or like_eager)
    return found


def _failures_of_one_library(selected: dict[Case, SampleInput], folder: Path, compare: Compare) -> dict[Case, str]:
    batch, found, compiled = Batch(), dict[Case, str](), dict[Case, Callable[..., object]]()
    for case, sample in selected.items():
        compiled[case] = _compiled(case, sample, batch.recorder(case))
        _note(found, case, lambda case=case, sample=sample: _run(compiled[case], sample))
    found |= batch.build(folder, [case for case in selected if case not in found])
    for case, sample in selected.items():
        if case not in found:
            _note(found, case, lambda case=case, sample=sample: compare(case, sample, compiled[case]))
    return found


def operators_not_native(selected: dict[Case, SampleInput]) -> dict[str, set[str]]:
    """For each operator, which ATen operators its graphs leave to torch."""
    batch, found = Batch(draws_natively=True), dict[Case, str]()
    for case, sample in selected.items():
        compiled = _compiled(case, sample, batch.recorder(case))
        _note(found, case, lambda compiled=compiled, sample=sample: _run(compiled, sample))
    missing: dict[str, set[str]] = {case.name: set() for case in selected}
    for case in found:
        missing[case.name].add("cannot be compiled")
    for case, recording in batch.recordings.items():
        missing[case.name] |= recording.not_native()
    return missing


def _note(found: dict[Case, str], case: Case, action: Callable[[], object]) -> None:
    # Whatever goes wrong with one call must not hide what is wrong with the others.
    try:
        action()
    except Exception as problem:  # noqa: BLE001
        found[case] = f"{type(problem).__name__}: {problem}"


@dataclass(frozen=True)
class Outcome:
    """What a call gave: results and gradients."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def _compiled(case: Case, sample: SampleInput, compiler: CompilerFunction) -> Callable[..., object]:
    op, objects = OPS[case.name], _objects(sample)
    return aot_function(
        partial(op.get_op(), **objects) if objects else op.get_op(),
        compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_DECOMPOSITIONS,
    )


def _run(compiled: Callable[..., object], sample: SampleInput) -> Outcome:
    objects = _objects(sample)
    kwargs = {name: value for name, value in sample.kwargs.items() if name not in objects}
    plain = SampleInput(sample.input, args=sample.args, kwargs=kwargs)
    plain.output_process_fn_grad = sample.output_process_fn_grad
    return _outcome(_Run(compiled, plain))


def _objects(sample: SampleInput) -> dict[str, object]:
    """What is bound to the function before it is compiled."""
    return {name: value for name, value in sample.kwargs.items() if not isinstance(value, _INPUT_TYPES)}


def _outcome(run: _Run) -> Outcome:
    return Outcome(run.outputs, run.gradients())


def _in_float64(op: OpInfo, sample: SampleInput) -> Outcome | None:
    """The same call in double precision, if there is one."""

    def widened(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    call = (sample.input, sample.args, sample.kwargs)
    input_, args, kwargs = pytree.tree_map_only(torch.Tensor, widened, call)
    wide = SampleInput(input_, args=args, kwargs=kwargs)
    wide.output_process_fn_grad = sample.output_process_fn_grad
    try:
        return _outcome(_Run(op.get_op(), wide))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def like_eager(case: Case, sample: SampleInput, compiled: Callable[..., object]) -> None:
    """Values, gradients and layouts of one call are as good as eager's."""
    op = OPS[case.name]
    if op.name in _UNINITIALIZED:
        return
    ours = _run(compiled, sample)
    eager, exact = _outcome(_Run(op.get_op(), sample)), _in_float64(op, sample)
    largest = _largest_input(sample)
    for kind in ("outputs", "gradients"):
        mine, theirs = getattr(ours, kind), getattr(eager, kind)
        truth = getattr(exact, kind) if exact else [None] * len(theirs)
        if len(truth) != len(theirs):
            truth = [None] * len(theirs)
        assert len(mine) == len(theirs), f"{len(mine)} {kind} instead of {len(theirs)}"
        for number, values in enumerate(zip(mine, theirs, truth, strict=True)):
            if kind == "outputs" and number == 1 and case.name in _TELL_PLACES and not sample.kwargs.get("stable"):
                _check_places(sample.input.detach(), *(each.detach() for each in mine))
            else:
                _check(f"{kind}[{number}]", *values, largest, is_gradient=kind == "gradients")
    for number, (mine, theirs) in enumerate(zip(ours.outputs, eager.outputs, strict=True)):
        is_right = _layout(mine) == _layout(theirs) or case.name in GAPS["layout"]
        assert is_right, f"outputs[{number}]: lies {_layout(mine)} instead of {_layout(theirs)}"


def _layout(tensor: torch.Tensor) -> list[int]:
    """How far apart neighbours are, in each dimension that has any."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return []
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _check_places(values: torch.Tensor, found: torch.Tensor, places: torch.Tensor) -> None:
    """Along one of the dimensions, what was found is at these places, and no place is told twice."""
    assert places.shape == found.shape, f"places: {tuple(places.shape)} instead of {tuple(found.shape)}"
    assert any(_are_places(values, found, places, dim) for dim in range(max(values.dim(), 1))), "places are wrong"


def _are_places(values: torch.Tensor, found: torch.Tensor, places: torch.Tensor, dim: int) -> bool:
    if not values.dim():
        return bool((places == 0).all())
    if found.dim() < values.dim():
        found, places = found.unsqueeze(dim), places.unsqueeze(dim)
    if any(places.shape[other] != values.shape[other] for other in range(values.dim()) if other != dim):
        return False
    if bool((places < 0).any() | (places >= values.shape[dim]).any()):
        return False
    is_told_once = bool((places.sort(dim).values.diff(dim=dim) > 0).all())
    return is_told_once and torch.equal(values.gather(dim, places).nan_to_num(7), found.nan_to_num(7))


def _largest_input(sample: SampleInput) -> float:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    floats = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    values = [float(_dense(leaf).abs().nan_to_num(posinf=0).max()) for leaf in floats if leaf.numel()]
    return max(values, default=0.0)


def _check(
    what: str,
    ours: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    largest_input: float,
    *,
    is_gradient: bool,
    precision: torch.dtype | None = None,
) -> None:
    """`precision`: the coarsest type among operands of several; roundings are its own."""
    assert (ours is None) == (eager is None), f"{what}: one side has none"
    if ours is None or eager is None:
        return
    assert ours.shape == eager.shape, f"{what}: shape {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    assert ours.dtype == eager.dtype, f"{what}: {ours.dtype} instead of {eager.dtype}"
    ours, eager = _dense(ours), _dense(eager)
    if exact is None or not eager.is_floating_point() or exact.shape != eager.shape or exact.dtype != torch.float64:
        torch.testing.assert_close(ours, eager, equal_nan=True, msg=lambda text: f"{what}: {text}")
        return
    # Of double precision, eager itself is the truth, and what is left of a norm's gradient may be its rounding alone.
    is_rounding = is_gradient and (ours.dtype == torch.float64 or precision is not None)
    scale = largest_input if ours.numel() == 1 or is_rounding else 0.0
    precision = precision or ours.dtype
    if ours.numel() > 1:
        # Sums are those of single numbers at least.
        scale *= min(1.0, torch.finfo(torch.float32).eps / torch.finfo(precision).eps)
    _check_error(what, ours, eager, _dense(exact), scale, precision)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()


def _is_alike(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where both are finite, or the same of what is not."""
    return torch.where(exact.isfinite(), found.isfinite(), (found == exact) | (found.isnan() & exact.isnan()))


def _check_error(
    what: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, scale: float, precision: torch.dtype
) -> None:
    """Where eager is finite, at most about twice as far from the truth; elsewhere the same, or what is true."""
    eager = torch.where(_is_alike(ours, exact) & ~_is_alike(eager, exact), exact.to(eager.dtype), eager)
    finite = eager.isfinite()
    torch.testing.assert_close(
        ours[~finite], eager[~finite], equal_nan=True, msg=lambda text: f"{what}, where not finite: {text}"
    )
    mine, theirs, truth = (each[finite].double() for each in (ours, eager, exact))
    known = truth.isfinite()
    if not bool(known.any()):
        return
    mine, theirs, truth = mine[known], theirs[known], truth[known]
    scale = max(scale, float(truth.abs().max()))
    slack = _SLACK * (2 if ours.dtype == torch.float64 else 1)
    allowed = 2 * (theirs - truth).abs().max() + slack * torch.finfo(precision).eps * scale
    error = (mine - truth).abs()
    assert bool((error <= allowed + torch.finfo(ours.dtype).tiny).all()), (
        f"{what}: off by {float(error.max()):.3g}, eager by {float((theirs - truth).abs().max()):.3g}, "
        f"where numbers are up to {float(truth.abs().max()):.3g}"
    )
