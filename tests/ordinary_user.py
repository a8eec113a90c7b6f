"""What an ordinary user meets where root may do everything."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_DROP, _WRITES_ANYWHERE, _READS_ANYWHERE = 24, 1, 2
"""``PR_CAPBSET_DROP``, ``CAP_DAC_OVERRIDE`` and ``CAP_DAC_READ_SEARCH``."""


def run_as_ordinary_user(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder`` by the permissions of files, which root passes over."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        preexec_fn=_obey_permissions if os.geteuid() == 0 else None,
        capture_output=True,
        text=True,
        check=False,
    )


def _obey_permissions() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_WRITES_ANYWHERE, _READS_ANYWHERE):
        if libc.prctl(_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "a capability cannot be given up")
