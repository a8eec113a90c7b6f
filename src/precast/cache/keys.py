"""Names for results: a hash of everything that decides them.

What of this machine decides which code suits it.
"""

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path


class Indescribable(Exception):  # noqa: N818
    """Something that text cannot tell from its like, so that no name can be made of it."""


def content_key(parts: Iterable[str | bytes]) -> str:
    """A name for exactly these parts in this order.

    >>> content_key(["ab", "c"]) == content_key(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        # With its length before it, no part can pass for the end of one and the start of the next.
        digest.update(f"{'text' if isinstance(part, str) else 'data'} {len(encoded)} ".encode())
        digest.update(encoded)
    return digest.hexdigest()


_TELLING = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


@cache
def processor_identity() -> str:
    """The processor's model and instructions: equal texts mean that code tuned for one runs as well on the other."""
    facts = Path("/proc/cpuinfo")
    return telling_lines(facts.read_text()) if facts.exists() else f"{platform.machine()} {platform.processor()}"


def telling_lines(facts: str) -> str:
    """What ``/proc/cpuinfo`` says of kinds of processors, leaving out how many there are and how fast they now run."""
    lines = (line for line in facts.splitlines() if line.partition(":")[0].strip() in _TELLING)
    return "\n".join(dict.fromkeys(lines))
