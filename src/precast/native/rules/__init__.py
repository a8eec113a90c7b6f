"""Functional ATen graph → loop program: rules by family, then fusion, then memory planning."""

from precast.native.rules import (
    activation,
    attention,
    bags,
    control_flow,
    convolution,
    group_norm,
    indexing,
    linear_algebra,
    normalization,
    ordering,
    padding,
    pointwise,
    pooling,
    random,
    reduction,
    resampling,
    scatter,
    sizes_from_data,
    special,
    transforms,
    view,
)
from precast.native.rules import convolution as matmul
from precast.native.rules import reduction as distance
from precast.native.rules import reduction as softmax
from precast.native.rules.lower import lower_graph

# Importing a family's module registers its rules.
FAMILIES = (
    activation,
    attention,
    bags,
    control_flow,
    convolution,
    distance,
    group_norm,
    indexing,
    linear_algebra,
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
    sizes_from_data,
    softmax,
    special,
    transforms,
    view,
)

__all__ = ["FAMILIES", "lower_graph"]
