"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.lower import matmul, pointwise, reduction, view
from precast.lower.graph import lower_graph

# Importing a family registers its rules.
FAMILIES = (matmul, pointwise, reduction, view)

__all__ = ["FAMILIES", "lower_graph"]
