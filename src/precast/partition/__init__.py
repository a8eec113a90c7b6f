"""Split a joint graph into forward and backward, choosing what to save and what to recompute."""

from importlib import import_module

from precast.partition.default import default_partition as default_partition
from precast.partition.explanation import PartitionExplanation as PartitionExplanation
from precast.partition.explanation import explanation_of as explanation_of
from precast.partition.min_cut import min_cut_rematerialization_partition as min_cut_rematerialization_partition
from precast.partition.trade_off import TradeOffCurve as TradeOffCurve
from precast.partition.trade_off import trade_off_curve as trade_off_curve

__all__ = [
    "PartitionExplanation",
    "TradeOffCurve",
    "default_partition",
    "explanation_of",
    "min_cut_rematerialization_partition",
    "trade_off_curve",
]


def __getattr__(name: str) -> object:
    # `plan` starts from a user's function, which takes the stages before this one; it lives above them.
    if name == "plan":
        return import_module("precast.autograd.memory_plan").plan
    raise AttributeError(f"module 'precast.partition' has no attribute {name!r}")
