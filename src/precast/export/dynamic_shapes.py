"""Specifications of dynamic sizes, under the names that PyTorch's users import."""

from precast.trace.capture import Dim
from precast.trace.capture.described_calls import AdditionalInputs, ShapesCollection
from precast.trace.capture.dims import DerivedDim, DimHint, dims
from precast.trace.capture.suggested_fixes import refine_dynamic_shapes_from_suggested_fixes

Constraint = Dim | DerivedDim | DimHint
"""What may be specified for a size."""

__all__ = [
    "AdditionalInputs",
    "Constraint",
    "Dim",
    "ShapesCollection",
    "dims",
    "refine_dynamic_shapes_from_suggested_fixes",
]
