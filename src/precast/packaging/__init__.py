"""Exported programs → one file, or one library, that runs without torch."""

from precast.packaging.package import package

__all__ = ["package"]
