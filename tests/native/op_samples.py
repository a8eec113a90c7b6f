"""Every operator that torch itself tests, through native code, compared with eager and with float64."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from precast.autograd import aot_function
from precast.compilers.native_decompositions import native_decompositions
from precast.partition import min_cut_rematerialization_partition
from tests.autograd.op_samples import _INPUT_TYPES, _UNINITIALIZED, OPS, _Run, _samples
from tests.autograd.op_samples import GAPS as AUTOGRAD_GAPS
from tests.native.batches import Batch, Compiler

GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("op_gaps.toml").read_text(encoding="utf-8"))
"""What is not as good as eager, and why. May only shrink: an entry that works fails its test."""
NAMES = [name for name in OPS if name not in AUTOGRAD_GAPS["operator"] and not name.startswith("empty")]

# Operators that tell where they found something: of equals, eager tells any.
_TELL_PLACES = frozenset({"topk", "kthvalue", "median", "nanmedian", "masked.median"})
# The same, where there are so few different values that there must be equals.
_TELL_PLACES_OF_FEW = frozenset({"sort"})

# Beyond twice eager's error: a few units in the last place of the largest element. A single number may be a sum in
# which most cancels: there, of the largest input.
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


def failures(selected: dict[Case, SampleInput], folder: Path) -> dict[Case, str]:
    """Which of the calls are not like eager, and how."""
    batch, found = Batch(), dict[Case, str]()
    for case, sample in selected.items():
        _note(found, case, lambda case=case, sample=sample: _run(case, sample, batch.recorder(case)))
    found |= {case: str(error) for case, error in batch.build(folder).items()}
    for case, sample in selected.items():
        if case not in found:
            _note(found, case, lambda case=case, sample=sample: _compare(case, sample, batch))
    return found


def operators_not_native(selected: dict[Case, SampleInput]) -> dict[str, set[str]]:
    """For each operator, which ATen operators its graphs leave to torch."""
    batch, found = Batch(draws_natively=True, is_built=False), dict[Case, str]()
    for case, sample in selected.items():
        _note(found, case, lambda case=case, sample=sample: _run(case, sample, batch.recorder(case)))
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


def _run(case: Case, sample: SampleInput, compiler: Compiler) -> Outcome:
    op = OPS[case.name]
    objects = {name: value for name, value in sample.kwargs.items() if not isinstance(value, _INPUT_TYPES)}
    function = partial(op.get_op(), **objects) if objects else op.get_op()
    kwargs = {name: value for name, value in sample.kwargs.items() if name not in objects}
    plain = SampleInput(sample.input, args=sample.args, kwargs=kwargs)
    plain.output_process_fn_grad = sample.output_process_fn_grad
    compiled = aot_function(
        function,
        compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=native_decompositions(),
    )
    return _outcome(_Run(compiled, plain))


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


def _compare(case: Case, sample: SampleInput, batch: Batch) -> None:
    op = OPS[case.name]
    if op.name in _UNINITIALIZED:
        return
    ours = _run(case, sample, batch.compiler(case))
    eager, exact = _outcome(_Run(op.get_op(), sample)), _in_float64(op, sample)
    largest = _largest_input(sample)
    for kind in ("outputs", "gradients"):
        mine, theirs = getattr(ours, kind), getattr(eager, kind)
        truth = getattr(exact, kind) if exact else [None] * len(theirs)
        if len(truth) != len(theirs):
            truth = [None] * len(theirs)
        assert len(mine) == len(theirs), f"{len(mine)} {kind} instead of {len(theirs)}"
        for number, values in enumerate(zip(mine, theirs, truth, strict=True)):
            if not (kind == "outputs" and number == 1 and _may_tell_another_place(case)):
                _check(f"{kind}[{number}]", *values, largest)


def _may_tell_another_place(case: Case) -> bool:
    return case.name in _TELL_PLACES or (case.name in _TELL_PLACES_OF_FEW and case.dtype.itemsize <= 2)


def _largest_input(sample: SampleInput) -> float:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    floats = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    values = [float(_dense(leaf).abs().nan_to_num(posinf=0).max()) for leaf in floats if leaf.numel()]
    return max(values, default=0.0)


def _check(
    what: str, ours: torch.Tensor | None, eager: torch.Tensor | None, exact: torch.Tensor | None, largest_input: float
) -> None:
    assert (ours is None) == (eager is None), f"{what}: one side has none"
    if ours is None or eager is None:
        return
    assert ours.shape == eager.shape, f"{what}: shape {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    assert ours.dtype == eager.dtype, f"{what}: {ours.dtype} instead of {eager.dtype}"
    ours, eager = _dense(ours), _dense(eager)
    if exact is None or not eager.is_floating_point() or exact.shape != eager.shape or exact.dtype != torch.float64:
        torch.testing.assert_close(ours, eager, equal_nan=True, msg=lambda text: f"{what}: {text}")
        return
    # Of double precision, eager itself is the truth, and what is left of its sums where most cancels is rounding.
    scale = largest_input if ours.numel() == 1 or ours.dtype == torch.float64 else 0.0
    _check_error(what, ours, eager, _dense(exact), scale)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()


def _check_error(what: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, scale: float) -> None:
    """Where eager is finite, at most about twice as far from the truth; elsewhere the same."""
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
    allowed = 2 * (theirs - truth).abs().max() + _SLACK * torch.finfo(ours.dtype).eps * scale
    error = (mine - truth).abs()
    assert bool((error <= allowed + torch.finfo(ours.dtype).tiny).all()), (
        f"{what}: off by {float(error.max()):.3g}, eager by {float((theirs - truth).abs().max()):.3g}, "
        f"where numbers are up to {float(truth.abs().max()):.3g}"
    )
