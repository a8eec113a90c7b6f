"""Dotted names of state and submodules, as a file may give them.

GraphModule writes such names into Python source, between double quotes: a name that could end the quotes is refused.
No file that was written here has any: see ``attribute_names``.
"""

import re
from typing import Any

from precast.artifact.schema import damaged
from precast.export.attribute_names import writable_path

_SAFE = re.compile(r"""[^"\\\x00-\x1f\x7f]{0,4096}""")


def checked_path(path: Any) -> str:
    """The name, if it is one."""
    if not isinstance(path, str) or not _SAFE.fullmatch(path):
        raise damaged(
            f"{str(path)[:80]!r} cannot name state or a submodule",
            "it holds double quotes, backslashes or control characters",
        )
    return path


def checked_optional_path(path: Any) -> str | None:
    """The name, or nothing where there is none."""
    return None if path is None else checked_path(path)


def writable_optional_path(path: str | None) -> str | None:
    """The name as it stands in a file, or nothing where there is none."""
    return None if path is None else writable_path(path)
