"""A seed → a program that looks like a model."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from typing import Any

import torch

from tests.fuzz import idioms, layers, parts, pointwise
from tests.fuzz.drafts import FAMILIES, SIZES, Draft, NotTakenError
from tests.fuzz.programs import INTEGERS, Code, Leaf, Program, Step, renamed

# Importing them registers their families.
SOURCES = (idioms, layers, parts, pointwise)
TYPES = ("float32",) * 12 + ("float64", "bfloat16", "float16", "bfloat16")
LAYOUTS = ("contiguous",) * 6 + ("channels_last", "transposed", "sliced", "expanded")
SPOILED = 0.08
"""How many programs are changed at one place, whether or not eager takes them then."""

DOUBLED = 0.06
"""How many programs do all that they do to other tensors, too, so that equal loops come about."""


def random_program(seed: int) -> Program:
    choose = random.Random(seed)
    draft = Draft(choose, dtype=choose.choice(TYPES))
    batch = choose.choice((1, 2, 2, 3, 3, 5)) if choose.random() > 0.02 else 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        for _ in range(choose.choice((1, 1, 2))):
            _add_input(draft, batch)
        _add_steps(draft, choose.randint(2, 7))
    program = _finished(draft, batch)
    program = doubled(program) if choose.random() < DOUBLED else program
    return spoiled(program, choose) if choose.random() < SPOILED else program


def _add_input(draft: Draft, batch: int) -> None:
    choose = draft.choose
    sizes = [choose.choice(SIZES) for _ in range(choose.choice((1, 2, 2, 2, 3, 3)))]
    sizes = sizes if choose.random() > 0.03 else [*sizes[:-1], 0]
    while batch * torch.Size(sizes).numel() > 3000:
        sizes[sizes.index(max(sizes))] //= 2
    layout: Any = choose.choice(LAYOUTS)
    if layout == "channels_last" and len(sizes) < 3:
        layout = "contiguous"
    draft.leaf(batch, *sizes, kind="input", layout=layout, grows=layout != "expanded")


def _add_steps(draft: Draft, count: int) -> None:
    families, weights = list(FAMILIES), list(FAMILIES.values())
    taken = 0
    for _ in range(10 * count):
        before = len(draft.leaves), len(draft.steps), dict(draft.values)
        try:
            draft.choose.choices(families, weights)[0](draft, draft.earlier())
            taken += 1
        except NotTakenError:
            del draft.leaves[before[0] :], draft.steps[before[1] :]
            draft.values = before[2]
        if taken == count:
            return


def _finished(draft: Draft, batch: int) -> Program:
    """The values that nobody reads are returned, and now and then others; what nothing needs is left out."""
    made = [name for step in draft.steps for name in step.results]
    read = {name for step in draft.steps for name in step.reads}
    outputs = [name for name in made if name not in read][-4:] or [draft.leaves[0].reference]
    inner = [name for name in (*made, *draft.values) if name not in outputs]
    if inner and draft.maybe(0.3):
        outputs.insert(draft.one_of(0, len(outputs)), draft.choose.choice(inner))
    other_size = draft.one_of(1, 4, 6, 7) if batch > 1 and draft.maybe(0.25) else None
    return pruned(Program(tuple(draft.leaves), tuple(draft.steps), tuple(outputs), other_size))


def pruned(program: Program) -> Program:
    """Without steps and leaves that nothing needs; what changes a value in place is needed where that value is."""
    needed, kept = set(program.outputs), list[Step]()
    for step in reversed(program.steps):
        if not step.results or needed.intersection(step.results) or step.function.endswith("_"):
            needed.update(step.reads)
            kept.append(step)
    leaves = tuple(each for each in program.leaves if each.reference in needed)
    return replace(program, leaves=leaves, steps=tuple(reversed(kept)))


def doubled(program: Program) -> Program:
    """The program once more beside itself, with tensors of its own."""
    made = [name for step in program.steps for name in step.results]
    others = {name: f"{name}_2" for name in (*made, *(leaf.reference for leaf in program.leaves))}
    leaves = (replace(leaf, name=f"{leaf.name}_2") for leaf in program.leaves)
    steps = (
        Step(
            tuple(others[name] for name in step.results),
            step.function,
            renamed(step.operands, others),
            tuple((key, renamed(value, others)) for key, value in step.keywords),
        )
        for step in program.steps
    )
    outputs = (*program.outputs, *(others[name] for name in program.outputs))
    return replace(program, leaves=(*program.leaves, *leaves), steps=(*program.steps, *steps), outputs=outputs)


def spoiled(program: Program, choose: random.Random) -> Program:
    """The program with one leaf of another type or size, or one number that is another."""
    if choose.random() < 0.6:
        place = choose.randrange(len(program.leaves))
        leaves = list(program.leaves)
        leaves[place] = _other_leaf(leaves[place], choose)
        return replace(program, leaves=tuple(leaves))
    place = choose.randrange(len(program.steps)) if program.steps else 0
    steps = list(program.steps)
    if steps:
        steps[place] = replace(
            steps[place], operands=tuple(_other_number(each, choose) for each in steps[place].operands)
        )
    return replace(program, steps=tuple(steps))


def _other_leaf(leaf: Leaf, choose: random.Random) -> Leaf:
    if choose.random() < 0.6 or not leaf.shape:
        others = (
            ("int64", "int32") if leaf.dtype in INTEGERS else ("float64", "float32", "bfloat16", "int64", "float16")
        )
        return replace(leaf, dtype=choose.choice([each for each in others if each != leaf.dtype]))
    place = choose.randrange(len(leaf.shape))
    size = max(leaf.shape[place] + choose.choice((-1, 1)), 0)
    return replace(leaf, shape=(*leaf.shape[:place], size, *leaf.shape[place + 1 :]))


def _other_number(argument: Any, choose: random.Random) -> Any:
    if isinstance(argument, int) and not isinstance(argument, bool):
        return argument + choose.choice((-1, 0, 1))
    if isinstance(argument, Code) and argument.text.startswith("torch.float"):
        return Code("torch.int64")
    return argument
