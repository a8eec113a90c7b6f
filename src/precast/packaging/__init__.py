"""Packages exported programs as one file, or one library, that runs without torch."""

from precast.packaging.aot_compile import aot_compile
from precast.packaging.package import package

__all__ = ["aot_compile", "package"]
