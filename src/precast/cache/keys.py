"""Cache keys: hashes of everything that affects a result, including the processor."""

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path


class Indescribable(Exception):  # noqa: N818
    """An object without a canonical text, for which no key can be made."""


def content_key(parts: Iterable[str | bytes]) -> str:
    """The key of exactly these parts in this order.

    >>> content_key(["ab", "c"]) == content_key(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        # Prefixed with lengths, so that the boundaries between parts count.
        digest.update(f"{'text' if isinstance(part, str) else 'data'} {len(encoded)} ".encode())
        digest.update(encoded)
    return digest.hexdigest()


_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


@cache
def processor_identity() -> str:
    """The processor's model and features: if equal, code tuned for one processor suits the other."""
    facts = Path("/proc/cpuinfo")
    return identifying_lines(facts.read_text()) if facts.exists() else f"{platform.machine()} {platform.processor()}"


def identifying_lines(facts: str) -> str:
    """The lines of ``/proc/cpuinfo`` that identify processor models, without their number and current frequencies."""
    lines = (line for line in facts.splitlines() if line.partition(":")[0].strip() in _IDENTIFYING)
    return "\n".join(dict.fromkeys(lines))
