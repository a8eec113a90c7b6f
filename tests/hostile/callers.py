"""Calls of the C interface with arguments that are wrong in every way that can be told: a status, never worse.

What cannot be told is not tried: pointers and sizes always describe memory that is there, or none at all.
"""

import ctypes
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import precast
from precast.runtime.libraries import preload
from precast.runtime.native import _NamedTensor, _OpenOptions, load_library
from precast.runtime.tensors import CTensor
from tests.hostile.arrays import Array, Weighted, expected, laid_out, released

OK, STATUSES = 0, range(6)
NUMBERS = (-(2**63), -(2**62), -(2**31), -1, 0, 1, 2, 3, 4, 16, 17, 2**31 - 1, 2**31, 2**61, 2**62, 2**63 - 1)
CODES = {"f": 2, "i": 0, "u": 1, "b": 6}


@cache
def library(compiler: str | None = None) -> Any:
    """The model of arrays, as a library that C programs link."""
    options = {} if compiler is None else {"compiler": compiler}
    folder = Path(tempfile.mkdtemp())
    rows, columns, length = precast.Dim("rows"), precast.Dim("columns"), precast.Dim("length")
    path = precast.aot_compile(
        Weighted(),
        (torch.ones(4, 3), torch.tensor([0, 1]), torch.ones(6)),
        dynamic_shapes=({0: rows}, {0: columns}, {0: length}),
        options={**options, "output_path": folder / "model.so"},
    )
    preload(("libdnnl.so.3",))
    return load_library(path).handle


def described(array: Array, kept: list[Any]) -> CTensor:
    numbers = ctypes.c_int64 * max(array.ndim, 1)
    shape, strides = numbers(*array.shape), numbers(*(step // array.itemsize for step in array.strides))
    kept += [array, shape, strides]
    address = array.__array_interface__["data"][0]
    return CTensor(address, 1, 0, array.ndim, CODES[array.dtype.kind], array.itemsize * 8, 1, shape, strides, 0)


def spoiled(tensor: CTensor, rng: random.Random, kept: list[Any], *, is_input: bool) -> None:
    """Make something about a description wrong, or claim that there is more than any memory holds."""
    rank, kind = tensor.rank, rng.randrange(9)
    if not 0 <= rank <= 16 or not tensor.shape:
        return
    if kind == 0:
        tensor.rank = rng.choice([-1, -(2**31), 0, 1, 3, 15, 16, 17, 64, 2**31 - 1])
        if 0 <= tensor.rank <= 64:
            numbers = ctypes.c_int64 * 64
            tensor.shape, tensor.strides = numbers(*[1] * 64), numbers(*[0] * 64)
            kept += [tensor.shape, tensor.strides]
    elif kind == 1:
        tensor.dtype_code, tensor.dtype_bits = (
            rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 255]),
            rng.choice([0, 1, 4, 8, 16, 32, 64, 128, 255]),
        )
    elif kind == 2:
        tensor.dtype_lanes = rng.choice([0, 2, 4, 65535])
    elif kind == 3:
        tensor.device_type = rng.choice([0, 2, 13, -1, 2**31 - 1])
    elif kind == 4:
        tensor.data = None
    elif kind == 5 and rank:
        tensor.shape = None
    elif kind == 6 and rank and is_input:
        # One element, as often as it is said: all of it is there.
        size = rng.choice([2**31, 2**40, 2**55, 2**61, 2**62, 2**63 - 1])
        tensor.shape[0] = size
        for dimension in range(rank):
            tensor.strides[dimension] = 0
    elif kind == 7 and rank:
        tensor.shape[rng.randrange(rank)] = rng.choice([-1, -(2**31), -(2**62), -(2**63)])
    elif rank and not is_input:
        tensor.strides[rng.randrange(rank)] = rng.choice(NUMBERS)


def call_of_numbers(number: int, rng: random.Random) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(rng.randrange(2**32))
    rows = rng.choice([0, 1, 2, 9])
    x = generator.integers(-9, 9, (rows, 3)).astype(np.float32)
    index = generator.integers(0, max(rows, 1), rng.choice([1, 3]) if rows else 0)
    written = generator.integers(-9, 9, rng.choice([0, 1, 5])).astype(np.float32)
    if number % 7 == 0 and len(index):
        index[0] = rng.choice([rows, -rows - 1, 2**31, 2**62, -(2**63)])
    return x, index, written


