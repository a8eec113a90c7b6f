"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.lower import (
    activation,
    attention,
    bags,
    convolution,
    distance,
    group_norm,
    indexing,
    matmul,
    normalization,
    ordering,
    padding,
    pointwise,
    pooling,
    random,
    reduction,
    resampling,
    scatter,
    softmax,
    special,
    view,
)
from precast.lower.graph import lower_graph

# Importing a family registers its rules.
FAMILIES = (
    activation,
    attention,
    bags,
    convolution,
    distance,
    group_norm,
    indexing,
    matmul,
    normalization,
    ordering,
    padding,
    pointwise,
    pooling,
    random,
    reduction,
    resampling,
    scatter,
    softmax,
    special,
    view,
)

__all__ = ["FAMILIES", "lower_graph"]
