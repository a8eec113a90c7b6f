"""Maximum flow over integer capacities of any size, by SciPy's compiled Dinic.

SciPy counts in 32 bits and wraps silently; bytes do not fit. So the flow is found digit by digit: first in coarse
units, then what the rounding left over in finer ones. A round leaves at most the number of edges times its unit, so
that two rounds serve networks of up to 2⁴⁵ bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_LARGEST = 2**30


def largest_source_side(
    tails: NDArray[np.int64], heads: NDArray[np.int64], capacities: NDArray[np.int64], *, source: int, sink: int
) -> NDArray[np.bool_]:
    """Return which vertices are on the source's side of the minimum cut that is nearest to the sink.

    No two edges may share both ends. A capacity no smaller than the sum of the limited ones means "no limit".
    """
    # Imported by the first cut: SciPy takes longer to load than the rest of a start without a trace.
    from scipy.sparse import csr_array

    vertices = int(max(tails.max(initial=1), heads.max(initial=1), source, sink)) + 1
    present = capacities > 0
    ends = (tails[present].astype(np.int32), heads[present].astype(np.int32))
    residual = csr_array((capacities[present], ends), shape=(vertices, vertices))
    bound = int(capacities.max(initial=0))
    while True:
        unit = max(1, -(-bound // _LARGEST))
        residual = residual - _flow(residual, unit, source=source, sink=sink)
        if unit == 1:
            return _cannot_reach(residual, sink)
        bound = unit * residual.nnz


def _flow(residual: csr_array, unit: int, *, source: int, sink: int) -> csr_array:
    from scipy.sparse.csgraph import maximum_flow

    coarse = residual.copy()
    coarse.data = np.minimum(coarse.data // unit, _LARGEST).astype(np.int32)
    coarse.eliminate_zeros()
    coarse.indices, coarse.indptr = coarse.indices.astype(np.int32), coarse.indptr.astype(np.int32)
    return maximum_flow(coarse, source, sink).flow.astype(np.int64) * unit


def _cannot_reach(residual: csr_array, sink: int) -> NDArray[np.bool_]:
    from scipy.sparse.csgraph import breadth_first_order

    open_edges = residual.T.tocsr()
    open_edges.eliminate_zeros()
    reaching = breadth_first_order(open_edges, sink, directed=True, return_predecessors=False)
    cannot = np.ones(residual.shape[0], dtype=np.bool_)
    cannot[reaching] = False
    return cannot
