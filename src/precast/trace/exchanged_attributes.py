"""Replaces attributes of a module while a program runs in pieces, and shows the module without the replacements.

Before: ``{"scale": 2, "forward": <ours>, "_compiled_call_impl": <ours>}``
After:  ``{"scale": 2}``, which is what the user's program set

While one thread has replaced an attribute, others may use the same module: what they trace, compare or restore must be
the user's state, never the replacement.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from precast.trace.session import ProcessLock

_ABSENT = object()
_lock = ProcessLock()


class ExchangedAttribute:
    """A callable in place of a module's attribute, until it is taken away."""

    def __init__(self, module: torch.nn.Module, name: str, call: Callable[..., Any], before: Any) -> None:
        self._held, self._name, self._call, self._before = vars(module), name, call, before

    @classmethod
    def put(cls, module: torch.nn.Module, name: str, call: Callable[..., Any]) -> "ExchangedAttribute | None":
        """Replace an attribute by ``call``; None if it is replaced already."""
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
        """Restore the attribute, unless it has been set since."""
        with _lock:
            if not self.is_in_place:
                return
            if self._before is _ABSENT:
                del self._held[self._name]
            else:
                self._held[self._name] = self._before

    @property
    def before(self) -> Any:
        """The replaced value; raises KeyError if there was none."""
        if self._before is _ABSENT:
            raise KeyError(self._name)
        return self._before

    @before.setter
    def before(self, value: Any) -> None:
        self._before = value


def users_attributes(held: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of an object's attributes, without our replacements."""
    found = dict(held)
    for name, value in list(found.items()):
        if isinstance(value, ExchangedAttribute):
            del found[name]
            if value._before is not _ABSENT:
                found[name] = value._before
    return found
