"""What a program asks of the tensors that it is given, and that neither graphs nor keys of calls have.

Before: ``x * 2 if x.is_leaf else x``; ``x._base is None``; ``getattr(x, "scale", 1)``
After:  ``AskedFacts({"is_leaf", "_base"}, {"scale"})``: tracing answers as for an ordinary tensor, one that is no
        view and has no attributes of its own; a call with any other tensor is not served by the graph
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from precast.errors import CaptureError
from precast.graph.opened_objects import is_wrapper

_NO_FUNCTION = torch._C._disabled_torch_function_impl
_PROPERTIES = ("_backward_hooks", "_base", "_version", "grad_fn", "is_leaf", "output_nr", "retains_grad")
_METHODS = ("_is_view", "is_inference", "is_pinned", "is_set_to", "is_shared", "storage_offset")
_QUESTIONS: dict[Any, str] = {
    **{getattr(Tensor, name).__get__: name for name in _PROPERTIES},
    **{getattr(Tensor, name): name for name in _METHODS},
    torch.is_inference: "is_inference",
    Tensor.__deepcopy__: "is_leaf",
}
_IS_ORDINARY: dict[str, Callable[[Tensor], bool]] = {
    "_backward_hooks": lambda tensor: not tensor._backward_hooks,
    "_base": lambda tensor: tensor._base is None,
    "_is_view": lambda tensor: not tensor._is_view(),
    "_version": lambda tensor: False,
    "grad_fn": lambda tensor: tensor.grad_fn is None,
    "is_inference": lambda tensor: not tensor.is_inference(),
    "is_leaf": lambda tensor: True,
    "is_pinned": lambda tensor: not tensor.is_pinned(),
    "is_set_to": lambda tensor: False,
    "is_shared": lambda tensor: not tensor.is_shared(),
    "output_nr": lambda tensor: tensor.output_nr == 0,
    "retains_grad": lambda tensor: not tensor.retains_grad,
    "storage_offset": lambda tensor: tensor.storage_offset() == 0,
}


def refuse_own_functions(tensors: Sequence[Tensor]) -> None:
    """Raise for tensors whose class sees, or changes, what torch functions do with them."""
    for kind in {type(tensor): None for tensor in tensors if not is_wrapper(tensor)}:
        is_dispatching = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ and not issubclass(kind, FakeTensor)
        if is_dispatching or (kind is not Tensor and kind.__torch_function__ is not _NO_FUNCTION):
            raise CaptureError(
                f"An input is a {kind.__name__}, a subclass of torch.Tensor.",
                why="a graph computes with plain tensors, and the results of its class's own methods are others",
                fix="Pass tensor.as_subclass(torch.Tensor), or give the class __tensor_flatten__ and "
                "__tensor_unflatten__.",
            )


def question_of(function: Any) -> str | None:
    """The fact that a torch function asks for, if any."""
    return _QUESTIONS.get(function)


@dataclass(frozen=True)
class AskedFacts:
    """The ``facts`` that a program asks for, and the ``attributes`` that it looks up on tensors that lack them."""

    facts: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.facts or self.attributes)

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise if the answers of tracing are not those that eager gives for these tensors."""
        for name in self._unusual(tensors):
            raise CaptureError(
                f"The program asks for {name} of its tensors.",
                why="a trace has tensors of its own, which have other values there",
                fix="Ask for it outside, and pass the answer as an argument.",
            )

    def key(self, tensors: Sequence[Tensor]) -> tuple[bool, ...] | None:
        """The answers that may differ between calls; None if a graph cannot have those for these tensors."""
        if any(self._unusual(tensors)):
            return None
        return tuple(tensor.is_leaf for tensor in tensors) if "is_leaf" in self.facts else ()

    def _unusual(self, tensors: Sequence[Tensor]) -> Iterator[str]:
        for tensor in tensors:
            yield from (name for name in self.facts if not _IS_ORDINARY[name](tensor))
            # The program reads those of parameters from the parameters themselves.
            if not isinstance(tensor, torch.nn.Parameter):
                yield from self.attributes.intersection(vars(tensor))


NOTHING_ASKED = AskedFacts()


@contextmanager
def noted_lookups_in_vain(names: set[str]) -> Iterator[None]:
    """While active, record the attributes that traced tensors are asked for and do not have."""

    def look_up(tensor: Tensor, name: str) -> Any:
        names.add(name)
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    with (
        patch.object(FakeTensor, "__getattr__", look_up, create=True),
        patch.object(FunctionalTensor, "__getattr__", look_up, create=True),
    ):
        yield
