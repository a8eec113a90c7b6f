"""The cut is exact for capacities of any size, and the nearest to the sink."""

import networkx
import numpy as np
import pytest

from precast.partition.network import largest_source_side


def source_side(edges, source=0, sink=1):
    tails, heads, capacities = (np.array(column, np.int64) for column in zip(*edges, strict=True))
    return largest_source_side(tails, heads, capacities, source=source, sink=sink)


def weight(edges, side):
    return sum(capacity for tail, head, capacity in edges if side[tail] and not side[head])


def test_of_two_equal_cuts_the_one_nearest_to_the_sink_is_taken():
    assert source_side([(0, 2, 5), (2, 3, 5), (3, 1, 9)]).tolist() == [True, False, True, False]


def test_capacity_beyond_32_bits_is_counted_exactly():
    large = 2**40
    edges = [(0, 2, large), (2, 1, large - 1), (0, 3, large + 1), (3, 1, large + 2)]
    assert weight(edges, source_side(edges)) == (large - 1) + (large + 1)


@pytest.mark.parametrize("largest", [10, 2**31, 2**44])
@pytest.mark.parametrize("seed", range(10))
def test_weight_equals_that_of_another_solver(seed, largest):
    generator = np.random.default_rng(seed)
    pairs = {tuple(pair) for pair in generator.integers(0, 12, (50, 2)).tolist() if pair[0] != pair[1]}
    pairs = {(tail, head) for tail, head in pairs if head != 0 and tail != 1}
    edges = [(tail, head, int(generator.integers(0, largest))) for tail, head in sorted(pairs)]
    peer = networkx.DiGraph()
    peer.add_nodes_from(range(12))
    for tail, head, capacity in edges:
        peer.add_edge(tail, head, capacity=capacity)
    assert weight(edges, source_side(edges)) == networkx.maximum_flow_value(peer, 0, 1)
