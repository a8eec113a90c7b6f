"""How far numbers are from the same computation in float64."""

import numpy

SAMPLES = 4096


def sampled(values: numpy.ndarray) -> numpy.ndarray:
    """At most about 4096 of the values, evenly spread: enough to judge by, and small enough to keep."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size // SAMPLES)].copy()


def relative_error(values: numpy.ndarray, reference: numpy.ndarray) -> float:
    """The length of the difference over the length of the reference; infinite where the shapes differ."""
    if values.shape != reference.shape:
        return float("inf")
    return float(numpy.linalg.norm(values.astype(numpy.float64) - reference) / numpy.linalg.norm(reference))
