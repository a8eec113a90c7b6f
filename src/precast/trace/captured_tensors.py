"""Real tensors that a traced program uses: parameters, buffers, closure variables, globals.

While tracing, each is replaced by a stand-in when it enters a torch function, before autograd sees it, so gradients and
in-place updates reach the stand-in exactly as they would reach the tensor itself. The user's modules and variables are
never modified.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, is_fake
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.overrides import TorchFunctionMode

from precast._torch_compat import exchanged_operands_of_transforms
from precast.errors import CaptureError
from precast.trace.backward_runs import GradientSearch, is_gradient_access
from precast.trace.constant_arguments import ConstantArguments
from precast.trace.control_flow import call_control_flow, is_control_flow, without_bytecode_compiler
from precast.trace.decisions import asks_for_truth, compares, decide, decide_comparison, is_trying
from precast.trace.eager.functions import (
    assign_data,
    checked_quantile,
    idle_conversions,
    is_data_access,
    is_data_assignment,
    is_idle_dropout,
    is_idle_resize,
    is_mixed_linear,
    is_one_hot,
    is_quantile,
    mixed_linear,
    one_hot,
)
from precast.trace.eager.optimizer_kernels import fused_step
from precast.trace.eager.replaced_functions import replacement_of
from precast.trace.eager.symbolic_numbers import call_with_symbols, is_of_symbols
from precast.trace.eager.types_of_values import types_of_eager
from precast.trace.executed_code import is_trusted
from precast.trace.provenance import innermost_users_line
from precast.trace.script_modules import script_modules_over
from precast.trace.storages import guarded_storage, is_storage_access, is_storage_resize, resize_storage
from precast.trace.tensor_facts import noted_lookups_in_vain, question_of
from precast.trace.texts import Printed, refuse_texts, refused_texts

_TRACED_TYPES = (FakeTensor, FunctionalTensor)


def is_real_tensor(value: object) -> bool:
    """Whether ``value`` is a tensor with data, and not one of tracing's own."""
    if not isinstance(value, torch.Tensor) or type(value) in _TRACED_TYPES:
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return not is_fake(value)


