"""Arguments and state that are constants of a program: whatever depends on them alone is computed while tracing.

Before: ``for part in x.split(grid.prod(-1).tolist()): …``, with data-dependent sizes
After:  ``split_with_sizes(x, [16, 4])``, and at each call a check that ``grid`` is unchanged

Small tensors of whole numbers in the state (``self.stride``) are such constants where Python code decides by them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from precast.errors import CaptureError, InputValueError
from precast.graph.opened_objects import is_wrapper
from precast.trace.capture.call import FlatCall
from precast.trace.functionalize.known_values import unrecorded

_MADE_OF_NUMBERS = frozenset({torch.arange, torch.tensor, torch.as_tensor})
_PLAIN = (int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
_SHOWN = 200
_SMALL = 64
_WHOLE_NUMBERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_TAKE_SIZES = frozenset(
    {
        "__getitem__", "chunk", "expand", "interpolate", "narrow", "new_empty", "new_full", "new_ones", "new_zeros",
        "pad", "repeat", "reshape", "roll", "select", "split", "tensor_split", "tile", "unflatten", "unfold", "view",
    }
)  # fmt: skip


class ConstantArguments:
    """The values of one run that are computed from constants alone: real tensors, which are not recorded."""

    def __init__(self) -> None:
        self._given: dict[int, torch.Tensor] = {}
        self._known: dict[int, torch.Tensor] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self.takes_numbers = False
        """Whether tensors that the program makes of numbers are constants even if none were given."""

    def add(self, tensor: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """A copy of a constant, to be used instead of the argument ``given``."""
        with unrecorded():
            copy = self._note(tensor.clone())
        self._given[id(copy)] = given
        return copy

    def add_state(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Note a tensor of the state that is a constant."""
        self._copies[id(tensor)] = self.add(tensor, stand_in)

    def copied(self, arguments: Any) -> Any:
        """The arguments of a call with copies of the state that is constant."""
        if not self._copies:
            return arguments
        return _mapped(lambda leaf: self._copies.get(id(leaf), leaf), arguments)

    def returned(self, output: Any, stand_in: Any) -> Any:
        """The value to return for an output: for a constant, the argument itself, or a new tensor in each call."""
        if id(output) in self._given:
            return self._given[id(output)]
        return stand_in.clone() if id(output) in self._known else stand_in

    def holds(self, func: object, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call of a torch function depends only on constants."""
        if not self._known and not self.takes_numbers:
            return False
        leaves = list(_leaves([args, kwargs]))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors and func not in _MADE_OF_NUMBERS:
            return False
        return all(id(leaf) in self._known or isinstance(leaf, _PLAIN) for leaf in leaves)

    def computed(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether the result is a constant, and the result; random draws are not constant."""
        with unrecorded():
            state = torch.get_rng_state()
            result = func(*args, **kwargs)
            if not torch.equal(state, torch.get_rng_state()):
                torch.set_rng_state(state)
                return False, None
        for leaf in _leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return True, result

    def sizes_known(self, func: object, arguments: Any) -> Any:
        """The arguments of a call, with constants as numbers where it takes sizes or positions."""
        if not self._known or getattr(func, "__name__", "") not in _TAKE_SIZES:
            return arguments

        def number(leaf: Any) -> Any:
            is_number = id(leaf) in self._known and leaf.dim() == 0 and leaf.dtype in _WHOLE_NUMBERS
            return self._known[id(leaf)].item() if is_number else leaf

        with unrecorded():
            return _mapped(number, arguments)

    def check_unwritten(self) -> None:
        """Raise if the program has written into a constant argument: the caller would have to see that."""
        if any(self._known[key]._version for key in self._given):
            raise CaptureError(
                "The program writes into a constant argument.",
                why="it has the same value in each call",
                fix="Write into a clone() of it, or leave it out of constant_arguments.",
            )

    def check_not_stored(self, stored: Iterable[Any]) -> None:
        """Raise if the program keeps what it computed of its own state: then the next call computes something else."""
        if self.takes_numbers and any(id(leaf) in self._known for leaf in pytree.tree_leaves(list(stored))):
            raise CaptureError(
                "The program stores a tensor that depends on its state.",
                why="in the next call it would have another value",
                fix="Count in a Python number, or compute it again in each call.",
            )

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        self._known[id(tensor)] = tensor
        return tensor


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if type(value) is slice:
        return slice(*(function(part) for part in (value.start, value.stop, value.step)))
    if type(value) in (list, tuple):
        return type(value)(_mapped(function, each) for each in value)
    return {key: _mapped(function, each) for key, each in value.items()} if type(value) is dict else function(value)


def _leaves(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def constants_among(names: Sequence[str], call: FlatCall) -> dict[int, tuple[str, torch.Tensor]]:
    """The tensors in the arguments with these names or paths: by position, their path and value."""
    paths, leaves = call.paths, call.leaves
    for name in names:
        if not any(_is_at(path, name) for path in paths):
            raise InputValueError(
                f"constant_arguments names {name!r}, but the call has no such argument.",
                why=f"it has {', '.join(paths) or 'none'}",
                fix="Name arguments as forward() does, or one of these.",
            )
    found = [i for i, path in enumerate(paths) if any(_is_at(path, name) for name in names)]
    found = [position for position in found if isinstance(leaves[position], torch.Tensor)]
    for position in found:
        leaf = leaves[position]
        if leaf.requires_grad or is_fake(leaf) or leaf.is_meta or is_wrapper(leaf):
            raise InputValueError(
                f"{paths[position]} cannot be a constant of the program.",
                why="it requires grad" if leaf.requires_grad else f"it is a {type(leaf).__name__} on {leaf.device}",
                fix="Pass an ordinary tensor with data, which does not require grad.",
            )
    return {position: (paths[position], leaves[position]) for position in found}


def small_numbers(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Those of these tensors that hold a few whole numbers, by name."""
    return {name: tensor for name, tensor in named if _is_small_number(tensor)}


def _is_small_number(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) is torch.Tensor and not tensor.is_meta and tensor.layout is torch.strided
    return is_plain and not (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() <= _SMALL


def _is_at(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}[", f"{name}."))


def check_is_same(given: torch.Tensor, constant: torch.Tensor, path: str) -> None:
    """Record a check that an argument has the value it had while tracing."""
    if any(isinstance(size, torch.SymInt) for size in given.shape):
        raise InputValueError(
            f"{path} is a constant of the program, and its sizes may change.",
            why="dynamic_shapes says so",
            fix="Leave its sizes static.",
        )
    with unrecorded():
        shown = " ".join(str(constant.tolist()).split())[:_SHOWN]
        has_nan = bool((constant != constant).any())
        # A copy: ``constant`` may itself be state, for which the program has an input.
        constant = constant.clone()
    same = given == constant
    if has_nan:
        same = same | ((given != given) & (constant != constant))
    torch._assert_async(same.all(), f"{path} is a constant of this program, {shown}: export it again for another value")
