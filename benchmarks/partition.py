"""How long partitioning the joint graph of a 24-layer GPT takes, and what it saves.

    python -m benchmarks.partition [layers]

Tracing is not part of the time; each figure is the best of three runs. The peer is PyTorch's own min-cut partitioner
on copies of the same graph.
"""

import sys
import time
from collections.abc import Callable

from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition as peer_min_cut_partition

from precast.partition import default_partition, explanation_of, min_cut_rematerialization_partition, trade_off_curve
from precast.partition.classify import classify
from precast.partition.min_cut import decide, pose
from precast.partition.split import split
from tests.partition import models

RUNS = 3


def best_of(runs: int, call: Callable[[], object]) -> float:
    """Return the shortest time of several runs, in milliseconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main(layers: int) -> None:
    joint = models.gpt(layers=layers, width=128, length=64)
    count = joint.num_fwd_outputs
    problem = pose(joint.module, num_fwd_outputs=count)
    decision = decide(problem, 1.0)
    print(f"{layers} layers, {len(joint.module.graph.nodes)} nodes")
    rows: dict[str, Callable[[], object]] = {
        "classify": lambda: classify(joint.module, num_fwd_outputs=count),
        "classify, judge, build the network": lambda: pose(joint.module, num_fwd_outputs=count),
        "cut and explain": lambda: decide(problem, 1.0),
        "cut within a tenth": lambda: decide(problem, 0.1),
        "split": lambda: split(problem.joint, decision.saved),
        "default_partition": lambda: default_partition(joint.module, [], num_fwd_outputs=count),
        "min_cut_rematerialization_partition": lambda: min_cut_rematerialization_partition(
            joint.module, [], num_fwd_outputs=count
        ),
    }
    for name, call in rows.items():
        print(f"{name:<40} {best_of(RUNS, call):8.1f} ms")
    print(f"{'PyTorch min cut':<40} {_time_of_peer(joint.module, count):8.1f} ms")
    forward, _ = min_cut_rematerialization_partition(joint.module, [], num_fwd_outputs=count)
    explanation = explanation_of(forward)
    print(f"saved {explanation.saved_bytes:,} bytes, default {explanation.default_bytes:,}")
    print(trade_off_curve(joint.module, num_fwd_outputs=count).as_table())


def _time_of_peer(module: fx.GraphModule, count: int) -> float:
    """Return the peer's time under the same rule; it changes the graph it is given, so each run gets its own copy."""
    copies = iter([_copy(module) for _ in range(RUNS)])
    return best_of(RUNS, lambda: peer_min_cut_partition(next(copies), [], num_fwd_outputs=count))


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
