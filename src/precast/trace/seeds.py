"""Refuses programs that seed torch's generator while they are exported.

Before: ``torch.manual_seed(0); return x + torch.rand(3)`` seeds the generator while tracing, and the graph only draws
After:  an error with the user's line
"""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import checkpoint

from precast.errors import CaptureError
from precast.trace.provenance import innermost_users_line, is_users_file

_BETWEEN = (str(Path(torch.__file__).parent), contextlib.__file__)
_SETTING = ("manual_seed", "seed", "set_state")


class _Generator:
    """Torch's default generator, as ``torch.random`` sees it; programs may read its state, and not set it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if name in _SETTING and _is_called_by_user(sys._getframe(1)):
            raise CaptureError(
                "The program sets the state of torch's random generator.",
                at=innermost_users_line(),
                why="a graph draws from the generator of whoever runs it, and cannot seed it",
                fix="Call torch.manual_seed before the program, or pass the random numbers as an argument.",
            )
        return getattr(self._generator, name)


def _is_called_by_user(frame: FrameType | None) -> bool:
    """Whether the user's code is what called torch; a checkpoint that runs again restores the state it began with."""
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        if frame.f_code.co_filename == checkpoint.__file__:
            return False
        frame = frame.f_back
    return frame is not None and is_users_file(frame.f_code.co_filename)


@contextmanager
def refused_seeds() -> Iterator[None]:
    """While active, programs cannot set the state of the default generator."""
    with patch.object(torch.random, "default_generator", _Generator(torch.default_generator)):
        yield
