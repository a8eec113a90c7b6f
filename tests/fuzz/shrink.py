"""A failing program → a small one that fails in the same way.

Steps are left out, what they made becomes an input, results are dropped, sizes and numbers become small: each change
that still fails is kept, until none is left that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tests.fuzz.generate import pruned
from tests.fuzz.programs import INTEGERS, Code, Leaf, Name, Program, Step, names_in, renamed

MOST_TRIALS = 300


def shrink(program: Program, fails: Callable[[Program], bool], *, trials: int = MOST_TRIALS) -> Program:
    """The smallest program found; `fails` says whether one fails as the first does."""
    seen = {repr(program)}
    while trials > 0:
        for candidate in candidates(program):
            if repr(candidate) in seen:
                continue
            seen.add(repr(candidate))
            trials -= 1
            if fails(candidate):
                program = candidate
                break
            if trials <= 0:
                break
        else:
            break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, the much smaller ones first."""
    if program.other_size is not None:
        yield replace(program, other_size=None)
    yield from _fewer_outputs(program)
    yield from _cut(program)
    yield from _without_a_step(program)
    yield from _plainer_leaves(program)
    yield from _plainer_arguments(program)
    yield from _smaller_sizes(program)


def _fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield pruned(replace(program, outputs=(output,)))
        for output in program.outputs:
            yield pruned(replace(program, outputs=tuple(each for each in program.outputs if each != output)))
    # An earlier value in place of a result.
    for number, output in enumerate(program.outputs):
        maker = next((step for step in program.steps if output in step.results), None)
        for name in dict.fromkeys(maker.reads if maker else ()):
            if not name.startswith("self."):
                outputs = (*program.outputs[:number], name, *program.outputs[number + 1 :])
                yield pruned(replace(program, outputs=tuple(dict.fromkeys(outputs))))


def _cut(program: Program) -> Iterator[Program]:
    """What a step makes as inputs instead; late steps first, which cuts off most."""
    values = _values(program)
    for number in reversed(range(len(program.steps))):
        step = program.steps[number]
        made = [values.get(name) for name in step.results]
        if step.results and all(value is not None and value.numel() for value in made):
            leaves = [
                _leaf_like(name, value) for name, value in zip(step.results, made, strict=True) if value is not None
            ]
            steps = (*program.steps[:number], *program.steps[number + 1 :])
            yield pruned(_renamed(replace(program, leaves=(*program.leaves, *leaves), steps=steps)))


def _without_a_step(program: Program) -> Iterator[Program]:
    """What read its results reads one of its operands."""
    for number, step in enumerate(program.steps):
        rest = (*program.steps[:number], *program.steps[number + 1 :])
        if not step.results:
            yield pruned(replace(program, steps=rest))
            continue
        for name in dict.fromkeys(step.reads):
            names = dict.fromkeys(step.results, name)
            steps = tuple(_with_names(each, names) for each in rest)
            outputs = tuple(dict.fromkeys(names.get(each, each) for each in program.outputs))
            yield pruned(replace(program, steps=steps, outputs=outputs))


def _plainer_leaves(program: Program) -> Iterator[Program]:
    for number, leaf in enumerate(program.leaves):
        changes: list[dict[str, Any]] = [{"layout": "contiguous"}, {"scale": 1.0}, {"grows": False}]
        if leaf.dtype not in INTEGERS:
            changes.append({"dtype": "float32"})
        for change in changes:
            other = replace(leaf, **change)
            if other != leaf:
                yield replace(program, leaves=(*program.leaves[:number], other, *program.leaves[number + 1 :]))


def _plainer_arguments(program: Program) -> Iterator[Program]:
    for number, step in enumerate(program.steps):
        for other in _plainer_steps(step):
            yield pruned(replace(program, steps=(*program.steps[:number], other, *program.steps[number + 1 :])))


def _plainer_steps(step: Step) -> Iterator[Step]:
    for place in range(len(step.keywords)):
        yield replace(step, keywords=(*step.keywords[:place], *step.keywords[place + 1 :]))
    for place, operand in enumerate(step.operands):
        for other in _plainer(operand) if place else ():
            yield replace(step, operands=(*step.operands[:place], other, *step.operands[place + 1 :]))


def _plainer(argument: Any) -> Iterator[Any]:
    match argument:
        case Name() if not argument.text.startswith("v"):
            yield None
        case bool() | None | str() | Code():
            return
        case int() | float():
            yield from (each for each in (0, 1, 2) if abs(each) < abs(argument))
        case slice(start=start, stop=stop, step=step):
            for other in (slice(start, stop), slice(None, stop, step), slice(start, None, step)):
                if (other.start, other.stop, other.step) != (start, stop, step):
                    yield other


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """A size everywhere it occurs, then sizes of single tensors."""
    sizes = sorted({size for leaf in program.leaves for size in leaf.shape if size > 1}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < smaller < size:
                yield _with_size(program, size, smaller)
    for number, leaf in enumerate(program.leaves):
        for place, size in enumerate(leaf.shape):
            for smaller in dict.fromkeys((1, size // 2)):
                if 0 < smaller < size:
                    other = replace(leaf, shape=(*leaf.shape[:place], smaller, *leaf.shape[place + 1 :]))
                    yield replace(program, leaves=(*program.leaves[:number], other, *program.leaves[number + 1 :]))


def _with_size(program: Program, size: int, smaller: int) -> Program:
    def change(argument: Any) -> Any:
        if isinstance(argument, tuple | list):
            return type(argument)(map(change, argument))
        return smaller if type(argument) is int and argument == size else argument

    leaves = tuple(replace(leaf, shape=change(leaf.shape)) for leaf in program.leaves)
    steps = tuple(
        replace(
            step, operands=change(step.operands), keywords=tuple((name, change(value)) for name, value in step.keywords)
        )
        for step in program.steps
    )
    return replace(program, leaves=leaves, steps=steps)


def _values(program: Program) -> dict[str, torch.Tensor]:
    """What the steps make, as far as eager comes."""
    values: dict[str, torch.Tensor] = {}

    def watch(names: str, value: Any) -> Any:
        tensors = [value] if isinstance(value, torch.Tensor) else value
        values.update(zip(names.split(", "), tensors, strict=True))
        return value

    try:
        module, inputs = program.made(0, watch=watch)
        with torch.no_grad():
            module(*inputs)
    except (RuntimeError, IndexError, TypeError, ValueError):
        pass  # What came before it is what we asked for.
    return values


def _leaf_like(name: str, value: torch.Tensor) -> Leaf:
    dtype = str(value.dtype).removeprefix("torch.")
    high = int(value.max()) + 1 if dtype in INTEGERS else 4
    is_last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
    layout: Any = "channels_last" if is_last else "contiguous"
    return Leaf(name, "input", tuple(value.shape), dtype, high=high, layout=layout)


def _renamed(program: Program) -> Program:
    """Inputs that were results have names that say so."""
    names = {leaf.name: f"y{leaf.name[1:]}" for leaf in program.leaves if leaf.name.startswith("v")}
    leaves = tuple(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in program.leaves)
    steps = tuple(_with_names(step, names) for step in program.steps)
    return replace(
        program, leaves=leaves, steps=steps, outputs=tuple(names.get(each, each) for each in program.outputs)
    )


def _with_names(step: Step, names: dict[str, str]) -> Step:
    if not set(names_in((step.operands, tuple(value for _, value in step.keywords)))) & names.keys():
        return step
    keywords = tuple((key, renamed(value, names)) for key, value in step.keywords)
    return replace(step, operands=renamed(step.operands, names), keywords=keywords)
