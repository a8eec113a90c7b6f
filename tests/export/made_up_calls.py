"""Calls of any operator made up from its schema alone: tensors, numbers and lists that now and then fit together.

``python -m tests.export.made_up_calls 400 0 16`` makes 400 calls of each, from seed 0, in 16 processes, and looks at
the heap whenever memory is freed.
"""

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed
from torch.utils import _pytree as pytree

from tests.export.operator_attacks import as_from_a_file, called_and_read, guarded, is_allowed
from tests.hostile.children import Limits, failures

SHAPES = ((), (0,), (1,), (3,), (4,), (2, 3), (3, 3), (4, 4), (2, 3, 4), (1, 2, 4), (2, 2, 4, 4), (1, 2, 3, 4, 4))
DTYPES = (torch.float32, torch.float32, torch.float32, torch.int64, torch.int64, torch.int32, torch.bool,
          torch.float64, torch.complex64, torch.bfloat16, torch.uint8)  # fmt: skip
INTEGERS = (0, 0, 1, 1, 2, 2, 3, 4, -1, -2, -3, 5, 17, 2**20, 2**31, 2**40, 2**62, -(2**40), -(2**63))
TEXTS = ("mean", "sum", "none", "constant", "reflect", "replicate", "circular", "left", "right", "ij", "xy", "tanh",
         "linear", "L", "reduced", "trunc", "floor", "amax", "prod", "add", "x")  # fmt: skip


class Maker:
    """Makes the arguments of one call; most of its tensors have one shape and one dtype."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._shape = list(rng.choice(SHAPES))
        self._dtype = rng.choice(DTYPES)

    def arguments(self, schema: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = [], {}
        for argument in schema.arguments:
            if argument.has_default_value() and self._rng.random() < 0.4:
                value = argument.default_value
            else:
                value = self._value(str(argument.real_type))
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def _value(self, kind: str) -> Any:
        rng = self._rng
        if kind.startswith("Optional["):
            return None if rng.random() < 0.4 else self._value(kind[9:-1])
        if kind.endswith("?"):
            return None if rng.random() < 0.4 else self._value(kind[:-1])
        if kind.startswith("List["):
            return [self._value(kind[5:-1]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]
        if kind.endswith("]"):
            return [self._value(kind[: kind.rindex("[")]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]
        plain = {
            "Tensor": self._tensor,
            "int": lambda: rng.choice(INTEGERS[:9] if rng.random() < 0.7 else INTEGERS),
            "SymInt": lambda: rng.choice(INTEGERS[:9] if rng.random() < 0.7 else INTEGERS),
            "float": lambda: rng.choice([0.0, 1.0, 0.5, -1.0, 2.0, 1e300, float("nan"), float("inf")]),
            "bool": lambda: rng.random() < 0.5,
            "number": lambda: rng.choice([0, 1, 2, 0.5, -1.5, True, 1j, float("nan"), 2**40]),
            "str": lambda: rng.choice(TEXTS),
            "ScalarType": lambda: rng.choice(DTYPES),
            "Device": lambda: torch.device(rng.choice(["cpu", "cpu", "meta"])),
            "Layout": lambda: torch.strided,
            "MemoryFormat": lambda: rng.choice([torch.contiguous_format, torch.preserve_format, torch.channels_last]),
            "Generator": lambda: None,
        }
        plain["Scalar"], plain["Scalar_type"] = plain["number"], plain["ScalarType"]
        return plain[kind]() if kind in plain else None

    def _tensor(self) -> torch.Tensor:
        rng, shape = self._rng, list(self._shape)
        if rng.random() < 0.35:
            shape = list(rng.choice(SHAPES))
        elif shape and rng.random() < 0.3:
            shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 5])
        dtype = self._dtype if rng.random() < 0.7 else rng.choice(DTYPES)
        if dtype in (torch.int64, torch.int32) and rng.random() < 0.5:
            limit = torch.iinfo(dtype).max
            choices = INTEGERS[:9] if rng.random() < 0.6 else INTEGERS
            count = int(torch.Size(shape).numel())
            numbers = [max(-limit, min(limit, rng.choice(choices))) for _ in range(count)]
            return torch.tensor(numbers, dtype=dtype).reshape(shape)
        return torch.ones(shape).to(dtype)


def operators() -> list[Any]:
    """Every operator that files may call, in all its overloads."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if isinstance(overload, torch._ops.OpOverload) and is_allowed(overload):
            found.append(overload)
    return sorted(set(found), key=str)


def call_made_up(operator: Any, rng: random.Random) -> None:
    """One call over guarded memory."""

    def made() -> tuple[Any, ...]:
        return (operator, *pytree.tree_map_only(torch.Tensor, guarded, Maker(rng).arguments(operator._schema)))

    called_and_read(as_from_a_file, made)


def reaching_outside(attacked: list[Any], *, times: int, seed: int, workers: int = 1) -> Iterator[str]:
    """The calls that killed their process, each operator's first; that one takes long is no harm."""

    def run(case: int) -> None:
        call_made_up(attacked[case // times], random.Random(f"{seed} {case}"))

    told = set[Any]()
    limits = Limits(seconds=20, gigabytes=16)
    for failure in failures(run, range(len(attacked) * times), limits, workers=workers):
        operator = attacked[failure.case // times]
        if operator not in told and failure.how.startswith("ended"):
            told.add(operator)
            yield f"{operator}, call {failure.case}: {failure.how}"


def main(times: int, seed: int, workers: int) -> int:
    """Attack them all, tell which reach outside, and how many do."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    attacked, killed = operators(), 0
    for line in reaching_outside(attacked, times=times, seed=seed, workers=workers):
        killed += 1
        print(line, flush=True)
    print(f"{len(attacked)} operators, {times} made-up calls each, seed {seed}: {killed} reach outside", flush=True)
    return killed


_HEAP_IS_CHECKED = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}

if __name__ == "__main__":
    if "GLIBC_TUNABLES" not in os.environ:
        command = [sys.executable, "-m", "tests.export.made_up_calls", *sys.argv[1:]]
        sys.exit(subprocess.call(command, env=os.environ | _HEAP_IS_CHECKED))
    sys.exit(main(*map(int, sys.argv[1:4])) > 0)
