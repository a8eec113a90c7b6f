"""A Triton kernel as text, with everything needed to compile it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel to compile. `signature` are the types of its parameters: pointers, then sizes."""

    name: str
    text: str
    signature: tuple[str, ...]
    warps: int
    asserts: bool = False
    """Whether it may stop the device with an assertion message."""
