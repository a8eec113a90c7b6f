"""Names that are imported when first used, and the error for names whose extra is not installed.

Needs no torch.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from precast.errors import ExtraMissingError

CPU_BUILDS = "https://pytorch.org/get-started/locally"
"""The page with the command that installs torch without gigabytes of CUDA."""
# Package that may be absent → the extra of Precast that installs it.
_EXTRAS = {
    "torch": "torch", "sympy": "torch", "scipy": "torch", "onnx": "onnx", "onnx_ir": "onnx", "onnxscript": "onnx",
}  # fmt: skip


def lazy_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """``name`` of ``package``, for its ``__getattr__``; ``homes`` maps names to the modules that define them."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with naming_extras(f"{package}.{name}"):
        value: object = getattr(import_module(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value


@contextmanager
def naming_extras(wanted: str) -> Iterator[None]:
    """While active, an ImportError for a package that one of our extras installs names that extra instead."""
    try:
        yield
    except ImportError as problem:
        # The error names what was asked for, not what it happens to import first.
        origin = problem.__cause__ if isinstance(problem, ExtraMissingError) else problem
        missing = (getattr(origin, "name", None) or "").partition(".")[0]
        if missing not in _EXTRAS or not isinstance(origin, ModuleNotFoundError):
            raise
        extra = _EXTRAS[missing]
        if extra == "torch" and not _is_installed("torch"):
            missing = "torch"
        cpu = f" (torch without CUDA: {CPU_BUILDS}, choose CPU)" if missing == "torch" else ""
        raise ExtraMissingError(
            f"{wanted} needs {missing}, which is not installed.",
            why="the base install runs packages; compiling, exporting and training need more",
            fix=f"pip install 'precast[{extra}]'{cpu}",
        ) from origin


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # sys.modules has None for it
        return False
