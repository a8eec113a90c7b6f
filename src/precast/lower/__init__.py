"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.lower import (
    activation,
    attention,
    convolution,
    distance,
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
    view,
)
from precast.lower.graph import lower_graph

# Importing a family registers its rules.
FAMILIES = (
    activation,
    attention,
    convolution,
    distance,
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
    view,
)

__all__ = ["FAMILIES", "lower_graph"]
