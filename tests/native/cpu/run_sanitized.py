"""Builds the cases of ``tests/native/lowering`` with the sanitizers and runs them: ``python -m … FOLDER``.

The sanitizers' libraries must have been loaded before Python.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from precast.cache import Store
from precast.native.describe import Entry
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.runtime import open_library
from tests.native.cpu.sanitizers import FLAGS
from tests.native.lowering import (
    test_attention,
    test_bags,
    test_convolution,
    test_depthwise,
    test_direct_convolutions,
    test_dynamic_operators,
    test_epilogues,
    test_group,
    test_indexing,
    test_normalization,
    test_operators,
    test_ordering,
    test_parts,
    test_pixel_products,
    test_pooling,
    test_random,
    test_resampling,
    test_special,
)
from tests.native.lowering.pipeline import lowered, make_entry

FAMILIES = (
    test_operators, test_attention, test_bags, test_convolution, test_depthwise, test_direct_convolutions,
    test_epilogues, test_indexing, test_normalization, test_ordering, test_pixel_products, test_pooling,
    test_resampling, test_special,
)  # fmt: skip
DYNAMIC = ("softmax", "cat", "sum_columns", "view_of_transposed", "slice", "layer_norm_by_hand", "pad")
OTHER_SIZE = 11

Case = tuple[Entry, list[Sequence[torch.Tensor]]]
"""A program, and the inputs of each call of it."""


def fixed_cases() -> Iterator[tuple[str, object, Sequence[torch.Tensor]]]:
    for family in FAMILIES:
        for name, (function, inputs) in family.CASES.items():
            if name != "fallback":
                yield f"{family.__name__.rpartition('.')[2]}_{name}", function, inputs


def cases() -> Iterator[Case]:
    for name, function, inputs in fixed_cases():
        yield make_entry(lowered(function, *inputs, name=name)), [inputs]
    yield from other_cases()


def other_cases() -> Iterator[Case]:
    """Groups of loops, dynamic sizes, parts of programs, random numbers."""
    for name, (function, inputs) in test_group.CASES.items():
        yield make_entry(lowered(function, *inputs, name=f"group_{name}")), [inputs]
    for name in DYNAMIC:
        function, inputs = test_operators.CASES[name]
        yield make_entry(lowered(function, *inputs, name=f"{name}_dynamic", dynamic=True)), [inputs]
    for name, (function, inputs_of) in test_dynamic_operators.CASES.items():
        calls = [inputs_of(size) for size in (test_dynamic_operators.TRACED, OTHER_SIZE)]
        yield make_entry(lowered(function, *calls[0], name=f"dynamic_{name}", dynamic=True)), calls
    for name in (*test_parts.PARTS, *test_parts.SIZES):
        entry = test_parts.entry_of(name)
        yield replace(entry, weights={}), test_parts.calls_of(name, entry)
    for name, function in test_random.CASES.items():
        program = test_random.random_program(function, test_random.given(name), name=f"random_{name}")
        yield make_entry(program), [[test_random.given(name), test_random.SEED]]


def refused_cases() -> Iterator[Case]:
    """Calls with places outside of what they read or write."""
    for name, (function, inputs) in test_indexing.OUTSIDE.items():
        yield make_entry(lowered(function, *inputs, name=f"outside_{name}")), [inputs]


def main(folder: str) -> None:
    right, refused = list(cases()), list(refused_cases())
    library = build(
        generate([entry for entry, _ in (*right, *refused)]), store=Store(Path(folder), limit=2**30), extra_flags=FLAGS
    )
    assert b"__asan_report" in library.path.read_bytes(), "the library was built without its sanitizers"
    model = open_library(library.path, needs=library.needs)
    for entry, calls in right:
        for inputs in calls:
            model[entry.name](*inputs)
    for entry, (inputs,) in refused:
        try:
            model[entry.name](*inputs)
        except (IndexError, RuntimeError):
            continue
        raise AssertionError(f"{entry.name} was not refused")
    print("clean:", len(right), "programs")


if __name__ == "__main__":
    main(sys.argv[1])
