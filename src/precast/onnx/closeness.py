"""When two tensors count as equal: as close as the arithmetic of their dtype allows after a deep model."""

import torch

# Relative error, and absolute error as a fraction of the largest value.
_TOLERANCES = {
    torch.float64: (1e-5, 1e-7),
    torch.float32: (1e-3, 2e-5),
    torch.float16: (2e-2, 2e-3),
    torch.bfloat16: (5e-2, 2e-2),
}


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """What is wrong with ``actual`` in words, or ``None``."""
    if actual.dtype != expected.dtype:
        return f"is {actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return f"has the shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
    relative, absolute = _TOLERANCES.get(expected.dtype, (0.0, 0.0))
    finite = expected[expected.isfinite()].abs() if expected.is_floating_point() else expected
    largest = max(1.0, float(finite.max())) if expected.is_floating_point() and finite.numel() else 1.0
    is_close = torch.isclose(actual, expected, rtol=relative, atol=absolute * largest, equal_nan=True)
    if bool(is_close.all()):
        return None
    wrong = int((~is_close).sum())
    worst = (actual.double() - expected.double()).abs()[~is_close].max()
    return (
        f"differs at {wrong} of {expected.numel()} elements, by up to {float(worst):.3g} (largest value {largest:.3g})"
    )
