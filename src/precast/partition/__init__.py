"""Split a joint graph into forward and backward, choosing what to save and what to recompute.

Names are imported when first used: a warm start partitions nothing.
"""

from typing import TYPE_CHECKING

from precast.lazy_names import lazy_name

# Public name → the module that defines it.
_HOMES = {
    "PartitionExplanation": "precast.partition.explanation",
    "TradeOffCurve": "precast.partition.trade_off",
    "default_partition": "precast.partition.default",
    "explanation_of": "precast.partition.explanation",
    "min_cut_rematerialization_partition": "precast.partition.min_cut",
    "trade_off_curve": "precast.partition.trade_off",
    # Takes a user's function, so it needs the earlier stages and is defined in a higher layer.
    "plan": "precast.autograd.memory_plan",
}

__all__ = [
    "PartitionExplanation",
    "TradeOffCurve",
    "default_partition",
    "explanation_of",
    "min_cut_rematerialization_partition",
    "trade_off_curve",
]


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


if TYPE_CHECKING:
    from precast.partition.default import default_partition as default_partition
    from precast.partition.explanation import PartitionExplanation as PartitionExplanation
    from precast.partition.explanation import explanation_of as explanation_of
    from precast.partition.min_cut import min_cut_rematerialization_partition as min_cut_rematerialization_partition
    from precast.partition.trade_off import TradeOffCurve as TradeOffCurve
    from precast.partition.trade_off import trade_off_curve as trade_off_curve
