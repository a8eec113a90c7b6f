"""Crossed parameters of long tests: the fast tests run every value of each, `make test-all` runs every combination."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import pytest


def mark_the_rest_slow(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what the fast tests leave out of each test that is marked as thinned."""
    groups = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("thinned"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        counts = [len(mark.args[1]) for mark in group[0].iter_markers("parametrize")]
        # A single case that was asked for by its name is run.
        for item, keep in zip(group, kept(counts), strict=True) if len(group) == prod(counts) else ():
            if not keep:
                item.add_marker(pytest.mark.slow)


def kept(counts: Sequence[int]) -> list[bool]:
    """A diagonal of the grid: each value of the parameter with the most values once, those of the others in turn.

    >>> kept([3, 2])
    [True, False, False, True, True, False]
    """
    longest = counts.index(max(counts))
    others = prod(counts) // counts[longest]
    numbers = [0] * counts[longest]
    found = []
    for place in product(*map(range, counts)):
        first = place[longest]
        found.append((first - numbers[first]) % min(counts[longest], others) == 0)
        numbers[first] += 1
    return found
