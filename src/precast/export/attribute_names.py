"""Dotted names of state and submodules as attributes of generated modules, and in files.

GraphModule writes such names into Python source: a word of Python, a quote or a line break in one would not be a name
there any more. People may name submodules so all the same: ``class`` becomes ``class_``, and ``a"b`` ``a_x22_b``.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from keyword import iskeyword

_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')
_LONGEST = 1000
_KEPT = 900


def writable_path(path: str) -> str:
    """The name as it stands in a file: with none of the characters that readers refuse, and not too long."""
    safe = _UNSAFE.sub(lambda found: f"_x{ord(found[0]):02x}_", path)
    if len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_KEPT]}_{hashlib.sha256(safe.encode()).hexdigest()[:16]}"


def attribute_paths(paths: Iterable[str]) -> Callable[[str], str] | None:
    """How to rename these paths, and those that begin like them, so that each is one attribute; None: not at all."""
    taken = {atom for path in paths for atom in path.split(".")}
    renamed: dict[str, str] = {}
    for atom in sorted(taken):
        safe = _UNSAFE.sub(lambda found: f"_x{ord(found[0]):02x}_", atom)
        if iskeyword(safe):
            safe += "_"
        while safe != atom and (safe in taken or safe in renamed.values()):
            safe += "_"
        if safe != atom:
            renamed[atom] = safe
    if not renamed:
        return None
    return lambda path: ".".join(renamed.get(atom, atom) for atom in path.split("."))
