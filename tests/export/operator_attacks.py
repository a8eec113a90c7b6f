"""Calls of operators with arguments that lie, over memory that ends at a guard page: which of them reach outside?

Real calls, forward and backward, are collected from torch's own samples; then sizes, shapes and indices in them are
exchanged. Every operator has a child process of its own: what reaches outside kills the child, and nothing else.
"""

import ctypes
import mmap
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from precast.ops.operators_in_files import checked, is_checked, is_of_numbers_alone, may_be_called_by_files

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_KEPT: list[mmap.mmap] = []
INDICES = (-1, 0, 1, 2, 3, 7, -7, 2**20, -(2**20), 2**40, -(2**40), 2**62, -(2**63))
NUMBERS = (-1, 0, 1, 2, 3, 5, 100, 2**20, 2**40, 2**62)
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose last element ends where a page begins that nobody may touch; nor may they the one before."""
    plain = tensor.detach().contiguous()
    size = plain.numel() * plain.element_size()
    pages = -(-max(size, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + 2 * _PAGE)
    _KEPT.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + _PAGE + pages):
        assert _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), 0) == 0
    if size == 0 or plain.layout is not torch.strided:
        return plain
    view = memoryview(memory)[_PAGE + pages - size : _PAGE + pages]
    made = torch.frombuffer(view, dtype=torch.uint8)
    made.copy_(plain.reshape(-1).view(torch.uint8))
    return made.view(plain.dtype).reshape(plain.shape)


class Recorder(TorchDispatchMode):
    """Keeps a few calls of every operator."""

    def __init__(self, wanted: Callable[[Any], bool], calls: dict[Any, list[Call]], most: int):
        super().__init__()
        self.wanted, self.calls, self.most = wanted, calls, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = self.calls.setdefault(func, [])
        if len(kept) < self.most and self.wanted(func):
            copies = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, dict(kwargs or {})))
            kept.append((func, *copies))
        return func(*args, **(kwargs or {}))


def recorded_calls(wanted: Callable[[Any], bool], *, most: int = 3) -> dict[Any, list[Call]]:
    """Calls that torch's samples make, directly and below, with their gradients."""
    from torch.testing._internal.common_methods_invocations import op_db

    calls: dict[Any, list[Call]] = {}
    for info in op_db:
        dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
        try:
            samples = list(islice(info.sample_inputs("cpu", dtype, requires_grad=info.supports_autograd), most))
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, ImportError):
            continue
        for sample in samples:
            if sum(t.numel() for t in pytree.tree_leaves(sample.input) if isinstance(t, torch.Tensor)) > 100_000:
                continue
            with Recorder(wanted, calls, most):
                try:
                    result = info.op(sample.input, *sample.args, **sample.kwargs)
                    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                    if leaves:
                        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
                except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError):
                    continue
    return {op: kept for op, kept in calls.items() if kept}


def other_shape(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    shape = list(tensor.shape)
    kind = rng.randrange(5)
    if kind == 0 and shape:
        shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 5, 17])
    elif kind == 1:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice([0, 1, 2]))
    elif kind == 2 and shape:
        shape.pop(rng.randrange(len(shape)))
    elif kind == 3:
        return torch.zeros(rng.choice([(), (0,), (1,), (1, 1, 1, 1)]), dtype=tensor.dtype)
    else:
        shape = [max(1, size // 2) for size in shape]
    return torch.zeros(shape, dtype=tensor.dtype)


def other_values(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    if tensor.dtype in (torch.int64, torch.int32):
        limit = 2**31 - 1 if tensor.dtype is torch.int32 else 2**63 - 1
        numbers = [max(-limit, min(limit, rng.choice(INDICES))) for _ in range(tensor.numel())]
        return torch.tensor(numbers, dtype=tensor.dtype).reshape(tensor.shape)
    if tensor.is_floating_point():
        choices = [0.0, -1.0, 1e30, float("nan"), float("inf"), 3.0]
        return torch.tensor([rng.choice(choices) for _ in range(tensor.numel())]).reshape(tensor.shape).to(tensor.dtype)
    return tensor


def other_leaf(value: Any, rng: random.Random) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value
        if value.dtype in (torch.int64, torch.int32) and rng.random() < 0.6:
            return other_values(value, rng)
        return other_shape(value, rng) if rng.random() < 0.7 else other_values(value, rng)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS)
    return rng.choice([0.0, -1.0, float("nan"), 1e300]) if isinstance(value, float) else value


def attacked(call: Call, rng: random.Random) -> Call:
    """The call with one to three of its parts exchanged, over guarded memory."""
    func, args, kwargs = call
    leaves, tree = pytree.tree_flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, (torch.Tensor, int, float))]
    for place in rng.sample(places, min(len(places), rng.choice([1, 1, 2, 3]))):
        leaves[place] = other_leaf(leaves[place], rng)
    leaves = [guarded(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return (func, *pytree.tree_unflatten(leaves, tree))


def called_and_read(run: Callable[..., Any], made: Callable[[], Call]) -> None:
    """Make a call over guarded memory and read what it returns; whatever it raises is fine."""
    try:
        for leaf in pytree.tree_leaves(run(*made())):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel() < 10**6:
                leaf.clone()
    except Exception:  # noqa: BLE001
        return
    finally:
        _KEPT.clear()


def attack(calls: list[Call], run: Callable[..., Any], *, times: int, seed: int) -> None:
    """Call one operator with hostile arguments; whatever it raises is fine."""
    rng = random.Random(seed)
    for number in range(times):
        called_and_read(run, partial(attacked, calls[number % len(calls)], rng))


def in_child(work: Callable[[], None], *, seconds: int, gigabytes: int) -> int:
    """How a child that did the work ended: 0, or the signal that killed it."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(seconds)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def reaching_outside(
    calls: dict[Any, list[Call]], run: Callable[..., Any], *, times: int, seed: int = 0
) -> Iterator[tuple[str, int]]:
    """The operators whose child was killed, and how."""
    for func, kept in calls.items():
        code = in_child(lambda kept=kept: attack(kept, run, times=times, seed=seed), seconds=60, gigabytes=16)
        if code != 0:
            yield str(func), code


def is_allowed(operator: Any) -> bool:
    namespace, name = operator._schema.name.split("::")
    is_on_list = may_be_called_by_files(namespace, name) and not is_of_numbers_alone(operator)
    return is_on_list and not operator._schema.is_mutable


def as_from_a_file(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call as a program from a file makes it."""
    return (checked(operator) if is_checked(operator) else operator)(*args, **kwargs)


def main(times: int, seed: int) -> int:
    """Attack every operator that files may call; tell which reach outside, and how many do."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = recorded_calls(is_allowed)
    print(f"{len(found)} operators, {times} calls each", flush=True)
    killed = 0
    for name, code in reaching_outside(found, as_from_a_file, times=times, seed=seed):
        killed += code != -signal.SIGALRM
        print(name, "took too long" if code == -signal.SIGALRM else f"was killed: {code}", flush=True)
    return killed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
