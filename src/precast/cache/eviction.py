"""Which entries go when the store is full: those whose last use is the longest ago."""

from collections.abc import Iterable

from precast.cache.entries import Entry


def choose_evicted(entries: Iterable[Entry], most: int) -> list[Entry]:
    """The entries to remove so that the others take at most ``most`` bytes.

    Once any must go, an eighth of the room is freed, so that the next few writes need not look again.
    """
    by_use = sorted(entries, key=lambda entry: (entry.used, entry.path))
    total = sum(entry.size for entry in by_use)
    if total <= most:
        return []
    evicted: list[Entry] = []
    for entry in by_use:
        if total <= most * 7 // 8:
            break
        evicted.append(entry)
        total -= entry.size
    return evicted
