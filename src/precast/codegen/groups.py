"""Kernels that run as one: a function over a table of their tensors and sizes.

The iterations of all of them, put one after the other, are cut into as many equal parts as there are threads. A thread
runs what falls to it of each: a piece of a large tensor, or a hundred small ones.
"""

from __future__ import annotations

from precast.codegen.cpp_types import identifier, index_text
from precast.codegen.kernels import KernelFunction, KernelWriter, Signature, indented
from precast.codegen.work import PARALLEL_WORK, work_of
from precast.ir.loops.index import symbol
from precast.ir.loops.program import Kernel, Loop


def write_group(pattern: Kernel, name: str) -> KernelFunction:
    """Print the function `name`, which runs `pattern` for each row of a table."""
    signature = Signature(pattern, taken=("start", "stop"))
    fields = [f"{signature.type_of(buffer)}* {pointer};" for buffer, pointer in signature.pointers.items()]
    fields += [f"int64_t {identifier(size)};" for size in signature.sizes]
    row = "\n".join([f"struct {row_type(name)} {{", *indented(fields), "};"])
    match pattern.body:
        case (Loop() as loop,):
            member, group = _shared_loop(signature, loop, name)
        case _:
            member, group = _single_numbers(signature, pattern, name)
    origins = [f"// {origin}" for origin in pattern.origins]
    header = f"void {name}(const {row_type(name)}* tensors, const int64_t count)"
    text = "\n".join([row, "", *origins, *member, "", f"{header} {{", *indented(group), "}", ""])
    return KernelFunction(name, text, f"{row}\n{header};")


def row_type(name: str) -> str:
    """The type of a row of the table that a group's function takes."""
    return f"{name}_tensors"


def _shared_loop(signature: Signature, loop: Loop, name: str) -> tuple[list[str], list[str]]:
    """A function for a part of one loop, and what runs it for the parts of each thread."""
    (end,) = (size for size in signature.sizes if symbol(size) == loop.variables[0].extent)
    parameters = [each for each in signature.parameters if each != f"const int64_t {end}"]
    arguments = [f"each.{each}" for each in _names(signature) if each != end]
    member = [
        f"static void {name}_part({', '.join([*parameters, 'const int64_t start', 'const int64_t stop'])}) {{",
        *indented(KernelWriter(signature).part(loop, ("start", "stop"))),
        "}",
    ]
    return member, [
        "int64_t total = 0;",
        f"for (int64_t number = 0; number < count; ++number) total += tensors[number].{end};",
        f"#pragma omp parallel if (total * {index_text(work_of(loop.body))} >= {PARALLEL_WORK})",
        "{",
        "    precast::share share(total);",
        "    for (int64_t number = 0; number < count; ++number) {",
        "        const auto& each = tensors[number];",
        f"        const auto part = share.next(each.{end});",
        f"        if (part.start < part.stop) {name}_part({', '.join([*arguments, 'part.start', 'part.stop'])});",
        "    }",
        "}",
    ]


def _single_numbers(signature: Signature, pattern: Kernel, name: str) -> tuple[list[str], list[str]]:
    """A function for one row, and what runs it for each: too little work for several threads."""
    member = [
        f"static void {name}_row({', '.join(signature.parameters)}) {{",
        *indented(KernelWriter(signature).top_level(pattern.body)),
        "}",
    ]
    arguments = ", ".join(f"each.{each}" for each in _names(signature))
    return member, [
        "for (int64_t number = 0; number < count; ++number) {",
        "    const auto& each = tensors[number];",
        f"    {name}_row({arguments});",
        "}",
    ]


def _names(signature: Signature) -> list[str]:
    return [*signature.pointers.values(), *map(identifier, signature.sizes)]
