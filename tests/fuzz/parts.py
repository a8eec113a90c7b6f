"""Steps between layers: views, parts put together, updates in place, reading and writing at places."""

from __future__ import annotations

from typing import Any

from tests.fuzz.drafts import Draft, NotTakenError, family
from tests.fuzz.programs import Name


def cut(draft: Draft, size: int) -> slice:
    """A part of a dimension, mostly not empty; sometimes with a step."""
    start = draft.one_of(None, 0, 1, 2, size // 2, -2)
    stop = draft.one_of(None, size - 1, size // 2, -1, size, start + 1 if start is not None and start >= 0 else None)
    return slice(start, stop, draft.one_of(None, None, None, 2, 3))


def somewhere(draft: Draft, x: Name) -> tuple[Any, ...]:
    """Subscripts of a part of the value."""
    shape = draft.shape(x)
    if not shape:
        raise NotTakenError("a number has no parts")
    place = draft.choose.randrange(len(shape))
    part: Any = cut(draft, shape[place])
    if draft.maybe(0.15) and shape[place]:
        part = draft.one_of(0, -1, shape[place] // 2)
    return (..., part) if place == len(shape) - 1 and draft.maybe() else (*[slice(None)] * place, part)


@family(9)
def crop(draft: Draft, x: Name) -> None:
    draft.add("[]", x, *somewhere(draft, x))


@family(6)
def turn(draft: Draft, x: Name) -> None:
    rank = len(draft.shape(x))
    match draft.one_of("transpose", "transpose", "permute", "movedim", "flip", "roll"):
        case "transpose":
            draft.add(".transpose", x, draft.dim(x), draft.dim(x))
        case "permute":
            draft.add(".permute", x, *draft.choose.sample(range(rank), rank))
        case "movedim":
            draft.add(".movedim", x, 0, draft.dim(x))
        case "flip":
            draft.add(".flip", x, draft.dim(x))
        case "roll":
            draft.add(".roll", x, draft.one_of(1, -1, 2), draft.dim(x))


@family(5)
def reshape(draft: Draft, x: Name) -> None:
    shape = draft.shape(x)
    match draft.one_of("merge", "merge", "split", "split", "unsqueeze", "squeeze", "flat", "expand", "repeat"):
        case "merge":
            place = draft.choose.randrange(max(len(shape) - 1, 1))
            draft.add(".flatten", x, place, place + 1)
        case "split":
            place = draft.choose.randrange(len(shape)) if shape else 0
            factor = draft.one_of(*(each for each in (2, 3, 4) if shape and shape[place] % each == 0), 1)
            parts = draft.one_of((factor, -1), (-1, factor))
            draft.add(".unflatten", x, place, parts)
        case "unsqueeze":
            draft.add(".unsqueeze", x, draft.one_of(0, -1, len(shape)))
        case "squeeze":
            draft.add(".squeeze", x, *draft.one_of((), (draft.dim(x),)))
        case "flat":
            draft.add(".reshape", x, -1)
        case "expand":
            draft.add(".expand", x, draft.one_of(1, 2, 3), *shape)
        case "repeat":
            draft.add(draft.one_of(".repeat", ".tile"), x, *(draft.one_of(1, 1, 2) for _ in shape))


@family(5)
def pieces(draft: Draft, x: Name) -> None:
    dim = draft.dim(x)
    size = draft.shape(x)[dim]
    match draft.one_of("chunk", "chunk", "split", "unbind", "unfold", "narrow", "diagonal", "strided"):
        case "chunk":
            first, second = draft.add(".chunk", x, 2, dim, results=2)
            if draft.maybe():
                draft.add("*", first, draft.add("torch.sigmoid", second) if draft.is_float(x) else second)
        case "split":
            at = draft.one_of(1, size // 2, size - 1)
            draft.add(".split", x, (at, size - at), dim, results=2)
        case "unbind" if size in (1, 2, 3):
            draft.add(".unbind", x, dim, results=size)
        case "unfold":
            draft.add(".unfold", x, dim, draft.one_of(1, 2, 3), draft.one_of(1, 2))
        case "diagonal":
            draft.add(".diagonal", x, draft.one_of(0, 1, -1), -2, -1)
        case "strided":
            draft.add(
                ".as_strided",
                x,
                (max(size // 2, 1), 2),
                (draft.one_of(1, 2), draft.one_of(1, 0, 3)),
                draft.one_of(0, 1),
            )
        case _:
            draft.add(".narrow", x, dim, min(1, size), max(size - 2, 0))


@family(6)
def join(draft: Draft, x: Name) -> None:
    dim, other = draft.dim(x), draft.earlier()
    match draft.one_of("itself", "itself", "other", "stack", "new", "parts"):
        case "itself":
            draft.add("torch.cat", [x, draft.add("*", x, 2)], dim)
        case "other":
            draft.add("torch.cat", [other, x], dim)
        case "stack":
            draft.add("torch.stack", [x, other if draft.shape(other) == draft.shape(x) else x], dim)
        case "new":
            draft.add("torch.cat", [x, draft.matching(x, *draft.shape(x), kind="constant")], dim)
        case "parts":
            whole = [draft.add("[]", x, *somewhere(draft, x)) for _ in range(2)]
            draft.add("torch.cat", whole, dim)


@family(4)
def pad(draft: Draft, x: Name) -> None:
    mode = draft.one_of("constant", "constant", "constant", "reflect", "replicate", "circular")
    if mode != "constant":
        x = draft.with_rank(draft.floating(x), draft.one_of(3, 4))
        sides = [draft.one_of(0, 1, 2) for _ in range(2 * (len(draft.shape(x)) - 2))]
        draft.add("F.pad", x, sides, mode=mode)
    else:
        count = draft.one_of(1, min(2, max(len(draft.shape(x)), 1)))
        draft.add("F.pad", x, [draft.one_of(0, 1, 2, -1) for _ in range(2 * count)], value=draft.one_of(0, 1, -2))


@family(5)
def in_place(draft: Draft, x: Name) -> None:
    """An update of a copy, of an input itself, of a view of it, or of a buffer."""
    x = x if draft.maybe(0.35) else draft.add(".clone", x)
    target = draft.add("[]", x, *somewhere(draft, x)) if draft.maybe(0.4) and draft.shape(x) else x
    match draft.one_of("mul", "add", "assign", "fill", "copy", "activation", "clamp", "itself"):
        case "mul":
            draft.add(".mul_", target, draft.one_of(2, 3), results=draft.one_of(0, 1))
        case "add":
            draft.add(".add_", target, draft.one_of(1, target), results=draft.one_of(0, 1))
        case "assign":
            draft.add("[]=", target, *somewhere(draft, target), draft.one_of(0, 1, 2), results=0)
        case "fill":
            draft.add(draft.one_of(".zero_", ".fill_"), target, *draft.one_of((), (1,)), results=0)
        case "copy":
            draft.add(".copy_", target, draft.leaf(*draft.shape(target), kind="input"), results=0)
        case "activation":
            draft.add(draft.one_of(".relu_", ".sigmoid_", ".tanh_"), target, results=0)
        case "clamp":
            draft.add(".clamp_", target, -1, 1, results=draft.one_of(0, 1))
        case "itself":
            draft.add("[]=", x, *somewhere(draft, x), draft.add("[]", x, *somewhere(draft, x)), results=0)
    if target is not x:
        draft.add("+", x, 1)


@family(1)
def buffer_update(draft: Draft, x: Name) -> None:
    x = draft.floating(x)
    total = draft.matching(x, kind="buffer")
    draft.add(".add_", total, draft.add(".mean", x), results=0)
    draft.add("*", x, total)


@family(3)
def gather(draft: Draft, x: Name) -> None:
    dim = draft.dim(x)
    shape = draft.shape(x)
    size = shape[dim]
    places = draft.leaf(draft.one_of(1, 3, 5), kind=draft.one_of("input", "constant"), dtype="int64", high=size)
    match draft.one_of("select", "subscript", "take", "gather", "mask"):
        case "select":
            draft.add(".index_select", x, dim, places)
        case "subscript":
            draft.add("[]", x, *[slice(None)] * (dim % len(shape)), places)
        case "take":
            draft.add("torch.take_along_dim", x, draft.add(".argsort", x, dim), dim)
        case "gather":
            draft.add("torch.gather", x, dim, draft.leaf(*shape, kind="input", dtype="int64", high=size))
        case "mask":
            draft.add(".masked_fill", x, draft.add(">", x, 0), draft.one_of(0, 1, -1))


@family(3)
def scatter(draft: Draft, x: Name) -> None:
    dim, x = draft.dim(x), draft.add(".clone", x)
    shape = draft.shape(x)
    dim %= len(shape)
    count = draft.one_of(1, 2, 4)
    part = (*shape[:dim], count, *shape[dim + 1 :])
    places = draft.leaf(count, kind="input", dtype="int64", high=shape[dim])
    match draft.one_of("add", "copy", "put", "put", "scatter", "scatter_add"):
        case "add":
            draft.add(".index_add", x, dim, places, draft.matching(x, *part, kind="input"))
        case "copy":
            first = draft.leaf(1, kind="input", dtype="int64", high=shape[dim])
            draft.add(".index_copy", x, dim, first, draft.matching(x, *shape[:dim], 1, *shape[dim + 1 :], kind="input"))
        case "put":
            if dim == 0:
                draft.add("torch.index_put", x, [places], draft.matching(x, *part, kind="input"), True)
            first = draft.leaf(1, kind="input", dtype="int64", high=shape[dim])
            draft.add("[]=", x, *[slice(None)] * dim, first, 1, results=0)
            draft.add("*", x, 2)
        case "scatter":
            where = draft.leaf(*part, kind="input", dtype="int64", high=shape[dim])
            draft.add(".scatter", x, dim, draft.add("*", where, 0), 1)
        case "scatter_add":
            where = draft.leaf(*part, kind="input", dtype="int64", high=shape[dim])
            draft.add(".scatter_add", x, dim, where, draft.matching(x, *part, kind="input"))
