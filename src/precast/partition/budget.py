"""Fit what is saved into a memory budget by making recomputation ever cheaper.

Without a budget, costly ops have a price without limit. Under pressure the price of a byte of work falls, level by
level, and with it more becomes worth recomputing: what saves most bytes for the least work first. Since every price
falls from level to level, each cut recomputes all that the one before it did, and saves no more: a smaller budget
never saves more than a larger one.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from precast.errors import OptionError
from precast.partition.network import Cut, Network, minimum_cut

# From one level to the next prices fall by this factor: fine enough to tell one layer of many from the next.
_STEP = 1.0005
# Of two equal layers the earlier recomputes first: late in the backward, when most of what was saved is gone.
_PREFERENCE_FOR_EARLY = 0.1


def budget_in_bytes(memory_budget: float, default_bytes: int) -> int:
    """Return a budget in bytes: a fraction up to 1 is of ``default_bytes``, a whole number above 1 is bytes."""
    if isinstance(memory_budget, int) and not isinstance(memory_budget, bool) and memory_budget > 1:
        return memory_budget
    if isinstance(memory_budget, bool) or not 0 <= memory_budget <= 1:
        raise OptionError(
            f"memory_budget={memory_budget!r} is neither a fraction nor a number of bytes",
            why="a fraction of what the default partition saves lies between 0 and 1; bytes are a whole number above 1",
            fix="pass a float such as 0.5, or an int such as 512 * 2**20",
        )
    return int(memory_budget * default_bytes)


def is_absolute(memory_budget: float) -> bool:
    """Tell whether a budget is a number of bytes, to be met, and not a fraction, to be come close to."""
    return isinstance(memory_budget, int) and memory_budget > 1


def cut_within(network: Network, allowed_bytes: int) -> Cut:
    """Return the cut that recomputes least within ``allowed_bytes``; if none is, the one that saves least."""
    cut = minimum_cut(network)
    if cut.saved_bytes <= allowed_bytes:
        return cut
    prices_at, last = _falling_prices(network)
    too_low, enough = 0, last
    best = minimum_cut(network, prices_at(last))
    if best.saved_bytes > allowed_bytes:
        return best
    while enough - too_low > 1:
        level = (too_low + enough) // 2
        cut = minimum_cut(network, prices_at(level))
        if cut.saved_bytes <= allowed_bytes:
            enough, best = level, cut
        else:
            too_low = level
    return best


def _falling_prices(network: Network) -> tuple[Callable[[int], NDArray[np.int64]], int]:
    """Return the prices at each level, and the last level, where all work that may be done again is free."""
    early_first = 1 + _PREFERENCE_FOR_EARLY * np.linspace(0, 1, len(network.nodes))
    forbidden = np.isinf(network.work)
    work = np.where(forbidden, 0, network.work) * early_first
    least = work[work > 0].min(initial=1.0)
    start = network.unlimited / least
    last = max(1, math.ceil(math.log(start * max(work.max(initial=1.0), 1.0) * 2, _STEP)))

    def prices_at(level: int) -> NDArray[np.int64]:
        scaled = np.minimum(work * (start * _STEP**-level), float(network.unlimited)).astype(np.int64)
        priced = np.where(forbidden, network.unlimited, scaled + network.state_bytes)
        return np.minimum(network.prices, priced)

    return prices_at, last
