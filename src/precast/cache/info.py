"""What a store holds, as plain data."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precast.cache.entries import Entry


@dataclass(frozen=True)
class KindInfo:
    """The entries of one kind: how many, the room they take, and when one was last used, in seconds since 1970."""

    kind: str
    entries: int
    bytes: int
    last_used: float


@dataclass(frozen=True)
class StoreInfo:
    """What is in a store; ``hits`` and ``misses`` are those of this process."""

    directory: Path
    limit: int
    kinds: tuple[KindInfo, ...] = ()
    hits: int = 0
    misses: int = 0

    @property
    def entries(self) -> int:
        return sum(kind.entries for kind in self.kinds)

    @property
    def bytes(self) -> int:
        return sum(kind.bytes for kind in self.kinds)


def summarize(entries: Iterable[Entry]) -> tuple[KindInfo, ...]:
    """Entries counted by kind, in order of names."""
    by_kind: dict[str, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    return tuple(
        KindInfo(kind, len(found), sum(e.size for e in found), max(e.used for e in found) / 1e9)
        for kind, found in sorted(by_kind.items())
    )
