"""Horizontally fused kernels: a function over a table of their tensors and sizes.

The iterations of all members are concatenated and split evenly between the threads. A thread runs its share of each
member: a piece of a large tensor, or a hundred small ones. Reductions are split into parts independent of the number
of threads; the partial results of each are then combined in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from precast.native.loops.program import Kernel, Loop, Statement
from precast.native.targets.cpu.codegen.accumulators import combined
from precast.native.targets.cpu.codegen.kernels import KernelFunction, KernelWriter, Signature, indented
from precast.native.targets.cpu.codegen.tiles import PARALLEL_WORK, work_of
from precast.native.targets.cpu.codegen.types import CPP_TYPES, identifier, index_text


def write_group(pattern: Kernel, name: str) -> KernelFunction:
    """Print the function `name`, which runs `pattern` for each row of a table."""
    signature = Signature(pattern, taken=("start", "stop", "parts", "part", "count"))
    fields = [f"{signature.type_of(buffer)}* {pointer};" for buffer, pointer in signature.pointers.items()]
    fields += [f"int64_t {identifier(size)};" for size in signature.sizes]
    row = "\n".join([f"struct {row_type(name)} {{", *indented(fields), "};"])
    match pattern.body:
        case (Loop() as loop,):
            member, group = _shared_loop(signature, loop, name)
        case (Loop() as loop, *rest):
            member, group = _shared_reduction(signature, loop, rest, name)
        case _:
            member, group = _single_numbers(signature, pattern, name)
    origins = [f"// {origin}" for origin in pattern.origins]
    header = f"void {name}(const {row_type(name)}* tensors, const int64_t count)"
    text = "\n".join([row, "", *origins, *member, "", f"{header} {{", *indented(group), "}", ""])
    return KernelFunction(name, text, f"{row}\n{header};")


def row_type(name: str) -> str:
    """The type of a row of a group's table."""
    return f"{name}_tensors"


def _shared_loop(signature: Signature, loop: Loop, name: str) -> tuple[list[str], list[str]]:
    """A function for a part of one loop, and the code that runs it for each thread's parts."""
    end = _end_of(loop)
    member = [
        f"static void {name}_part({_parameters(signature, end, 'const int64_t start', 'const int64_t stop')}) {{",
        *indented(KernelWriter(signature).part(loop, ("start", "stop"))),
        "}",
    ]
    return member, [
        *_total(end),
        f"#pragma omp parallel{_condition(loop)}",
        "{",
        "    precast::share share(total);",
        "    for (int64_t number = 0; number < count; ++number) {",
        "        const auto& each = tensors[number];",
        f"        const auto part = share.next(each.{end});",
        f"        if (part.start < part.stop) {name}_part({_arguments(signature, end, 'part.start', 'part.stop')});",
        "    }",
        "}",
    ]


def _shared_reduction(
    signature: Signature, loop: Loop, rest: Sequence[Statement], name: str
) -> tuple[list[str], list[str]]:
    """Functions for a part of one reduction and for what follows it, and the code that runs them."""
    end, writer, totals = _end_of(loop), KernelWriter(signature), f"{name}_totals"
    declared = writer.declare(loop.accumulators)
    names = [writer.accumulators[each] for each in loop.accumulators]
    reduced = writer.reduction(loop, ("start", "stop"))
    taken = [combined(each.kind, own, f"parts[part].{own}") for each, own in zip(loop.accumulators, names, strict=True)]
    members = [
        f"struct {totals} {{",
        *(f"    {CPP_TYPES[each.dtype]} {own};" for each, own in zip(loop.accumulators, names, strict=True)),
        "};",
        "",
        f"static {totals} {name}_part({_parameters(signature, end, 'const int64_t start', 'const int64_t stop')}) {{",
        *indented([*declared, *reduced, f"return {{{', '.join(names)}}};"]),
        "}",
        "",
        f"static void {name}_end({_parameters(signature, end, f'const {totals}* parts', 'const int64_t count')}) {{",
        *indented(declared),
        "    for (int64_t part = 0; part < count; ++part) {",
        *indented(indented(taken)),
        "    }",
        *indented(writer.body(tuple(rest))),
        "}",
    ]
    return members, [
        *_total(end),
        f"precast::parts_of_many<{totals}> parts(count * precast::parts_at_most);",
        f"#pragma omp parallel for schedule(static, 1){_condition(loop)}",
        "for (int64_t piece = 0; piece < count * precast::parts_at_most; ++piece) {",
        "    const auto& each = tensors[piece / precast::parts_at_most];",
        f"    const int64_t part = piece % precast::parts_at_most, parts_here = precast::parts_of(each.{end});",
        "    if (part >= parts_here) continue;",
        f"    const int64_t start = each.{end} * part / parts_here, stop = each.{end} * (part + 1) / parts_here;",
        f"    parts[piece] = {name}_part({_arguments(signature, end, 'start', 'stop')});",
        "}",
        "for (int64_t number = 0; number < count; ++number) {",
        "    const auto& each = tensors[number];",
        "    const auto* own = &parts[number * precast::parts_at_most];",
        f"    {name}_end({_arguments(signature, end, 'own', f'precast::parts_of(each.{end})')});",
        "}",
    ]


def _end_of(loop: Loop) -> str:
    """The name of the size at which the loop ends."""
    (variable,) = loop.variables
    return identifier(str(variable.extent))


def _parameters(signature: Signature, end: str, *others: str) -> str:
    return ", ".join([*(each for each in signature.parameters if each != f"const int64_t {end}"), *others])


def _condition(loop: Loop) -> str:
    return f" if (total * {index_text(work_of(loop.body))} >= {PARALLEL_WORK})"


def _total(end: str) -> list[str]:
    return [
        "int64_t total = 0;",
        f"for (int64_t number = 0; number < count; ++number) total += tensors[number].{end};",
    ]


def _single_numbers(signature: Signature, pattern: Kernel, name: str) -> tuple[list[str], list[str]]:
    """A function for one row, and the code that runs it for each: there is too little work for several threads."""
    member = [
        f"static void {name}_row({', '.join(signature.parameters)}) {{",
        *indented(KernelWriter(signature).top_level(pattern.body)),
        "}",
    ]
    return member, [
        "for (int64_t number = 0; number < count; ++number) {",
        "    const auto& each = tensors[number];",
        f"    {name}_row({_arguments(signature, None)});",
        "}",
    ]


def _arguments(signature: Signature, end: str | None, *others: str) -> str:
    """The fields of a table row, except the end of its loop, and the function's other arguments."""
    held = [*signature.pointers.values(), *map(identifier, signature.sizes)]
    return ", ".join([*(f"each.{name}" for name in held if name != end), *others])
