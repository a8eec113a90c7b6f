"""Names of a package that are imported when they are first used. Needs no torch."""

import sys
from collections.abc import Mapping
from importlib import import_module


def lazy_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """What ``package``'s ``__getattr__`` gives for ``name``: ``homes`` tells the module that defines it."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value: object = getattr(import_module(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value
