"""What holds for the whole process and decides what a trace of any program would be."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from precast._version import __version__
from precast.autograd.call_key import ambient_key
from precast.autograd.size_names import Indescribable
from precast.cache import own_sources, processor_identity
from precast.options import environment_variables

_SWITCHES = (
    "_get_blas_preferred_backend", "_get_cpu_allow_fp16_reduced_precision_reduction", "_get_cpu_capability",
    "_get_cudnn_deterministic", "_get_cudnn_enabled", "_get_cudnn_sdp_enabled", "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only", "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled", "_get_float32_matmul_precision", "_get_linalg_preferred_backend",
    "_get_math_sdp_allow_fp16_bf16_reduction", "_get_math_sdp_enabled", "_get_mem_efficient_sdp_enabled",
    "_get_mkldnn_deterministic", "_get_mkldnn_enabled", "_get_nnpack_enabled", "_get_onednn_allow_tf32",
    "_get_overrideable_sdp_enabled", "_get_qengine", "_is_fwd_grad_enabled", "_is_grad_layout_enforcement_enabled",
    "_is_torch_function_enabled", "_is_view_replay_enabled", "is_autocast_cache_enabled",
)  # fmt: skip
# Set by shells, terminals and schedulers for each session anew; programs do not decide by them what to compute.
_SESSION_VARIABLES = frozenset({
    "_", "COLUMNS", "DISPLAY", "LINES", "LOGNAME", "OLDPWD", "PPID", "PWD", "PYTEST_CURRENT_TEST", "SHLVL", "TERM",
    "TERM_SESSION_ID", "TMPDIR", "TMUX", "TMUX_PANE", "TTY", "WINDOWID", "XDG_SESSION_ID",
})  # fmt: skip
_SESSION_PREFIXES = ("SSH_", "PRECAST_CACHE", "SLURM_JOB", "SLURM_STEP", "VSCODE_")


def surroundings() -> Iterator[str]:
    """Versions, machine, modes and switches, as words. Raises Indescribable where others have a hand in what runs."""
    _refuse_interference()
    yield f"precast {__version__} {own_sources()}"
    yield f"torch {torch.__version__} {torch.version.git_version}"
    yield f"python {sys.version} {sys.flags}"
    yield processor_identity()
    yield repr(ambient_key())
    for name in _SWITCHES:
        switch = getattr(torch._C, name, None)
        yield f"{name} {None if switch is None else switch()}"


def environment() -> Iterator[str]:
    """Environment variables, and which packages could be imported: what functions that remember answers may rest on."""
    for name, value in sorted(environment_variables().items()):
        if name not in _SESSION_VARIABLES and not name.startswith(_SESSION_PREFIXES):
            yield f"{name}={value}"
    for folder in sys.path:
        path = Path(folder)
        yield f"{folder} {path.stat().st_mtime_ns if path.name == 'site-packages' and path.exists() else ''}"


def _refuse_interference() -> None:
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Indescribable("a mode that is active around the call")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Indescribable("a transform that is active around the call")
    module = sys.modules["torch.nn.modules.module"]
    if any(value for name, value in vars(module).items() if name.startswith("_global_") and isinstance(value, dict)):
        raise Indescribable("hooks on all modules")
