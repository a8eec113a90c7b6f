"""Global settings of torch that a program may read: they are not in Python variables, so they need their own guards."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from precast.trace.state.reads import Reads


def switches_read(reads: Reads) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The settings that a program may read, because it uses all names in their path, with functions to read them."""
    for name, read in _SWITCHES:
        if all(map(reads.may_read, name.split("."))):
            yield f"torch's {name}", read


def _older(read: Callable[[], Any]) -> Any:
    """A setting by an API that raises an error if it was set through the newer one."""
    try:
        return read()
    except RuntimeError as error:
        return str(error)


_matmul, _cudnn, _mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
# Grad mode, autocast and the default dtype are in the guard key.
_SWITCHES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("allow_bf16_reduced_precision_reduction", lambda: _matmul.allow_bf16_reduced_precision_reduction),
    ("allow_fp16_reduced_precision_reduction", lambda: _matmul.allow_fp16_reduced_precision_reduction),
    ("are_deterministic_algorithms_enabled", torch.are_deterministic_algorithms_enabled),
    ("cudnn.allow_tf32", partial(_older, lambda: _cudnn.allow_tf32)),
    ("cudnn.benchmark", lambda: _cudnn.benchmark),
    ("cudnn.deterministic", lambda: _cudnn.deterministic),
    ("cudnn.enabled", lambda: _cudnn.enabled),
    ("cudnn_sdp_enabled", torch.backends.cuda.cudnn_sdp_enabled),
    ("flash_sdp_enabled", torch.backends.cuda.flash_sdp_enabled),
    ("get_default_device", torch.get_default_device),
    ("get_deterministic_debug_mode", torch.get_deterministic_debug_mode),
    ("get_fastpath_enabled", torch.backends.mha.get_fastpath_enabled),
    ("get_float32_matmul_precision", partial(_older, torch.get_float32_matmul_precision)),
    ("get_num_interop_threads", torch.get_num_interop_threads),
    ("get_num_threads", torch.get_num_threads),
    ("initial_seed", torch.initial_seed),
    ("is_anomaly_enabled", torch.is_anomaly_enabled),
    ("is_deterministic_algorithms_warn_only_enabled", torch.is_deterministic_algorithms_warn_only_enabled),
    ("math_sdp_enabled", torch.backends.cuda.math_sdp_enabled),
    ("matmul.allow_tf32", partial(_older, lambda: _matmul.allow_tf32)),
    ("mem_efficient_sdp_enabled", torch.backends.cuda.mem_efficient_sdp_enabled),
    ("mkldnn.enabled", lambda: _mkldnn.enabled),
)