def run_caller(handle: Any, model: Any, seed: int, case: int) -> None:
    """One call, made from a seed and a number alone: wrong in one or two ways, or right."""
    rng, kept = random.Random(f"{seed} {case}"), list[Any]()
    x, index, written = call_of_numbers(case, rng)
    forms = [laid_out(each, rng) for each in (x, index, written)]
    scale = np.zeros(3, np.float32)
    assert handle.precast_read_state(model, b"scale", ctypes.byref(described(scale, kept))) == OK
    right = None
    if np.all((index < len(x)) & (index >= -len(x))):
        right = (written + 1, *expected(x, index, written, scale))
    results = [np.full_like(written, 77), np.full_like(x, 77), np.full(3, 77.0), index.astype(np.float32), x * 0 + 77]
    inputs = (CTensor * 3)(*(described(each, kept) for each in forms))
    outputs = (CTensor * 5)(*(described(each, kept) for each in results))
    counts, entry, is_right = [3, 5], 0, all(each.flags.aligned and _is_whole(each) for each in forms)
    for _ in range(rng.choice([0, 1, 1, 2])):
        is_right = False
        kind = rng.random()
        if kind < 0.6:
            spoiled(rng.choice(inputs), rng, kept, is_input=True)
        elif kind < 0.85:
            spoiled(rng.choice(outputs), rng, kept, is_input=False)
        elif kind < 0.95:
            counts[rng.randrange(2)] = rng.choice([0, 1, 2, 3, 5, 2**31, 2**62])
        else:
            entry = rng.choice([1, 2, 2**31, 2**62])
    if rng.random() < 0.2:
        _infer(handle, model, inputs, counts[0])
    status = handle.precast_run(model, entry, inputs, counts[0], outputs, counts[1])
    _judge(handle, status, is_right and right is not None, right, results)
    _other_calls(handle, model, rng, kept)


def _is_whole(array: Array) -> bool:
    return all(step % array.itemsize == 0 for step in array.strides)


def _judge(handle: Any, status: int, must_work: bool, right: Any, results: list[Array]) -> None:
    assert status in STATUSES, status
    assert status == OK or handle.precast_last_error()
    assert status == OK or not must_work, handle.precast_last_error()
    if must_work:
        for result, wanted in zip(results, right, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def _infer(handle: Any, model: Any, inputs: Any, count: int) -> None:
    numbers = ctypes.c_int64 * 16
    outputs = (CTensor * 5)(*(CTensor(None, 0, 0, 0, 0, 0, 0, numbers(), numbers(), 0) for _ in range(5)))
    assert handle.precast_infer(model, 0, inputs, count, outputs, 5) in STATUSES


def _other_calls(handle: Any, model: Any, rng: random.Random, kept: list[Any]) -> None:
    name = rng.choice([b"scale", b"calls", b"", b"x" * 5000, b"\xff\xfe", None])
    tensor = described(np.zeros(rng.choice([3, 1, 4]), rng.choice(["f4", "i8"])), kept)
    if rng.random() < 0.7:
        spoiled(tensor, rng, kept, is_input=True)
    calls: list[Callable[..., int]] = [handle.precast_read_state, handle.precast_write_state]
    for call in calls:
        assert call(model, name, ctypes.byref(tensor)) in STATUSES
    if rng.random() < 0.2:
        _open_with_weights(handle, rng, kept)
    number, text = ctypes.c_size_t(), ctypes.c_char_p()
    place = rng.choice([0, 1, 2, 2**31, 2**63, 2**64 - 1])
    assert handle.precast_entry_name(model, place, ctypes.byref(text)) in STATUSES
    assert handle.precast_state_name(model, place, ctypes.byref(text)) in STATUSES
    assert handle.precast_entry_json(model, place, ctypes.byref(text)) in STATUSES
    assert handle.precast_find_entry(model, name, ctypes.byref(number)) in STATUSES


def _open_with_weights(handle: Any, rng: random.Random, kept: list[Any]) -> None:
    scale = described(np.arange(3, dtype=np.float32), kept)
    if rng.random() < 0.7:
        spoiled(scale, rng, kept, is_input=True)
    named = _NamedTensor(rng.choice([b"scale", b"scale", b"other", None]), scale)
    options = _OpenOptions(
        abi_version=rng.choice([3, 3, 3, 0, 1, 2, 2**32 - 1]),
        threads=rng.choice([0, 1, -1, 2**31 - 1]),
        weights=rng.choice([ctypes.pointer(named), ctypes.pointer(named), None]),
        weight_count=rng.choice([0, 1]),
        weights_path=rng.choice([None, None, b"", b"/", b"/dev/null", b"/does/not/exist"]),
    )
    model = ctypes.c_void_p()
    status = handle.precast_open(ctypes.byref(options), ctypes.byref(model))
    assert status in STATUSES
    if status == OK:
        assert handle.precast_close(model) == OK


def caller_cases(seed: int, *, compiler: str | None = None) -> Callable[[int], None]:
    """What runs one case, over one model."""
    handle, model = library(compiler), ctypes.c_void_p()
    assert handle.precast_open(None, ctypes.byref(model)) == OK

    def run(case: int) -> None:
        run_caller(handle, model, seed, case)
        released()

    return run
