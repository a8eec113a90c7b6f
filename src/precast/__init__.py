"""Precast compiles PyTorch programs ahead of time: the forward, the backward and the whole training step.

Names are imported when first used, so that ``import precast`` costs next to nothing and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from precast._version import __version__

# Public name → the module that defines it.
_HOMES = {
    "PrecastError": "precast.errors",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'precast' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from precast.errors import PrecastError as PrecastError
