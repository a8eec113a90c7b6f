"""Split a joint graph into forward and backward, choosing what to save and what to recompute."""

from precast.partition.default import default_partition as default_partition

__all__ = ["default_partition"]
