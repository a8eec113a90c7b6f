"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.lower import (
    activation,
    convolution,
    indexing,
    matmul,
    normalization,
    pointwise,
    reduction,
    scatter,
    softmax,
    view,
)
from precast.lower.graph import lower_graph

# Importing a family registers its rules.
FAMILIES = (activation, convolution, indexing, matmul, normalization, pointwise, reduction, scatter, softmax, view)

__all__ = ["FAMILIES", "lower_graph"]
