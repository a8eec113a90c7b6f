"""How products and convolutions of float32 may be rounded, as the user has set it by either of torch's two APIs."""

from __future__ import annotations

import torch

_OPERATIONS = (("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul"), ("mkldnn", "conv"))


def float32_precision() -> tuple[str, ...]:
    """For products and convolutions on GPUs, and then on CPUs: "ieee", "tf32", "bf16" or "none".

    ``torch.get_float32_matmul_precision`` raises an error once a setting was made through the newer API.
    """
    ask = torch._C._get_fp32_precision_getter
    return tuple([ask(*each) for each in _OPERATIONS])
