"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.lower import activation, matmul, pointwise, reduction, softmax, view
from precast.lower.graph import lower_graph

# Importing a family registers its rules.
FAMILIES = (activation, matmul, pointwise, reduction, softmax, view)

__all__ = ["FAMILIES", "lower_graph"]
