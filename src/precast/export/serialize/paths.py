"""Dotted names of state and submodules, as a file may give them.

GraphModule writes such names into Python source, between double quotes: a name that could end the quotes is refused.
"""

import re
from typing import Any

from precast.artifact.schema import damaged

_SAFE = re.compile(r"""[^"'\\\x00-\x1f\x7f]{0,4096}""")


def checked_path(path: Any) -> str:
    """The name, if it is one."""
    if not isinstance(path, str) or not _SAFE.fullmatch(path):
        raise damaged(f"{str(path)[:80]!r} cannot name state or a submodule", "it holds quotes or control characters")
    return path


def checked_optional_path(path: Any) -> str | None:
    """The name, or nothing where there is none."""
    return None if path is None else checked_path(path)
