"""Arrays that lie about their memory, given to a compiled model: numpy's own numbers, or an error of ours."""

import ctypes
import mmap
import random
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import precast
import precast.runtime
from precast.errors import PrecastError

HUGE = (2**31, 2**40, 2**55, 2**61, 2**62)
Array = np.ndarray[Any, np.dtype[Any]]
_LIBC = ctypes.CDLL(None, use_errno=True)
_GUARDED: list[mmap.mmap] = []


class Weighted(torch.nn.Module):
    """Reads and writes arrays of several dtypes, gathers by an index, and updates its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, index: Any, written: Any) -> Any:
        self.calls += 1
        written.add_(1)
        return x * self.scale, x.double().sum(0), x[:, 0][index], x + written.sum()


def expected(x: Array, index: Array, written: Array, scale: Array) -> tuple[Array, ...]:
    total = (written + np.float32(1)).astype(np.float64).sum()
    return x * scale, x.astype(np.float64).sum(0), x[:, 0][index], (x.astype(np.float64) + total).astype(np.float32)


@cache
def package(compiler: str | None = None) -> bytes:
    options = {} if compiler is None else {"compiler": compiler}
    rows, columns, length = precast.Dim("rows"), precast.Dim("columns"), precast.Dim("length")
    arguments = (torch.ones(4, 3), torch.tensor([0, 1]), torch.ones(6))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.precast"
        shapes = ({0: rows}, {0: columns}, {0: length})
        precast.package(Weighted(), arguments, path=path, dynamic_shapes=shapes, options=options)
        return path.read_bytes()


def guarded(size: int, offset: int) -> memoryview:
    """Memory that ends `offset` bytes before a page that nobody may touch, and begins behind another."""
    pages = -(-(size + offset) // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + 2 * mmap.PAGESIZE)
    _GUARDED.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + mmap.PAGESIZE + pages):
        assert _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    stop = mmap.PAGESIZE + pages - offset
    return memoryview(memory)[stop - size : stop]


def released() -> None:
    """Let go of all guarded memory."""
    _GUARDED.clear()


def laid_out(numbers: Array, rng: random.Random) -> Array:
    """The same numbers somewhere in guarded memory: any order of dimensions, any steps, any alignment."""
    item, rank = numbers.itemsize, numbers.ndim
    order = rng.sample(range(rank), rank)
    strides, extent = [0] * rank, item
    for dimension in order:
        step = extent + rng.choice([0, 0, 0, item, 1, 3, 7])
        strides[dimension] = step
        extent = step * max(numbers.shape[dimension] - 1, 0) + extent
    memory = guarded(max(extent, item), rng.choice([0, 0, 1, 3, 4]))
    start = 0
    for dimension in range(rank):
        if rng.random() < 0.25 and numbers.shape[dimension] > 0:
            start += strides[dimension] * (numbers.shape[dimension] - 1)
            strides[dimension] = -strides[dimension]
    made: Array = np.ndarray(numbers.shape, numbers.dtype, memory, start, strides)
    made[...] = numbers
    return made


def overlapping(numbers: Array, rng: random.Random) -> Array:
    """Rows that are one memory: repeated, or each shifted by one."""
    if numbers.ndim == 0 or 0 in numbers.shape:
        return numbers
    memory = laid_out(np.resize(numbers.reshape(-1), sum(numbers.shape)), rng)
    steps = [rng.choice([0, memory.strides[0]]) for _ in numbers.shape]
    return np.lib.stride_tricks.as_strided(memory, numbers.shape, steps)


def huge(numbers: Array, rng: random.Random) -> Any:
    """One number that claims to be very many."""
    size = rng.choice(HUGE)
    one = np.zeros(1, numbers.dtype)
    columns = int(np.prod(numbers.shape[1:], dtype=np.int64))
    if rng.random() < 0.5 and size * columns < 2**63:
        return torch.from_numpy(one).expand((size, *numbers.shape[1:]))
    if size * numbers.itemsize * columns >= 2**62:
        return numbers
    return np.lib.stride_tricks.as_strided(one, (size, *numbers.shape[1:]), [0] * numbers.ndim)


def disguised(numbers: Array, rng: random.Random) -> tuple[Any, bool]:
    """The numbers in some form, and whether that form may be refused."""
    kind = rng.random()
    if kind < 0.5:
        return laid_out(numbers, rng), False
    if kind < 0.6:
        return overlapping(numbers, rng), False
    if kind < 0.68:
        return huge(numbers, rng), True
    if kind < 0.75:
        return numbers.astype(numbers.dtype.newbyteorder()), True
    if kind < 0.85:
        tensor = torch.from_numpy(np.array(laid_out(numbers, rng), order="C"))
        return (torch._neg_view(-tensor) if rng.random() < 0.5 and tensor.is_floating_point() else tensor), False
    if kind < 0.9:
        return torch.from_numpy(numbers.copy()).to_sparse(), True
    if kind < 0.95:
        return numbers.astype(rng.choice(["f8", "f2", "i2", "u1", "?", "c8", "M8[s]", "O"])), True
    return numbers.reshape(*numbers.shape, 1) if rng.random() < 0.5 else numbers.tolist(), True


def run_arrays(model: Any, seed: int, case: int) -> None:
    """One call with arrays made from a seed and a number alone."""
    rng = random.Random(f"{seed} {case}")
    generator = np.random.default_rng(rng.randrange(2**32))
    rows = rng.choice([1, 1, 2, 3, 8, 33])
    x = generator.integers(-9, 9, (rows, 3)).astype(np.float32)
    index = generator.integers(0, rows, rng.choice([1, 2, 9]))
    written = generator.integers(-9, 9, rng.choice([0, 1, 2, 17])).astype(np.float32)
    if rng.random() < 0.1:
        index[rng.randrange(len(index))] = rng.choice([rows, -rows - 1, 2**31, 2**62, -(2**63)])
    forms = [disguised(each, rng) for each in (x, index, written)]
    given = [form for form, _ in forms]
    may_refuse = any(refusable for _, refusable in forms) or bool(np.any((index >= rows) | (index < -rows)))
    plain = [np.array(each) if isinstance(each, np.ndarray) and each.size < 10**6 else None for each in given]
    plain = [each.resolve_neg().numpy().copy() if isinstance(each, torch.Tensor) and each.layout is torch.strided
             and each.numel() < 10**6 else old for each, old in zip(given, plain, strict=True)]  # fmt: skip
    scale = model.state["scale"]
    try:
        results = model(*given)
    except (PrecastError, IndexError, MemoryError):
        assert may_refuse, f"refused {[getattr(each, 'strides', each) for each in given]}"
        return
    assert all(each is not None for each in plain), "sizes that no memory holds were computed with"
    is_overlapping = isinstance(given[2], np.ndarray) and 0 in given[2].strides
    if is_overlapping:
        return
    for result, right in zip(results, expected(*plain, scale), strict=True):
        np.testing.assert_allclose(np.asarray(result), right, rtol=1e-5, atol=1e-5)
    now = given[2].numpy() if isinstance(given[2], torch.Tensor) and not given[2].is_neg() else given[2]
    np.testing.assert_allclose(np.asarray(now.resolve_neg() if isinstance(now, torch.Tensor) else now), plain[2] + 1)
    if rng.random() < 0.2:
        value = generator.integers(-9, 9, 3).astype(np.float32)
        model.state["scale"] = laid_out(value, rng)
        np.testing.assert_array_equal(model.state["scale"], value)


def array_cases(seed: int, *, compiler: str | None = None) -> Any:
    """What runs one case, over one model."""
    model = precast.runtime.load(package(compiler))
    interpreted = None if compiler else precast.runtime.load(package(), allow_native=False)

    def run(case: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_arrays(interpreted if interpreted is not None and case % 4 == 0 else model, seed, case)
        released()

    return run
