"""Whose code is taken for granted: Python's, torch's and our own are what their versions say."""

import sys


def is_trusted(module: str | None) -> bool:
    """Whether a module is Python's, torch's or ours, so that its version tells what it does."""
    package = (module or "").partition(".")[0]
    return package in ("torch", "precast") or package in sys.stdlib_module_names


_MACHINERY = (
    "_pytest", "mpmath", "namedtuple_", "numpy", "pluggy", "precast", "sympy", "torch._", "torch.autograd", "torch.fx",
    "torch.library", "torch.overrides", "torch.types", "torch.utils._", "unittest",
)  # fmt: skip
# Ours in place of a library's, or of a module's call, while a program is traced: they read what it would read.
_STAND_INS = frozenset(
    {"precast.autograd.pieces", "precast.capture.cumulative_average", "precast.capture.optimizer_steps"}
)


def is_machinery(module: str | None) -> bool:
    """Whether code of a module is a part of tracing: it handles tensors and graphs, and reads nothing of the user's."""
    return (module or "").startswith(_MACHINERY) and module not in _STAND_INS
