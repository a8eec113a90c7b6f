"""What we put into the attributes of a module while a program runs in pieces, and how to see the module without it.

Before: ``{"scale": 2, "forward": <ours>, "_compiled_call_impl": <ours>}``
After:  ``{"scale": 2}``, which is all that the user's program knows of

One thread puts it there, and others look at the same module meanwhile: what they trace, compare or put back is the
user's state, never what stands for a part of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from precast.trace.session import ProcessLock

_ABSENT = object()
_lock = ProcessLock()


class ExchangedAttribute:
    """Is called in place of an attribute of a module, until it is taken away."""

    def __init__(self, module: torch.nn.Module, name: str, call: Callable[..., Any], before: Any) -> None:
        self._held, self._name, self._call, self._before = vars(module), name, call, before

    @classmethod
    def put(cls, module: torch.nn.Module, name: str, call: Callable[..., Any]) -> "ExchangedAttribute | None":
        """Put ``call`` in place of an attribute, as others see it; None if that has been done already."""
        with _lock:
            before = vars(module).get(name, _ABSENT)
            if isinstance(before, cls):
                return None
            made = vars(module)[name] = cls(module, name, call, before)
            return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def is_in_place(self) -> bool:
        return self._held.get(self._name) is self

    def take_away(self) -> None:
        """Let the attribute be what it was, unless somebody has set another since."""
        with _lock:
            if not self.is_in_place:
                return
            if self._before is _ABSENT:
                del self._held[self._name]
            else:
                self._held[self._name] = self._before

    @property
    def before(self) -> Any:
        """What it stands for; a KeyError where there was nothing."""
        if self._before is _ABSENT:
            raise KeyError(self._name)
        return self._before

    @before.setter
    def before(self, value: Any) -> None:
        self._before = value


def users_attributes(held: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of what an object holds, as the user knows it."""
    found = dict(held)
    for name, value in list(found.items()):
        if isinstance(value, ExchangedAttribute):
            del found[name]
            if value._before is not _ABSENT:
                found[name] = value._before
    return found