class CapturedTensors:
    """The stand-in of each real tensor, by identity; with ``make_stand_in``, new ones are added on demand."""

    def __init__(
        self,
        stand_ins: Mapping[int, torch.Tensor],
        make_stand_in: Callable[[torch.Tensor], torch.Tensor] | None = None,
        gradients: GradientSearch | None = None,
    ) -> None:
        self.constants = ConstantArguments()
        """The values that the program computes from constant arguments."""
        self._stand_ins = dict(stand_ins)
        self._make_stand_in = make_stand_in
        self._gradients = gradients
        self.discovered: list[torch.Tensor] = []
        self.printed: list[Printed] | None = None
        """What the program prints, if the compiled program will print it."""
        self.asked: set[str] = set()
        self.looked_up_in_vain: set[str] = set()
        """What the program asks of tensors: facts that no graph has, and attributes that tensors lack."""
        self.applies_transforms = False
        """Whether the program applies transforms of ``torch.func``."""
        self.runs_own_backwards = False
        """Whether the program defines a backward of its own, which may use real tensors, too."""
        self.attributes_written_in_backward: set[str] = set()
        """The attributes of ``ctx`` that such a backward assigned."""
        self.data_taken: list[tuple[torch.Tensor, int]] = []
        """The results of ``.data``, each with its version at the time."""
        self.written_in_backward: set[int] = set()
        """The storages, of tensors saved by the forward, that such a backward wrote into."""

    @property
    def stand_ins(self) -> list[torch.Tensor]:
        return list(self._stand_ins.values())

    def substitute(self, value: Any) -> Any:
        """``value`` with every real tensor in it replaced; the same object if there is none."""
        if isinstance(value, torch.Tensor):
            # A program's state may itself be fake: it has stand-ins all the same.
            is_traced = type(value) in _TRACED_TYPES
            return self._stand_ins.get(id(value), value) if is_traced else self._stand_in(value)
        if type(value) in (tuple, list, immutable_list):
            items = [self.substitute(item) for item in value]
            return type(value)(items) if any(map(_is_other, items, value)) else value
        if type(value) is slice:
            return slice(*map(self.substitute, (value.start, value.stop, value.step)))
        if type(value) in (dict, immutable_dict):
            entries = {key: self.substitute(item) for key, item in value.items()}
            return entries if any(map(_is_other, entries.values(), value.values())) else value
        return value

    def returned(self, output: Any) -> Any:
        """What the program returns for an output."""
        return self.constants.returned(output, self.substitute(output))

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._stand_ins.get(id(tensor))
        if known is not None or self._make_stand_in is None or not is_real_tensor(tensor):
            return tensor if known is None else known
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise CaptureError(
                "The program applies a transform of torch.func to a tensor that is not one of its arguments.",
                at=innermost_users_line(),
                why="the transform has wrapped the tensor before anything stands for it in the graph",
                fix="Pass the tensor as an argument, or use torch.autograd.grad.",
            )
        # Kept alive, so that its id is not reused.
        self.discovered.append(tensor)
        # Making the stand-in calls torch functions that the program did not call.
        with torch._C.DisableTorchFunction():
            self._stand_ins[id(tensor)] = made = self._make_stand_in(tensor)
        if self._gradients is not None:
            self._gradients.meet(tensor, made)
        return made

    def exchange_for_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that a transform of ``torch.func`` wraps instead of ``tensor``."""
        self.applies_transforms = True
        self.note_own_run()
        exchanged: torch.Tensor = self.substitute(tensor)
        return exchanged

    def note_own_run(self) -> None:
        """Note that the program does something that needs a discovery run before it is recorded."""
        if isinstance(self._gradients, _NoGradients):
            raise UnknownStateError

    def note_gradient(self, tensor: Any) -> None:
        """Note that ``tensor.grad`` is about to be used."""
        if self._gradients is not None:
            self._gradients.touch(tensor)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """While active, torch functions called on this thread see stand-ins."""
        with (
            without_bytecode_compiler(),
            _substitution_in_autograd_functions(self),
            exchanged_operands_of_transforms(self.exchange_for_transform),
            idle_conversions(is_real_tensor, self.substitute),
            refused_texts(self.printed),
            types_of_eager(),
            script_modules_over(self.substitute),
            noted_lookups_in_vain(self.looked_up_in_vain),
            _SubstitutionMode(self),
        ):
            yield


class UnknownStateError(BaseException):
    """The program uses a tensor or a gradient without a stand-in. A BaseException, so that programs do not catch it."""


def meeting_nothing(stand_ins: Mapping[int, torch.Tensor]) -> CapturedTensors:
    """For a program that is expected to use no tensors beyond its known state."""
    return CapturedTensors(stand_ins, _unknown, _NoGradients())


def _unknown(tensor: torch.Tensor) -> torch.Tensor:
    raise UnknownStateError


class _NoGradients(GradientSearch):
    def touch(self, stand_in: Any) -> None:
        raise UnknownStateError


class _SubstitutionMode(TorchFunctionMode):
    def __init__(self, captured: CapturedTensors) -> None:
        super().__init__()
        self._captured = captured

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_trying():
            refuse_texts(func)
        args, kwargs = self._captured.constants.copied((args, kwargs))
        if self._captured.constants.holds(func, args, kwargs or {}):
            is_constant, result = self._captured.constants.computed(func, args, kwargs or {})
            if is_constant:
                return result
        args, kwargs = self._captured.constants.sizes_known(func, (args, kwargs))
        args = self._captured.substitute(args)
        kwargs = self._captured.substitute(kwargs) if kwargs else {}
        if (question := question_of(func)) is not None and not _is_asked_by_us(sys._getframe(1)):
            self._captured.asked.add(question)
        if asks_for_truth(func, args):
            return decide(args[0])
        if compares(func, args):
            return decide_comparison(func, *args, **kwargs)
        if is_control_flow(func, args):
            return call_control_flow(func, args, kwargs, self._captured.exchanged)
        if is_idle_resize(func, args, kwargs) or is_idle_dropout(func, args, kwargs):
            return args[0]
        if is_one_hot(func, args, kwargs):
            return one_hot(*args, **kwargs)
        if is_of_symbols(func, args, kwargs):
            return call_with_symbols(func, args, kwargs)
        if is_quantile(func, args, kwargs):
            return checked_quantile(func, args, kwargs)
        if is_mixed_linear(func, args, kwargs):
            return mixed_linear(*args, **kwargs)
        if (replacement := replacement_of(func) or fused_step(func)) is not None:
            return replacement(*args, **kwargs)
        if is_data_assignment(func):
            return assign_data(*args)
        if is_gradient_access(func):
            self._captured.note_gradient(args[0])
        if is_data_access(func):
            # Writes into it do not bump the version of the original tensor.
            self._captured.data_taken.append((data := func(*args, **kwargs), data._version))
            return data
        if is_storage_resize(func):
            return resize_storage(*args)
        if is_storage_access(func, args):
            return guarded_storage(func, *args)
        return func(*args, **kwargs)


def _is_asked_by_us(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "precast"


@contextmanager
def _substitution_in_autograd_functions(captured: CapturedTensors) -> Iterator[None]:
    """Substitute the arguments of ``torch.autograd.Function.apply`` by a patch: it is not a torch function.

    Tensors that its backward uses later are substituted, too.
    """
    thread = threading.get_ident()
    original = torch.autograd.Function.__dict__["apply"]
    exchanging: dict[Any, Any] = {}

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            args, kwargs = captured.substitute(args), captured.substitute(kwargs)
            if not is_trusted(cls.__module__):
                captured.runs_own_backwards = True
                captured.note_own_run()
                cls = exchanging[cls] = exchanging.get(cls) or _with_exchanging_backward(cls, captured)
        # Bound through the descriptor protocol, since torch may define it in Python or in C.
        return original.__get__(None, cls)(*args, **kwargs)

    with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield


def _with_exchanging_backward(kind: Any, captured: CapturedTensors) -> Any:
    """A ``torch.autograd.Function`` whose backward sees stand-ins."""
    name = "backward" if kind.vjp is torch.autograd.Function.vjp else "vjp"
    original = getattr(kind, name)

    def backward(ctx: Any, *gradients: Any) -> Any:
        kept = [each for each in (*ctx.saved_tensors, *vars(ctx).values()) if isinstance(each, torch.Tensor)]
        kept = [captured.substitute(each) for each in kept]
        versions, before = [each._version for each in kept], _copies(ctx)
        captured.data_taken.clear()
        with captured.exchanged():
            results = captured.substitute(original(ctx, *gradients))
        pairs = [*zip(kept, versions, strict=True), *captured.data_taken]
        captured.attributes_written_in_backward |= set(_written(before, _copies(ctx)))
        captured.written_in_backward |= {memory_of(each) for each, version in pairs if each._version != version}
        return results

    members = {name: staticmethod(backward), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), members)


def _copies(ctx: Any) -> dict[str, Any]:
    """The attributes of a context, with containers copied."""
    held = vars(ctx).items()
    return {name: list(value) if isinstance(value, _CONTAINERS) else value for name, value in held}


_CONTAINERS = (list, dict, set, deque)


def _written(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """The attributes of a context whose values have changed, other than to None."""
    for name, value in now.items():
        old = before.get(name, before)
        is_copied = type(value) is type(old) is list
        is_kept = value is None or (is_copied and len(old) == len(value) and not any(map(_is_other, old, value)))
        if value is not old and not is_kept:
            yield f"ctx.{name}"


def memory_of(tensor: torch.Tensor) -> int:
    """A key of the tensor's storage: equal for two tensors that share it."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _is_other(left: object, right: object) -> bool:
    return left is not right
