"""Whether what was observed of a compiled program is what eager does.

Numbers are compared with those of float64. How far they may be off is found by trial: float64 is run again with noise
of the size of one rounding after every step; where that does not explain an error, with such noise on what the program
begins with, too, since sums of many numbers that cancel are off by roundings of those.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.errors import PrecastError, VerifierError
from tests.fuzz.observe import Observation, tensors_of
from tests.fuzz.programs import Program

Observe = Callable[[Callable[..., Any], torch.nn.Module, Sequence[torch.Tensor]], Observation]

SAMPLES = 3
ROUNDINGS = 64
"""How many roundings of the largest number a result may be off in any case."""
AMPLIFIED = 12
"""How many times what noise does a result may be off."""
VAGUE = 0.05
"""Results that noise changes by more than this part of them are not judged."""


@dataclass(frozen=True)
class Verdict:
    """`kind` is "right", "refused" (by us alone, with a reason), "unjudged", or says what is wrong."""

    kind: str
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("right", "refused", "unjudged")


@dataclass(frozen=True)
class Expected:
    """What eager does, what float64 would, and by how much each number may be off."""

    eager: Observation
    exact: Observation | None
    noisy: tuple[Observation, ...]
    precision: float
    with_noisy_operands: Callable[[], tuple[Observation, ...]] = tuple
    """Runs in which also inputs and state are shaken."""


class Noise:
    """Watches a program: first which type each result has, then changes the results by a rounding of that type."""

    def __init__(self) -> None:
        self.precisions: dict[str, float] = {}
        self.generator = torch.Generator()

    def learn(self, names: str, value: Any) -> Any:
        tensors = [value] if isinstance(value, torch.Tensor) else value
        kinds = [each.dtype for each in tensors if each.is_floating_point()]
        self.precisions[names] = max((torch.finfo(each).eps for each in kinds), default=0.0)
        return value

    def shake(self, names: str, value: Any) -> Any:
        for each in [value] if isinstance(value, torch.Tensor) else value:
            # What shares memory was shaken already, and must go on sharing it.
            if each.is_floating_point() and each.numel() and each._base is None and each.is_contiguous():
                size = self.precisions.get(names, 0.0) * each.detach().abs().max()
                noise = torch.rand(each.shape, generator=self.generator, dtype=each.dtype) * 2 - 1
                each.data.add_(noise * size)
        return value

    def shake_operand(self, dtype: torch.dtype, value: torch.Tensor) -> None:
        """Change an operand, which has this type in eager, by a rounding of each of its elements."""
        if value.is_floating_point() and 0 not in value.stride():
            noise = torch.rand(value.shape, generator=self.generator, dtype=value.dtype) * 2 - 1
            value.data.mul_(1 + noise * torch.finfo(dtype).eps)


def expected(program: Program, seed: int, observe: Observe) -> Expected:
    """Run the program eagerly, in float64, and in float64 with noise."""
    noise = Noise()
    eager = run(program, seed, observe)
    if eager.error is not None:
        return Expected(eager, None, (), 0.0)
    # Once more, since watching must not change what is observed.
    run(program, seed, observe, noise.learn)
    exact = run(program, seed, observe, is_exact=True)
    if exact.error is not None:
        return Expected(eager, None, (), 0.0)
    noisy = []
    for number in range(SAMPLES):
        noise.generator.manual_seed(number)
        noisy.append(run(program, seed, observe, noise.shake, is_exact=True))

    @functools.cache
    def with_noisy_operands() -> tuple[Observation, ...]:
        noise.generator.manual_seed(SAMPLES)
        runs = [run(program, seed, observe, noise.shake, is_exact=True, shake=noise) for _ in range(SAMPLES)]
        # A share of a whole may have become more than that.
        return tuple(each for each in runs if each.error is None)

    floats = [each.dtype for each in eager.tensors if each is not None and each.is_floating_point()]
    coarsest = max((torch.finfo(each).eps for each in floats), default=0.0)
    precision = max([coarsest, *noise.precisions.values()])
    return Expected(eager, exact, tuple(noisy), precision, with_noisy_operands)


def run(
    program: Program,
    seed: int,
    observe: Observe,
    watch: Callable[[str, Any], Any] | None = None,
    is_exact: bool = False,
    shake: Noise | None = None,
) -> Observation:
    module, inputs = program.made(seed, watch=watch, is_exact=is_exact)
    if shake is not None:
        plain, given = program.made(seed)
        for coarse, fine in zip([*tensors_of(plain), *given], [*tensors_of(module), *inputs], strict=True):
            shake.shake_operand(coarse.dtype, fine)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if is_exact else usual)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return observe(module, module, inputs)
    finally:
        torch.set_default_dtype(usual)


def judge(mine: Observation, wanted: Expected, *, sees_memory: bool = True) -> Verdict:
    """Compare; `sees_memory` is off where nobody can see strides and shared memory."""
    eager = wanted.eager
    if eager.error is not None:
        if first_line(eager.error).startswith("Function ") and "returned an invalid gradient" in str(eager.error):
            # A mistake in torch's own formula, which autograd noticed: the program is one that may be differentiated.
            return Verdict("unjudged")
        detail = f"{type(eager.error).__name__}: {first_line(eager.error)}"
        return Verdict("right") if mine.error is not None else Verdict("not refused", f"eager raises {detail}")
    if mine.error is not None:
        detail = f"{type(mine.error).__name__}: {first_line(mine.error)}"
        # A rule of ours that a pass of ours broke is told in the same way as what users may not do.
        is_refusal = isinstance(mine.error, PrecastError) and not isinstance(mine.error, VerifierError)
        return Verdict("refused" if is_refusal else f"raised {type(mine.error).__name__}", detail)
    if sees_memory:
        for what in ("layouts", "aliases"):
            for number, pair in enumerate(zip(getattr(mine, what), getattr(eager, what), strict=True)):
                is_packed = what == "layouts" and mine.dense[number] and _is_part(eager, number)
                if pair[0] != pair[1] and not (is_packed and _with_gaps(pair[0]) == _with_gaps(pair[1])):
                    return Verdict(f"wrong {what}", f"number {number}: {pair[0]} where eager has {pair[1]}")
    return _judge_numbers(mine, wanted)


def _with_gaps(layout: tuple[Any, ...]) -> tuple[Any, ...]:
    """All of a layout that is the same whether or not there are gaps between elements."""
    *facts, strides = layout
    return (*facts, [stride == 0 for stride in strides])


def _is_part(eager: Observation, number: int) -> bool:
    """Whether an output is a part of a computed tensor, which is returned without the rest of that: packed."""
    if eager.dense[number] or not eager.aliases[number]:
        return False
    shared = eager.aliases[number][1]
    first = len(eager.results) - len(eager.layouts)
    return shared is None or (shared >= first and _is_part(eager, shared - first))


def _judge_numbers(mine: Observation, wanted: Expected) -> Verdict:
    vague = wanted.exact is None
    for kind in ("results", "gradients"):
        found, right = getattr(mine, kind), getattr(wanted.eager, kind)
        if len(found) != len(right):
            return Verdict(f"wrong {kind}", f"{len(found)} where eager has {len(right)}")
        for number, (each, eager) in enumerate(zip(found, right, strict=True)):
            if each is None or eager is None or (each.dtype, each.shape) != (eager.dtype, eager.shape):
                if each is not eager:
                    return Verdict(f"wrong {kind}", f"number {number}: {told(each)} where eager has {told(eager)}")
                continue
            if not each.numel():
                continue
            exact = None if wanted.exact is None else getattr(wanted.exact, kind)[number]
            if exact is None:
                continue
            noisy = [getattr(run, kind)[number] for run in wanted.noisy]
            verdict = _compare(each, eager, exact, noisy, wanted.precision)
            if verdict.is_failure and each.is_floating_point():
                noisy += [getattr(run, kind)[number] for run in wanted.with_noisy_operands()]
                verdict = _compare(each, eager, exact, noisy, wanted.precision)
            if verdict.is_failure:
                return Verdict(f"wrong {kind}", f"number {number}, {told(each)}: {verdict.detail}")
            vague |= verdict.kind == "unjudged"
    return Verdict("unjudged" if vague else "right")


def _compare(mine: Any, eager: Any, exact: Any, noisy: Sequence[Any], precision: float) -> Verdict:
    if not eager.is_floating_point():
        if torch.equal(mine, eager):
            return Verdict("right")
        # Noise that reaches whole numbers says that others would be as right.
        same = all(each is not None and torch.equal(each, exact) for each in noisy)
        return Verdict("wrong" if same else "unjudged", f"{int((mine != eager).sum())} elements differ from eager's")
    mine, eager, exact = mine.double(), eager.double(), exact.double()
    known = exact.isfinite() & eager.isfinite()
    for each in noisy:
        if each is None:
            return Verdict("unjudged")
        known &= each.isfinite()
    settled = ~known & (eager.isnan() == exact.isnan()) & (eager.isfinite() == exact.isfinite())
    if not torch.equal(mine[settled].isfinite(), eager[settled].isfinite()):
        return Verdict("wrong", "finite where eager is not, or the other way round")
    if not known.any():
        return Verdict("right")
    mine, eager, exact = mine[known], eager[known], exact[known]
    size = exact.abs().max().item()
    shaken = max((each.double()[known] - exact).abs().max().item() for each in noisy)
    allowed = AMPLIFIED * shaken + 4 * (eager - exact).abs().max().item() + ROUNDINGS * precision * size
    allowed += 1e-30
    error = (mine - exact).abs().max().item()
    if error <= allowed:
        return Verdict("right")
    if math.isfinite(error) and allowed > VAGUE * size:
        return Verdict("unjudged")
    return Verdict("wrong", f"off by {error:.2e} of at most {size:.2e}, where eager is off by "
                   f"{(eager - exact).abs().max().item():.2e} and noise by {shaken:.2e}")  # fmt: skip


def told(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
