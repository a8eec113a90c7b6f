"""Whether a result is right: against float64, and not much worse than eager."""

import torch


def assert_right(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, *, sums: bool = False) -> None:
    """Equal for integers, bool, NaN and infinity; else at most twice eager's own error, or 4 last places, off.

    With `sums`, 8 places of the largest element: what sums of both signs, in another order than eager's, can promise.
    """
    assert ours.shape == eager.shape
    assert ours.dtype == eager.dtype
    if not eager.dtype.is_floating_point:
        assert torch.equal(ours, eager), f"{ours} is not {eager}"
        return
    assert torch.equal(ours.isnan(), eager.isnan()), f"NaN differs: {ours}, {eager}"
    infinite = eager.isinf()
    assert torch.equal(ours[infinite], eager[infinite]), f"infinity differs: {ours}, {eager}"
    finite = eager.isfinite()
    exact = exact.double()[finite]
    wrong, allowed = (ours.double()[finite] - exact).abs(), (eager.double()[finite] - exact).abs()
    # For float64 itself, eager is the only reference: its error counts as well as ours.
    places = 32 if eager.dtype == torch.float64 else 8 if sums else 4
    size = exact.abs().max() if sums and exact.numel() else exact.abs()
    precision = places * torch.finfo(eager.dtype).eps * size.clamp_min(torch.finfo(eager.dtype).tiny)
    limit = 2 * allowed.max().item() if allowed.numel() else 0.0
    assert (wrong <= torch.clamp(precision, min=limit)).all(), f"{wrong.max()} off, eager {allowed.max()}"


def doubled(inputs):
    return [each.double() if each.is_floating_point() else each for each in inputs]
