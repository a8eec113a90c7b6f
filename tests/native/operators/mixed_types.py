"""Operators with operands of other types, each in turn: what eager refuses is refused, the rest is as good as eager.

A call that eager refuses must be refused while it is traced, or by native code when it is called: with an error that
whoever catches eager's also catches.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from precast.autograd import aot_function
from precast.backend import CompilerFunction
from precast.partition import min_cut_rematerialization_partition
from tests.autograd.op_samples import _UNINITIALIZED, OPS, _Run, _samples
from tests.native.operators.batches import Batch
from tests.native.operators.op_samples import (
    _DECOMPOSITIONS,
    _TELL_PLACES,
    CASES_A_LIBRARY,
    NAMES,
    _check,
    _check_places,
    _in_float64,
    _largest_input,
    _objects,
    _run,
)

GAPS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("type_gaps.toml").read_text(encoding="utf-8"))
"""Calls that eager makes and we refuse, and why. Never a wrong answer."""

QUICK = NAMES[5::60]
_OPERANDS = 4
# By up to 1e-6, in double precision too (lowering/test_special.py); a slope of 1/6 is a single number there.
_EAGER_IS_OFF = frozenset(
    {"nn.functional.hardsigmoid", *(f"special.bessel_{each}" for each in ("j0", "j1", "y0", "y1"))}
)


@dataclass(frozen=True)
class Case:
    """A sample of an operator with operands `changed` to `dtype`."""

    name: str
    is_in_place: bool
    number: int
    changed: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        operands = ", ".join(map(str, self.changed))
        return f"{self.name}{'_' * self.is_in_place} sample {self.number}, operands {operands} {self.dtype}"


@dataclass
class Findings:
    """What is wrong, and what is refused though eager makes the call."""

    wrong: dict[Case, str] = field(default_factory=dict)
    refused: dict[Case, str] = field(default_factory=dict)


def cases(names: Sequence[str], *, count: int) -> Iterator[tuple[Case, SampleInput]]:
    for name in names:
        for number, sample in enumerate(_samples(OPS[name], torch.float32, count=count)):
            for is_in_place in (False, True)[: 2 if OPS[name].inplace_variant else 1]:
                for changed, dtype, changed_sample in _changed(sample, detached=is_in_place):
                    yield Case(name, is_in_place, number, changed, dtype), changed_sample


def _changed(sample: SampleInput, *, detached: bool) -> Iterator[tuple[tuple[int, ...], torch.dtype, SampleInput]]:
    leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    strided = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    floats = tuple(number for number, leaf in enumerate(strided) if leaf.dtype is torch.float32)
    choices = [((number,), dtype) for number, leaf in enumerate(strided[:_OPERANDS]) for dtype in _others(leaf.dtype)]
    choices += [(floats, dtype) for dtype in _others(torch.float32)] if len(floats) > 1 else []
    for changed, dtype in choices:
        exchanged = {id(strided[number]): dtype for number in changed}
        made = [_of_type(leaf, exchanged.get(id(leaf)), detached=detached) for leaf in leaves]
        input_, args, kwargs = pytree.tree_unflatten(made, tree)
        other = SampleInput(input_, args=args, kwargs=kwargs)
        other.output_process_fn_grad = sample.output_process_fn_grad
        yield changed, dtype, other


def _others(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    if dtype.is_floating_point:
        return torch.float64, torch.bfloat16, torch.int64, torch.bool
    if dtype.is_complex:
        return (torch.complex128,)
    return (torch.int64, torch.uint8) if dtype is torch.bool else (torch.int32, torch.float32, torch.uint8, torch.bool)


def _of_type(leaf: object, dtype: torch.dtype | None, *, detached: bool) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = leaf.detach() if dtype is None else leaf.detach().to(dtype)
    can_require = made.is_floating_point() or made.is_complex()
    return made.requires_grad_(leaf.requires_grad and can_require and not detached)


def findings(selected: Iterator[tuple[Case, SampleInput]], folder: Path) -> Findings:
    found = Findings()
    while some := dict(islice(selected, CASES_A_LIBRARY)):
        _find_in_one_library(some, folder, found)
    return found


def _find_in_one_library(selected: dict[Case, SampleInput], folder: Path, found: Findings) -> None:
    batch, compiled, refusals = Batch(), dict[Case, Callable[..., object]](), dict[Case, Exception | None]()
    for case, sample in selected.items():
        refusals[case] = _error_of(partial(_differentiated, _operator(case), sample))
        compiled[case] = _compiled(case, sample, batch.recorder(case))
        error = _error_of(partial(_run, compiled[case], sample))
        if batch.recordings[case].graphs:
            continue
        # It was refused while it was traced.
        if refusals[case] is None:
            found.refused[case] = _told(error)
        elif not _is_caught_with(error, refusals[case]) and case.name not in GAPS["refused"]:
            found.wrong[case] = f"{_told(error)} instead of {_told(refusals[case])}"
    traced = [case for case in selected if batch.recordings[case].graphs]
    not_built = batch.build(folder, traced)
    found.wrong |= {case: text for case, text in not_built.items() if isinstance(case, Case) and refusals[case] is None}
    for case in traced:
        if case not in not_built:
            _compare(case, selected[case], compiled[case], refusals[case], found)


def _compare(
    case: Case, sample: SampleInput, compiled: Callable[..., object], refusal: Exception | None, found: Findings
) -> None:
    if refusal is None:
        error = _error_of(partial(_assert_like_eager, case, sample, compiled))
        if error is not None:
            found.wrong[case] = _told(error)
        return
    error = _error_of(partial(_run, compiled, sample))
    if not _is_caught_with(error, refusal):
        found.wrong[case] = f"{_told(error)} instead of {_told(refusal)}"


def _compiled(case: Case, sample: SampleInput, compiler: CompilerFunction) -> Callable[..., object]:
    objects = _objects(sample)
    return aot_function(
        partial(_operator(case), **objects) if objects else _operator(case),
        compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_DECOMPOSITIONS,
    )


def _operator(case: Case) -> Callable[..., object]:
    found: Callable[..., object] = OPS[case.name].inplace_variant if case.is_in_place else OPS[case.name].get_op()
    return found


def _differentiated(operator: Callable[..., object], sample: SampleInput) -> None:
    _Run(operator, sample).gradients()


def _assert_like_eager(case: Case, sample: SampleInput, compiled: Callable[..., object]) -> None:
    if OPS[case.name].name in _UNINITIALIZED:
        return
    ours, run = _run(compiled, sample), _Run(_operator(case), sample)
    largest, exact, precision = _largest_input(sample), _in_float64(OPS[case.name], sample), _precision(sample)
    for kind, theirs in (("outputs", run.outputs), ("gradients", run.gradients())):
        mine = getattr(ours, kind)
        truth = getattr(exact, kind) if exact and len(getattr(exact, kind)) == len(theirs) else [None] * len(theirs)
        assert len(mine) == len(theirs), f"{len(mine)} {kind} instead of {len(theirs)}"
        for number, (our, their) in enumerate(zip(mine, theirs, strict=True)):
            if kind == "outputs" and number == 1 and case.name in _TELL_PLACES:
                _check_places(sample.input.detach(), *(each.detach() for each in mine))
                continue
            if case.name == "argsort" and not sample.kwargs.get("stable"):
                # Equal elements may be told in any order.
                dim = sample.kwargs.get("dim", -1)
                our, their = (torch.take_along_dim(sample.input.detach(), places, dim) for places in (our, their))
            if case.name in _EAGER_IS_OFF and their is not None and their.dtype is torch.float64:
                torch.testing.assert_close(our, their, rtol=2e-6, atol=1e-6, equal_nan=True)
                continue
            is_gradient = kind == "gradients"
            what = f"{kind}[{number}]"
            _check(what, our, their, truth[number], largest, is_gradient=is_gradient, precision=precision)


def _precision(sample: SampleInput) -> torch.dtype | None:
    """The coarsest type of numbers that are computed with."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    types = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return max(types, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def _error_of(action: Callable[[], object]) -> Exception | None:
    # Whatever goes wrong with one call must not hide what is wrong with the others.
    try:
        action()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _is_caught_with(error: Exception | None, eagers: Exception | None) -> bool:
    return error is not None and isinstance(error, _kind(eagers))


def _kind(error: Exception | None) -> type[Exception]:
    """The kind of which eager's errors are: that a kernel is missing is said in several ways."""
    return RuntimeError if isinstance(error, RuntimeError) else type(error) if error else Exception


def _told(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {error}".splitlines()[0][:200]
