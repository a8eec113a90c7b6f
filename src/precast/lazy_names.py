"""Names that are imported when first used, and what to say where the extra that they need is not installed.

Needs no torch.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from precast.errors import ExtraMissingError

CPU_BUILDS = "https://pytorch.org/get-started/locally"
"""Where to find the command that installs torch without gigabytes of CUDA."""
# Package that may be absent → the extra of ours that brings it.
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
    """While active, a missing package that one of our extras would install is told by that extra."""
    try:
        yield
    except ModuleNotFoundError as problem:
        missing = (problem.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        extra = _EXTRAS[missing]
        cpu = f" (torch without CUDA: {CPU_BUILDS}, choose CPU)" if missing == "torch" else ""
        raise ExtraMissingError(
            f"{wanted} needs {missing}, which is not installed.",
            why="the base install runs packages; compiling, exporting and training need more",
            fix=f"pip install 'precast[{extra}]'{cpu}",
        ) from problem
