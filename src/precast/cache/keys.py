"""Names for results: a hash of everything that decides them."""

import hashlib
from collections.abc import Iterable


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
